"""The event log: every event and the commands it caused, synced before anything is done about it.

* ``log`` (SQLite, append, replay), ``mark`` (how far the disk is known to hold it), ``salvage`` (what a damaged one
  holds)
* ``timeline`` arranges a journal by trial and device: the one reader for reports, exports, traces and profiles
* ``codec`` writes events and commands as JSON and reads them; ``compact`` does so quickly for reports
"""
