"""An experiment as people see it: state to view to lines of text, each step pure; only ``live`` has a terminal.

* ``view`` makes a ``model.View`` of the core's state: what ``status --json``, the dashboard and the report show
* ``render`` gives out rows and columns to ``header``, ``table``, ``panels`` and ``detail``; ``marks`` has glyphs and
  colours
* ``live`` runs the dashboard: ``feed`` brings views, stories and logs, ``screen`` paints and reads keys, ``ui`` knows
  what was chosen
* without a terminal: ``lines`` (an event a line) and, at the end, ``summary``
"""
