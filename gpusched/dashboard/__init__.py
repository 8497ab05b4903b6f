"""What people see of an experiment: state to view to lines of text, each step pure; only ``live`` has a terminal.

* ``view`` makes a ``model.View`` of the core's state: what ``status --json``, the dashboard and the report show
* ``render`` makes a screen of a view: ``plan`` gives out rows and columns to ``header``, ``table`` (with ``hparams``),
  ``panels`` and ``detail``; ``marks`` has glyphs and colours
* ``live`` runs it: ``feed`` brings views, ``keys`` reads the keyboard for ``ui`` (what was chosen), ``tails`` the logs,
  and ``screen`` paints
* where there is no terminal: ``lines`` (an event a line) and, at the end, ``summary``
"""
