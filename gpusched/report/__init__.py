"""``report.html``: an experiment, or several beside each other, on one page.

``page`` writes the pages, ``figures`` makes their plots as plotly has them.
"""
