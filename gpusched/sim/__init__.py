"""Searches in virtual time: the executor seam on a heap of future events, workloads, and runs of many seeds.

* the machine: ``executor`` (the heap), ``machine`` (what it remembers of trials and devices), ``physics`` (delays,
  noise, scaling)
* what is trained on it: ``workload`` (the seam, by name, and the reader's own function), ``trace`` (a recorded
  search again)
* runs: ``setup`` (which, and what is made of one), ``study`` (from setups to results; means and intervals)
* a recorded search, continued: ``whatif`` (questions and answers), ``recorded`` (the search as it was),
  ``continuing`` (its curves, resampled, and its machine)
"""
