"""Executors carry commands out: ``base`` is the seam, ``local/`` runs process groups on this machine.

Shared by live executors: ``live`` (their base), ``hub`` (the loop of a daemon and its socket), ``peer`` (one
connection), ``best``.
"""
