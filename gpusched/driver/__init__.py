"""One search put together: core, policy, journal, executor and clock.

* ``loop``: event -> journal -> sync -> commands, the same live and simulated
* ``assemble``: from a recipe to the parts; ``clock``: seconds since the search began; ``profiles``: earlier
  measurements
* ``forecaster``: learning-curve forecasts, away from the loop
"""
