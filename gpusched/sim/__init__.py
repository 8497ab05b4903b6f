"""Experiments in virtual time: the executor seam on a heap of future events, workloads, and runs of many seeds.

* the machine: ``executor`` (the heap), ``machine`` (what it remembers of trials and devices), ``physics`` (delays,
  noise, faults, scaling)
* what is trained on it: ``workload`` (the seam, by name, and the reader's own function), ``trace`` (a recorded
  experiment again)
* one run: ``setup`` (what is made), ``single`` (from setup to result), ``folder`` (as an experiment on disk)
* a recorded search gone on with: ``whatif`` (questions and answers), ``recorded`` (the experiment as it was),
  ``continuing`` (its curves, resampled, and its machine)
* many: ``plan`` (which), ``study`` (spread over the cores; means and intervals), ``plot``
"""
