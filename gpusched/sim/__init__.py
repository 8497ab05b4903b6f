"""Experiments in virtual time: the executor seam on a heap of future events, workloads, and runs of many seeds.

* the machine: ``executor`` (the heap; with ``run``, what it remembers of a trial), ``pool`` (devices), ``physics``
  (delays, noise, faults, scaling)
* what is trained on it: ``workload`` (the seam), by name in ``workloads``; ``trace`` (a recorded
  experiment again), ``function`` (the reader's own)
* one run: ``setup`` (what is made), ``single`` (from setup to result), ``folder`` (as an experiment on disk)
* many: ``plan`` (which), ``runner`` (spread over the cores), ``summary`` (means and intervals), ``plot``
"""
