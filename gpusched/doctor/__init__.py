"""Checks before a search.

``machine`` looks at the machine and its GPUs, ``script`` reads a training script,
``rehearsal`` (with ``findings``) judges how it trained.
"""
