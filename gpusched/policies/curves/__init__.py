"""Extrapolation of learning curves, for ``earlyterm`` and ``pop``. Importing this imports neither NumPy nor SciPy.

``predictor`` is the seam (``CurvePredictor``); ``mcmc`` samples Domhan's model, ``ensemble`` fits by least squares,
both over the functions in ``models``; ``forecast`` is their answer.
"""
