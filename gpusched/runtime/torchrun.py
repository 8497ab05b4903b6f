"""``torchrun`` with a store that listens on loopback only: ``python -m gpusched.runtime.torchrun`` takes its options.

Registers our rendezvous and asks for it; where this torch is too old to have one registered, its own is used, and it is
said. The exit codes of ranks that failed are left in the file ``GPUSCHED_CODES`` names, for the shim.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def _backend() -> str:
    try:
        from gpusched.runtime import rendezvous

        rendezvous.register()
    except (ImportError, AttributeError, TypeError) as problem:
        print(f"gpusched: this torch's own rendezvous is used: {problem}", file=sys.stderr)
        return "c10d"
    return rendezvous.NAME


def main() -> int:
    try:
        run.main(["--rdzv-backend", _backend(), *sys.argv[1:]])
    except ChildFailedError as failed:
        codes = {rank: failure.exitcode for rank, failure in failed.failures.items()}
        Path(os.environ["GPUSCHED_CODES"]).write_text(json.dumps(codes))
        print(failed, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(
        status
    )  # tearing the interpreter down takes a second, and may abort or hang in torch's threads
