"""Trials on several machines, the nodes of a cluster: a local executor on each, behind one authenticated line a node.

* ``bootstrap``: finds nodes and starts a process on each: by ssh, in a Slurm job, or ``local:2`` for tests and for
  boxes joined by hand
* ``ray`` finds them through a Ray cluster; ``ray_bridge`` is its driver, under the cluster's own interpreter
* the daemon's side: ``executor`` is the ``Executor``, ``members`` who is a node and who is lost, ``nodes`` one of them
* the node's side: ``node`` is the process
* between them: ``line`` (TLS, certificates of this experiment), ``frames``
"""
