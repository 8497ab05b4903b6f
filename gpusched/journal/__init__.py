"""The event log: every event and the commands it caused, synced before anything is done about it.

* ``log`` (SQLite, append, replay); ``damage`` notices, words and leaves behind what is damaged
* ``timeline`` arranges a journal by trial and device: the one reader for reports, exports, traces and profiles
* ``codec`` writes events and commands as JSON and reads them
"""
