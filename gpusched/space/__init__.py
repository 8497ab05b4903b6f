"""The search space: ``forms`` of a hyperparameter, how they are read, and configurations of them.

* ``reader`` reads the recipe's ``space`` and recognises other tools' spellings
* ``space`` draws and lists configurations and checks ``try_first``, and puts a configuration on the
  script's command line
"""
