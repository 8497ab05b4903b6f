"""Experiments in virtual time: the executor seam on a heap of future events, workloads, and runs of many seeds."""
