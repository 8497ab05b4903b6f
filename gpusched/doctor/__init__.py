"""Checks before a search.

``machine`` (everything but GPUs) and ``gpus`` (what the driver says) are the machine's;
``script`` reads a training script, ``rehearsal`` (with ``findings``) judges how it trained.
"""
