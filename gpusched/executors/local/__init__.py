"""Trials as process groups on this machine: ``executor`` is the ``Executor``; the rest hold one idea each.

* one launch: ``incarnation`` (as the daemon sees it), ``settings`` and ``launching`` (from ``Launch`` to the frame),
  ``server`` (the warm server that forks it)
* frames (``protocol``): ``intake`` (whose a connection is; rank 0's reports as events, in order and once)
* how it ends: ``stopping`` (the ladder, and the hunt for what is left), ``endings`` (in which words, by whose fault)
* beside it: ``inventory`` (its devices: released, gone bad, come back)
"""
