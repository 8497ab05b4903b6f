"""Trials on the nodes of a Ray cluster: a local executor on each, behind one authenticated line a node.

* ``bootstrap``: finds nodes and keeps a process running on each, by way of Ray with ``ray_bridge``, a driver of Ray
* the daemon's side: ``executor`` is the ``Executor``, ``members`` who is a node and who is lost, ``nodes`` one of them
* the node's side: ``node`` is the process
* between them: ``line`` (frames, TLS, certificates of this experiment)
"""
