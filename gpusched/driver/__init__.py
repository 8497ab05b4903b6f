"""One search put together: core, policy, journal, executor and clock.

* ``loop``: event -> journal -> sync -> commands, the same live and simulated
* ``assemble``: from a recipe to the parts, and the clock: seconds since the search began
* ``child``: a process that answers questions beside the loop; ``forecaster``: of learning curves; ``suggester``: of a
  sampler that learns
"""
