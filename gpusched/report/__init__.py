"""``report.html``: an experiment on one page. ``data`` reads, ``svg`` draws, ``page`` writes."""
