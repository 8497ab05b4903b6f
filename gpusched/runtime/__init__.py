"""The processes that run a rank. Each is short; the user's script is the only long part.

* ``warm`` (the server) imports torch once and forks a ``shim`` per incarnation, which looks after its processes and
  takes the daemon's ``orders``
* the shim runs torchrun's ``agent`` (with ``rendezvous``); ``forked`` makes a rank of a fork, ``rank`` runs the script
  as ``__main__``
* ``launch: cold``: the shim runs ``torchrun`` as a program; ``cold`` is what runs in the recipe's interpreter
"""
