"""Suggesting configurations: a ``Sampler`` answers with the n-th one of a search.

* ``sequence``: the seam, and samplers that are functions of (seed, n): random and grid
* ``memory``: samplers that learn from the trials so far, and how they are found; ``optuna``: tpe, gp and cmaes. They
  run in a child process (``driver.suggester``)
* ``study``: a search as a study of Optuna
"""
