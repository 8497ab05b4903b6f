"""One search put together: core, policy, journal, executor and clock.

* ``loop``: event -> journal -> sync -> commands, the same live and simulated
* ``assemble``: from a recipe to the parts, and the clock: seconds since the search began
* ``suggester``: a sampler that learns, in a process beside the loop
"""
