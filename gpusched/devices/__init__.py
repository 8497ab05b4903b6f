"""Devices that ranks run on: which exist, who is on them, whether they are free and well. CPU slots and NVIDIA GPUs.

``base`` is the seam (``Devices``). ``choose`` picks the kind and holds the CPU slots; ``cuda`` is NVIDIA's, in parts:

* which: ``visible`` (which GPUs may be used), ``leases`` (claims of other experiments), ``atoms`` (bundles),
  ``placing`` and ``topology`` (ranks, cores, neighbours)
* the driver: ``nvml`` (the only door to it), ``gpu`` (its answers as values), ``watch`` and ``xid`` (threads that
  ask, so that nothing waits; ``clock`` starts and times them), ``machine`` (all GPUs), ``unit`` (one in use)
* released: ``release`` (the rule), ``baseline`` (memory in use when idle), ``holders`` and ``pidcheck`` (processes on
  a GPU), ``opening`` (the first look); ``health`` (faults)
* for people: ``gpus`` and ``reading``
"""
