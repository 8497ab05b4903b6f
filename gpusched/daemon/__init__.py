"""One experiment's process: the loop around the driver, its socket, its clients, and the ways in from outside.

* the process: ``daemon`` (lock, signals, loop, end), ``clients`` (what people ask and see), ``resuming`` (state and
  machine brought together; a search that is over continues), ``storage`` (room on the disk, checkpoints that nothing
  needs)
* the way in: ``start`` (makes the folder and starts the process; its entry), ``provenance`` (the code that it ran),
  ``session`` (a client of its socket; state from the socket while a daemon lives, from the files otherwise),
  ``best_model`` (``gpusched.load``)
"""
