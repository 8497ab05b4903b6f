"""``report.html``: an experiment, or several beside each other, on one page.

``page`` writes the page, ``figures`` makes its plots as plotly has them, ``importance`` ranks hyperparameters and
``compare`` sets searches side by side.
"""
