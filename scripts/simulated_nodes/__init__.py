"""A cluster executor whose nodes are played by one process, for ``bench_cluster.py``: everything else is real."""
