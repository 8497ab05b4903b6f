"""The two programs of ``launch: cold`` that run in the recipe's interpreter, which may lack every library of gpusched.

    python -m gpusched.runtime.cold OPTIONS    torchrun, with a store that listens on loopback only
    python -I cold.py SCRIPT [ARGS..]          a rank before it becomes ``python SCRIPT``

* ``torchrun`` registers our rendezvous and asks for it. The exit codes of ranks that failed are left in the file
  ``GPUSCHED_CODES`` names, for the shim.
* ``rank``, by any Python 3, gives its process its streams and its cores (from ``GPUSCHED_RANKS``), then runs the
  script with the same interpreter (``gpusched.runtime.rank``).
"""

from __future__ import annotations

import json
import os
import sys


def torchrun() -> int:
    """Run torchrun; return the exit status."""
    if sys.version_info < (3, 11):  # noqa: UP036 - of the recipe, not ours
        version = ".".join(map(str, sys.version_info[:2]))
        print(
            f"`python` of the recipe is Python {version}: gpusched needs 3.11 or newer there",
            file=sys.stderr,
        )
        return 1
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from gpusched.runtime import rendezvous

    rendezvous.register()
    try:
        run.main(["--rdzv-backend", rendezvous.NAME, *sys.argv[1:]])
    except ChildFailedError as failed:
        codes = {rank: failure.exitcode for rank, failure in failed.failures.items()}
        with open(os.environ["GPUSCHED_CODES"], "w") as file:  # noqa: PTH123
            json.dump(codes, file)
        print(failed, file=sys.stderr)
        return 1
    return 0


def rank() -> None:
    """Become the script."""
    ranks = json.loads(os.environ.pop("GPUSCHED_RANKS"))
    os.environ.pop("GPUSCHED_CODES", None)
    mine = ranks[int(os.environ["LOCAL_RANK"])]
    for path, descriptor in ((mine["out"], 1), (mine["err"], 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ["TORCHELASTIC_ERROR_FILE"] = mine["error"]
    try:
        os.sched_setaffinity(0, mine["cpus"])
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(score, b"500")
        os.close(score)
    except OSError:
        pass
    # -P: the working directory is not on the path of a script that lies elsewhere
    python = [sys.executable, "-u", "-P", "-m", "gpusched.runtime.rank"]
    os.execv(sys.executable, [*python, *sys.argv[1:]])


if __name__ == "__main__":
    if not __package__:
        rank()
    status = torchrun()
    sys.stdout.flush()
    sys.stderr.flush()
    # Tearing the interpreter down takes a second, and may abort or hang in torch's threads.
    os._exit(status)
