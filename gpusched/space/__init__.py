"""The search space: ``forms`` of a hyperparameter, how they are read, and configurations of them.

* ``reader`` reads the recipe's ``space`` and recognises other tools' spellings, ``first`` checks ``try_first``
* ``space`` draws and lists configurations; ``arguments`` puts one on a command line
"""
