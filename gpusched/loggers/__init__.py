"""Other people's tools: one run a trial in TensorBoard, MLflow or W&B, live or afterwards.

A logger runs in a child process that reads the journal beside the daemon, so that it can neither slow nor break
a search.

* ``base``: the seam, and how loggers are found; ``follow``: from the journal to a logger, each point once, and the
  daemon's end of the processes
* ``tools``: TensorBoard, MLflow and W&B, imported in the child alone
"""
