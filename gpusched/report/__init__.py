"""``report.html``: an experiment on one page. ``page`` writes and ranks hyperparameters, ``svg`` draws."""
