"""An experiment on disk.

* ``paths`` names every path; ``find`` resolves a name, a folder or ``last``; ``files`` writes whole files, checks
  them, and keeps room for the journal
* ``lock`` (one daemon at a time, and the newest), ``reports`` (a trial's own file of reports)
"""
