"""An experiment as people see it: state to view to widgets; the app alone has a terminal.

* ``view`` makes a ``model.Standing`` of the core's state: ``status --json``, the dashboard and the report show it
* ``panels`` words a view (``model`` its idle atoms); ``widgets`` has the table of trials; ``marks`` glyphs, colours and
  drawings
* ``feed`` brings views, stories and logs to ``app``, which asks the daemon for what a person wants changed, by the
  questions in ``widgets``
* ``lines`` tells the events without a terminal
"""
