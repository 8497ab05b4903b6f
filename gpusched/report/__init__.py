"""``report.html``: a search on one page. ``page`` writes it, ``figures`` makes its plots with plotly."""
