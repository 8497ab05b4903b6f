"""Trials as process groups on this machine. ``executor`` has the rules.

``launching`` (folders, environment, the frame) and ``server`` begin a launch, ``incarnation`` is one (its connections,
reports, shim and stop), ``endings`` says how it ended and by whose fault.
"""
