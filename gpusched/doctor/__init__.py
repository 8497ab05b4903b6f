"""What is looked over before a search.

``machine`` (everything but GPUs) and ``gpus`` (what the driver says) are the machine's; ``rehearsal`` judges a script.
"""
