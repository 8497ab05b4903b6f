"""Devices that ranks run on: which exist, who is on them, whether they are free and well. CPU slots and NVIDIA GPUs.

``base`` is the seam (``Devices``). ``choose`` picks the kind and holds the CPU slots; ``cuda`` is NVIDIA's, in parts:

* which: ``leases`` (claims of other experiments), ``atoms`` (bundles), ``placing`` (ranks, cores)
* the driver: ``nvml`` (the only door to it), ``gpu`` (its answers as values), ``helper`` (a process for each GPU that
  asks, so that nothing waits), ``watch`` (the newest answers), ``machine`` (all GPUs, which may be used, which are
  neighbours), ``unit`` (one in use)
* released: ``release`` (the rule, memory in use when idle), ``holders`` (processes on a GPU), ``opening`` (the first
  look); ``health`` (faults), ``witness`` (CUDA, tried out beside NVML)
* for people: ``gpus``
"""
