"""Trainers that own their loop, made searchable with three lines: ``accelerate``, ``lightning``, ``transformers``.

None of the libraries is a dependency of gpusched: each file imports its own, and is imported by name
(``from gpusched.integrations.lightning import Search``, or ``gpusched.lightning.Search``).
"""
