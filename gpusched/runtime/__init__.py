"""The processes that run a rank. Each is short; the user's script is the only long part.

* ``warm`` (the server that imports torch once, with its ``imports`` and its memory's ``image``) forks a ``shim`` per
  incarnation, with a ``link`` to the daemon, whose ``orders`` it follows, and a ``lease`` without one
* the shim runs torchrun's ``agent`` (with ``rendezvous``), or ``alone`` where torch is not used; ``birth`` and
  ``mark`` make a rank of a fork, ``rank`` runs the script as ``__main__``, ``stacks`` tells where it hangs
* ``launch: cold``: ``cold`` (the shim), ``torchrun`` (as a process), ``coldrank``
"""
