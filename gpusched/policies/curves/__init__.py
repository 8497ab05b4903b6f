"""Extrapolation of learning curves, for ``earlyterm`` and ``pop``. Importing this imports neither NumPy nor SciPy.

``predictor`` is the seam (``CurvePredictor``) and turns predictions into the answer of a forecast; ``mcmc`` samples
Domhan's model of eleven curves, ``shapes`` is the forecaster of ``foresight``.
"""
