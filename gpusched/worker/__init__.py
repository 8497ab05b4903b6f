"""The training script's side: ``trial`` is what ``gpusched.init()`` returns; the files beside it hold one idea each.

* where this rank stands: ``start`` (what ``init`` does), ``context``, ``hparams``, ``group`` (the ranks of this
  trial); ``trial`` is made of ``setup`` and what a script calls while it trains
* what stands behind it: ``backing`` (all parts of one rank); ``reports``, over ``channel`` to the daemon; ``leaving``
  (with or without a save), ``endings`` (the last word, or in which line it failed)
* what is wrong with a script: ``usage`` (which call is wrong or missing), ``forgotten`` (state that nothing saves)
  and ``averages`` (of weights, kept by hand), ``files`` (which path two trials write)
* what a trial trains on: ``data`` (who gets which sample), ``loader``, ``stream``, ``foreign`` (loaders
  and samplers of the script's own); ``weights`` and ``learning_rate`` keep gradients, rates and schedules right
  whatever the number of ranks
* what survives a launch: ``training`` (what was set up), ``state``, ``sharded`` and ``rng`` (what a checkpoint holds),
  ``checkpoint`` (how it lies on disk), ``saving``, ``handover`` (from memory to memory, for a prestart that waits)
* what a rehearsal looks at: ``onlooker``
"""
