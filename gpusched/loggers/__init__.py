"""Other people's tools: one run a trial in TensorBoard, MLflow, W&B, Trackio or a table, live or afterwards.

A logger runs in a child process that reads the journal beside the daemon, so that it can neither slow nor break
a search.

* ``base``: the seam, and how loggers are found; ``follow``: from the journal to a logger, each point once
* ``files`` (TensorBoard, CSV) and ``services`` (MLflow, W&B, Trackio): the tools, imported in the child alone
* ``children``: the daemon's end of the processes
"""
