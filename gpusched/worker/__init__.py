"""The training script's side, and the processes that run it: the only part of gpusched that imports torch.

``trial.py`` is what ``gpusched.init()`` returns; the files beside it hold one idea each:

* where this rank stands: ``context``, ``hparams``, ``group`` (the ranks of this trial)
* what it says: ``reporter``, to ``reports`` (its own file) and ``channel`` (the daemon); ``leaving``, ``lastword``
* what it trains on: ``data`` (who gets which sample), ``loader``; ``weights`` and ``resize`` keep the gradient and the
  learning rate right whatever the number of ranks
* what survives it: ``state`` and ``rng`` (what a checkpoint holds), ``checkpoint`` (how it lies on disk), ``saving``
* how it goes on at another size without a pause: ``successor`` (waits until it may), ``handover`` (gets the state)
* what runs it: ``rank`` (a script as ``__main__``), ``warm``, ``shim`` (``orders``: the daemon's), ``rendezvous``
"""
