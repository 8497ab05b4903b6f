"""A rank of ``launch: cold`` before it becomes ``python script``: run as a file, by any Python 3, importing nothing.

Gives this process its streams, its cores and its own variables (from ``GPUSCHED_RANKS``), then executes the script with
the same interpreter, as torchrun would have done, or itself if it is another kind of program (executable, no ``.py``).
"""

import json
import os
import sys


def main() -> None:
    """``coldrank.py SCRIPT [ARGS..]``."""
    ranks = json.loads(os.environ.pop("GPUSCHED_RANKS"))
    os.environ.pop("GPUSCHED_CODES", None)
    mine = ranks[int(os.environ["LOCAL_RANK"])]
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for path, descriptor in ((mine["out"], 1), (mine["err"], 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.update(mine["env"])
    os.environ["TORCHELASTIC_ERROR_FILE"] = mine["error"]
    try:
        if mine["cpus"]:
            os.sched_setaffinity(0, mine["cpus"])
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(score, b"500")
        os.close(score)
    except OSError:
        pass
    script = sys.argv[1]
    if not script.endswith(".py") and os.access(script, os.X_OK):
        os.execv(script, sys.argv[1:])
    os.execv(sys.executable, [sys.executable, "-u", *sys.argv[1:]])


main()
