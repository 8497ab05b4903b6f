"""The process tree of an incarnation, as both sides see it: the shim that owns it and the daemon that looks on.

* ``identity``: processes by identity; what belongs to a tree; how it is killed
* ``claim``: who a tree's shim and ranks are (``shim.json``), one claim at most; what the tree leaves behind,
  processes and shared memory
* ``outcome``: what became of it, judged from what it left on disk
* ``stacks``: where every thread of a rank stands, asked by a signal

Quick to import: every shim and rank does.
"""
