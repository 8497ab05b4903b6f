"""Executors carry out commands on a machine. ``base`` is the seam; ``local`` and ``cluster`` are executors.

Shared by live ones: ``live`` (what a daemon gives them, timers, ``poll``), ``hub`` (the daemon's loop, socket and
connections), ``best`` (the folder ``best/``).
"""
