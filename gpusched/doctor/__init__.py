"""Checks before a search.

``machine`` looks at the machine and its GPUs, ``rehearsal`` judges how a script trained, with ``findings`` and, for
other sizes, ``resized``.
"""
