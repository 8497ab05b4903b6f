"""The training script's side: ``trial`` is what ``gpusched.init()`` returns; the files beside it hold one idea each.

* where this rank stands: ``start`` (what ``init`` does), ``context``, ``hparams``, ``group`` (the ranks of this
  trial); ``trial`` is made of ``setup`` and what a script calls while it trains
* what a rank says: ``reports``, over ``channel`` to the daemon; ``leaving``, ``lastword``;
  to the user: ``errorfile`` (in which line it failed), ``usage`` (which call is wrong or missing), ``forgotten`` (state
  that nothing saves),
  ``files`` (which path two trials write)
* what a trial trains on: ``data`` (who gets which sample), ``loader``, ``stream``, ``shard``; ``weights``,
  ``learning_rate`` and ``schedule`` keep gradients, rates and schedules right whatever the number of ranks
* what survives a launch: ``training`` (what was set up), ``state``, ``sharded`` and ``rng`` (what a checkpoint holds),
  ``checkpoint`` and ``sealing`` (how it lies on disk), ``saving``
* what a rehearsal looks at: ``witness``
* how a trial goes on at another size without a pause: ``successor`` (waits until it may), ``handover`` (memory
  that holds the state)
"""
