"""Suggesting configurations.

* ``sequence``: those that are functions of (seed, n): random, grid
* ``memory``: the seam ``Sampler``, for samplers that learn from the trials so far, and how they are found; ``optuna``:
  any of Optuna's. They run in a child process (``driver.suggester``)
"""
