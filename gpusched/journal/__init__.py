"""The event log: every event and the commands it caused, synced before anything is done about it.

* ``log``: append, commit, replay; a missing end is noticed
* ``timeline`` arranges a journal by trial and device: the one reader for reports, exports and traces
* ``local_disk``: the journal on a disk of the daemon's machine, where other machines use the search's folder
* ``rows``: how an event and its commands stand in a row; reading them, also beside the daemon that writes; damage
"""
