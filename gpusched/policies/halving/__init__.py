"""Successive halving: only the best at a rung go on.

Synchronous: ``sha.py``, its brackets in turn in ``hyperband.py``, one running bracket in ``bracket.py``. Asynchronous:
``asha.py`` by promotion, ``hypersched.py`` under a deadline with atoms that move.
"""
