"""scikit-learn's partial_fit, on one atom: the model is pickled into the checkpoint."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import gpusched
from gpusched import trial

X, y = load_digits(return_X_y=True)
model = SGDClassifier(
    learning_rate="adaptive", eta0=trial.hparams.get("eta0", 0.01), random_state=0
)
for epoch in trial.steps(20, model=gpusched.pickled(model)):  # <-
    order = np.random.default_rng(epoch).permutation(1000)
    for rows in np.array_split(order, 10):
        model.partial_fit(X[rows], y[rows], classes=range(10))
    trial.report(loss=1 - model.score(X[1000:], y[1000:]))  # <-
