"""Extrapolation of learning curves, for ``earlyterm`` and ``pop``. Importing this imports neither NumPy nor SciPy."""
