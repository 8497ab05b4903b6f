"""Executors carry commands out: ``base`` is the seam, ``local/`` runs process groups on this machine.

Shared by live executors: ``live`` (their base, and timers), ``hub`` (the loop of a daemon, its socket and connections),
``best`` (the best model on disk).
"""
