"""Trials as process groups on this machine. ``executor`` has the rules.

* begin: ``launching`` (folders, the frame, the environment), ``settings`` (recipe, limits), ``server``
* while it runs: ``incarnation`` (its connections, reports and shim), ``inventory`` (devices, and what holds them back)
* end: ``stopping`` (the ladder from SIGTERM to SIGKILL), ``endings`` (in words, and by whose fault)
"""
