"""The search space: ``forms`` of a hyperparameter, how they are read, and the n-th configuration.

* ``reader`` reads the recipe's ``space``, ``elsewhere`` recognises other tools' spellings, ``first`` reads
  ``try_first``
* ``sampler`` draws the n-th configuration from (seed, n); ``arguments`` puts one on a command line
"""
