"""Executors carry commands out: ``base`` is the seam, with the parts that all live executors have; ``local/`` runs
process groups on this machine.

Shared by live executors: ``hub`` (the loop of a daemon, its socket and connections), ``best`` (the best model on disk).
"""
