"""``report.html``: an experiment on one page. ``page`` writes, ``svg`` draws; ``importance`` ranks hyperparameters."""
