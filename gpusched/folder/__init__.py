"""An experiment on disk.

* ``paths`` names every path; ``find`` resolves a name, a folder or ``last``; ``files`` writes whole files and checks
  them
* ``lock`` (one daemon at a time, and the newest), ``reserve`` (room for the journal), ``logcap``
  (capped logs), ``reports`` (a trial's own file of reports)
"""
