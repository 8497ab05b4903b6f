"""Checks before a search.

``machine`` looks at the machine and its GPUs, ``rehearsal`` (with ``findings``) judges how a script trained.
"""
