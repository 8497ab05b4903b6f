"""The training script's side: ``trial`` is what ``gpusched.init()`` returns; the files beside it hold one idea each.

* where this rank stands: ``start`` (what ``init`` does), ``context``, ``hparams``, ``group`` (the ranks of this
  trial); ``trial`` is made of ``setup`` and what a script calls while it trains
* what stands behind it: ``backing`` (reports, saves, leaves), over ``channel`` to the daemon; ``endings`` (the last
  word, or in which line it failed)
* what is wrong with a script: ``usage`` (which call is wrong or missing, what no checkpoint holds),
  ``together`` (ranks that train apart, or on the same samples)
* what a trial trains on: ``data`` (who gets which sample, with which weight), ``loader``, ``stream``,
  ``prepare`` (what the script has made for one rank); ``learning_rate`` keeps rates and schedules right whatever the
  number of ranks
* what survives a launch: ``training`` (what was set up), ``state`` and ``rng`` (what a checkpoint holds),
  ``checkpoint`` (how it lies on disk), ``saving``
* what a rehearsal looks at: ``onlooker``
"""
