"""Trials as process groups on this machine. ``executor`` has the rules.

* begin: ``launching`` (folders, devices, environment, the frame), ``server``
* while it runs: ``incarnation`` (its connections, reports and shim), ``inventory`` (its devices)
* end: ``stopping`` (the ladder from SIGTERM to SIGKILL), ``endings`` (in words, and by whose fault)
"""
