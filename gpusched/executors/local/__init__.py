"""Trials as process groups on this machine. ``executor`` has the rules.

``launching`` begins a launch (folders, environment, the frame, the warm server), ``incarnation`` is one (its
connections, reports, shim and stop).
"""
