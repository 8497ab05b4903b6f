"""Devices that ranks run on: which exist, who is on them, whether they are free and well. CPU slots and NVIDIA GPUs.

``base`` is the seam (``Devices``); ``choose`` picks the kind, and has the CPU slots;
``cuda`` is NVIDIA's, in parts: ``nvml`` (the only door to the driver), ``helper`` (the process that asks, and the
newest readings), ``release`` (the rule), ``unit`` (one device's state), ``machine`` (all GPUs, those named, their
cores), ``leases`` (claims of other searches).
"""
