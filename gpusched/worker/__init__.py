"""The training script's side: ``trial`` is what ``gpusched.init()`` returns; the files beside it hold one idea each.

* where this rank stands: ``start`` (what ``init`` does), ``context``, ``hparams``, ``group`` (the ranks of this
  trial), ``gpu`` (this rank's)
* what it says: ``reporter``, to ``reports`` (its own file) and ``channel`` (the daemon); ``leaving``, ``lastword``;
  to the user: ``say``, ``errorfile`` (in which line it failed), ``usage`` (which call is wrong or missing)
* what it trains on: ``data`` (who gets which sample), ``loader``; ``weights`` and ``learning_rate`` keep the gradient
  and the learning rate right whatever the number of ranks
* what survives it: ``training`` (what was set up), ``state``, ``sharded`` and ``rng`` (what a checkpoint holds),
  ``snapshot`` (its copy in memory), ``checkpoint`` (how it lies on disk), ``saving``
* how it goes on at another size without a pause: ``successor`` (waits until it may), ``handover`` (gets the state)
"""
