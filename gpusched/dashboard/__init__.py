"""An experiment as people see it: state to view to lines of text, each step pure; the app alone has a terminal.

* ``view`` makes a ``model.Standing`` of the core's state: ``status --json``, the dashboard and the report show it
* ``frame``, ``table``, ``panels`` and ``devices`` make lines of a view; ``marks`` has glyphs, colours and drawings
* ``live`` brings views, stories and logs to ``app``, which asks the daemon for what a person wants changed; ``screen``
  shows them in ``widgets`` and knows what was chosen
* ``lines`` tells the events without a terminal
"""
