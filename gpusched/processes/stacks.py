"""The place of every rank when one of them hangs: written down by the ranks themselves, read by the shim.

Each rank has ``faulthandler`` write the stacks of all its threads into ``stacks-<rank>.txt`` of its incarnation's logs
when it gets ``SIGNAL``; that works in any C code, needs no interpreter lock and no tool. The shim asks, waits a moment,
and says in one line who is stuck where. A rank that has no handler for it (no rank of ours, or not yet) is not asked:
the signal would end it.

Stuck are the ranks that do not answer or do not wait for the others, if there are any; else all of them.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpusched.folder.files import read_from
from gpusched.folder.paths import ExperimentPaths
from gpusched.processes.identity import identify, read_file, send_signal

SIGNAL = signal.SIGRTMIN + 7
PATIENCE_S = 0.5
"""Time that the ranks have to write their stacks."""

_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
#: Files in which a rank waits for others: torch's collectives, our exchange, DDP's all-reduce behind ``backward``, the
#: daemon.
_WAITING = re.compile(
    r"/torch/(distributed|nn/parallel|autograd)/|/gpusched/worker/(group|saving|channel)\.py$"
)
_LIBRARY = re.compile(r"/(site-packages|dist-packages|lib/python3[^/]*)/|/gpusched/|^<")


def file_of(rank: int) -> Path:
    """Return the file for stacks of a rank of this incarnation, by the environment. Raises KeyError without one."""
    env = os.environ
    trial = ExperimentPaths(Path(env["GPUSCHED_DIR"])).trial(int(env["GPUSCHED_TRIAL"]))
    return trial.stacks(int(env["GPUSCHED_INCARNATION"]), rank)


def listen_as_rank() -> None:
    """Have this rank write its stacks to its file whenever it gets ``SIGNAL``. Raises OSError, KeyError for no rank."""
    path = file_of(int(os.environ["RANK"]))
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The place of a rank. ``frame``: the innermost of the user's own, else the innermost there is; "" if not known."""

    frame: str
    waits: bool = False


def places(ranks: Mapping[int, int], path_of: Callable[[int], Path]) -> dict[int, Whereabouts]:
    """Have the ranks (rank: pid) write down their stacks; where each of them is."""
    files = {rank: path for rank in sorted(ranks) if (path := path_of(rank)).exists()}
    sizes = {rank: path.stat().st_size for rank, path in files.items()}
    for process in identify(pid for pid in ranks.values() if _listens(pid)):
        send_signal(process, SIGNAL)
    time.sleep(PATIENCE_S)
    told = {rank: read_from(path, sizes[rank])[0] for rank, path in files.items()}
    return {rank: place_of("\n".join(told.get(rank, ()))) for rank in sorted(ranks)}


def place_of(stacks: str) -> Whereabouts:
    """Read the place from what ``faulthandler`` wrote: the main thread is the last one."""
    *_, main = re.split(r"^(?:Current thread|Thread) .*\n", stacks, flags=re.MULTILINE)
    frames = [m for line in main.splitlines() if (m := _FRAME.match(line)) is not None]
    if not frames:
        return Whereabouts("")
    waits = any(_WAITING.search(frame["file"]) for frame in frames[:6])
    own = next((frame for frame in frames if not _LIBRARY.search(frame["file"])), frames[0])
    text = f"{Path(own['file']).name}:{own['line']} in {own['name']}"
    return Whereabouts(text, waits)


def describe(places: Mapping[int, Whereabouts]) -> str:
    """Say which ranks are stuck: at most one line, whatever the number of ranks."""
    if not any(place.frame for place in places.values()):
        return ""
    stuck = [rank for rank, place in places.items() if not (place.frame and place.waits)]
    stuck = stuck or list(places)
    frames = dict.fromkeys(places[rank].frame for rank in stuck[:3] if places[rank].frame)
    where = f"stuck at {', '.join(frames)}" if frames else "not answering"
    ranks = f"rank{'s' * (len(stuck) > 1)} {', '.join(map(str, stuck))}"
    others = "; the others wait for it" if len(stuck) == 1 and len(places) > 1 else ""
    return f"{ranks} {'are' if len(stuck) > 1 else 'is'} {where}{others}"


def _listens(pid: int) -> bool:
    """Tell whether the process has a handler for ``SIGNAL``."""
    for line in (read_file(f"/proc/{pid}/status", 8192) or b"").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return False
