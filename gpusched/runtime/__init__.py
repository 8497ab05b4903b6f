"""The processes that run a rank. Each is short; the user's script is the only long part.

* ``warm`` (the server) imports torch once (``imports``: which modules, and the memory they leave) and forks a ``shim``
  per incarnation, which looks after its processes and has a ``link`` to the daemon
* the shim runs torchrun's ``agent`` (with ``rendezvous``); one rank that does not use torch, and ``launch: cold``, are
  ``agentless``; ``birth`` makes a rank of a fork, ``rank`` runs the script as ``__main__``
* ``cold``: torchrun and its ranks in the recipe's interpreter, which may lack all that gpusched needs; it stands alone
"""
