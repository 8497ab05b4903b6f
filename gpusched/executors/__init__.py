"""What carries commands out on this machine, and the daemon's ear: two seams, in ``base``, and what implements them.

Trials as process trees (``Executor``; ``torchrun`` is the executor, the rest hold one idea each):

* one launch: ``incarnation`` (as the daemon sees it), ``settings`` and ``launching`` (from ``Launch`` to the frame),
  ``server`` (the warm server that forks it), ``preparing`` (launched before it is due, for a resize)
* who speaks: ``hub`` (the loop and the socket), ``peer`` (one connection), ``speakers`` (whose it is), ``intake`` (what
  rank 0 says, in order and once) and ``reporting`` (what may stand in a report)
* how it ends: ``stopping`` (the ladder), ``strays`` (nobody else is left to end it), ``endings`` (in which words),
  ``oom`` and ``blame`` (whose fault it was), ``draining`` (until its devices are free)
* beside it: ``keeping`` and ``best`` (the best model), ``inspection`` (devices that go bad or come back), ``timers``

Devices (``Devices``; ``devices`` has CPU slots and chooses the kind, ``cuda`` is NVIDIA's):

* which: ``visible`` (which GPUs it may use), ``leases`` (and no other experiment), ``atoms`` (bundled), ``placing`` and
  ``topology`` (ranks, cores, neighbours)
* what is known of one: ``nvml`` (the only door to the driver), ``gpu`` (its answers as values), ``watch`` and ``xid``
  (threads that ask, so that nothing waits for it) on a ``clock``; ``machine`` (all GPUs), ``unit`` (one in use)
* whether it is free: ``release`` (the rule), ``baseline`` (what it uses when idle), ``holders`` and ``pidcheck`` (who
  is on it), ``opening`` (the first look); whether it is well: ``health``
* for people: ``gpus`` and ``reading`` (what is shown), ``doctor`` with ``doctor_gpus``, ``torchbuild`` and ``checking``
"""
