"""Executors carry out commands on a machine. ``base`` is the seam; ``local`` and ``cluster`` are executors.

Shared by live ones: ``hub`` (the daemon's loop, socket and connections), ``live`` (timers and ``poll``), ``best`` (the
folder ``best/``).
"""
