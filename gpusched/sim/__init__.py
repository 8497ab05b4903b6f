"""Searches in virtual time: the executor seam on a heap of future events, workloads, and runs of many seeds.

* the machine: ``executor`` (the heap), ``physics`` (what it remembers of trials and devices, delays, scaling)
* what is trained on it: ``workload`` (the seam, by name, and the reader's own function)
* runs: ``setup`` (which, and what is made of one), ``study`` (from setups to results; means and intervals)
* a recorded search, continued: ``whatif`` (questions and answers), ``continuing`` (the search as it was, its curves
  resampled, and its machine)
"""
