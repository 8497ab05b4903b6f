"""How many files and calls does gpusched need on four of its ways? Traced in every process with ``sys.setprofile``.

    python scripts/ways.py               a search of one trial on two CPU slots, about half a minute; JSON lines

* ``report``: a steady report on one rank, from ``trial.report`` to its return (median of several reports).
* ``launch``: ``gpusched run`` until the first rank begins with the script; command and daemon.
* ``resume``: ``gpusched resume`` after the daemon was killed, until the executor has reconciled; command and daemon.
* ``resize``: from 1 rank to 2, from the last report on 1 to the answer of the first report on 2
  (the daemon alone, and all processes).

A line has the processes that took part (``server``: warm server and shims), the files
of ``gpusched/`` in which a function was called, the calls, and the changes of file: calls in another file than the call
before them in the same thread. Importing a module is no call.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "gpusched"

#: Imported by every interpreter that starts, as ``sitecustomize``; forked processes inherit the profile function.
TRACER = r"""
import os, sys, threading, time
FOLDER, PACKAGE = os.environ["WAYS_FOLDER"], os.environ["WAYS_PACKAGE"]
names, lines, last = {}, [], [0]

def flush():
    with open(f"{FOLDER}/{os.getpid()}.calls", "a") as file:
        file.writelines(lines)
    lines.clear()

def note(frame, what, argument):
    code = frame.f_code
    name = names.get(code)
    if name is None:
        own = code.co_filename.startswith(PACKAGE) and code.co_flags & 1  # a module or a class has no such flag
        name = names[code] = f"{code.co_filename[len(PACKAGE) + 1:]}:{code.co_name}" if own else ""
    if not name or not (what == "call" or what == "return" and code.co_name == "reconcile"):
        return
    now = time.monotonic_ns()
    lines.append(f"{now} {threading.get_ident()} {what} {name}\n")
    if now - last[0] > 2_000_000 or len(lines) > 500:
        last[0] = now
        flush()

def forked():
    lines.clear()

os.register_at_fork(after_in_child=forked)
with open(f"{FOLDER}/{os.getpid()}.argv", "w") as file:
    file.write(" ".join(sys.orig_argv))
threading.setprofile(note)
sys.setprofile(note)
"""

SCRIPT = """
import time, torch, gpusched
trial = gpusched.init()
model = trial.wrap(torch.nn.Linear(8, 1))
trial.track(model=model)
stamps = open("stamps", "a", buffering=1) if trial.rank == 0 else None
if stamps:
    print("began", time.monotonic_ns(), trial.world_size, file=stamps)
for step in trial.steps():
    time.sleep(0.3)
    if stamps:
        print("report", time.monotonic_ns(), trial.world_size, file=stamps)
    trial.report(score=step)
    if stamps:
        print("answer", time.monotonic_ns(), trial.world_size, file=stamps)
"""
RECIPE = """
script: trial.py
metric: score
deadline: 10m
space: {x: {uniform: [0, 1]}}
max_trials: 1
policy: {name: hypersched, R: 100000}
scaling: linear
devices: cpu:2
"""
#: After a report's answer the daemon may still have something to do about it; a step takes 300 ms.
AFTER_NS = 100_000_000
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Call:
    """A call of a function of ``gpusched/``; ``at`` in ns of the monotonic clock."""

    at: int
    process: int
    role: str
    thread: str
    what: str
    file: str
    function: str


@dataclass(frozen=True)
class Stamp:
    """An instant that rank 0 noted; ``size``: ranks of its launch."""

    what: str
    at: int
    size: int


def calls(folder: Path) -> list[Call]:
    """Return every call of all processes, in order of time."""
    found = []
    for path in folder.glob("*.calls"):
        pid = int(path.stem)
        argv = folder / f"{pid}.argv"
        command = argv.read_text() if argv.exists() else ""
        role = "server" if "runtime.warm" in command else "command" if command else ""
        role = "daemon" if "daemon.start" in command else role
        for line in path.read_text().splitlines():
            at, thread, what, name = line.split(" ", 3)
            file, _, function = name.rpartition(":")
            # A shim and its ranks have no command line of their own: a rank is what has begun with the script's side.
            if not command and role != "rank":
                role = "rank" if file.startswith("worker/") else "server"
            found.append(Call(int(at), pid, role, thread, what, file, function))
    return sorted(found, key=lambda call: call.at)


def summary(way: str, took_part: list[Call]) -> dict[str, object]:
    """Count files, calls and changes of file."""
    before: dict[tuple[int, str], str] = {}
    changes = 0
    for call in took_part:
        whose = call.process, call.thread
        changes += before.get(whose, call.file) != call.file
        before[whose] = call.file
    return {
        "way": way,
        "processes": sorted({call.role for call in took_part}),
        "files": len({call.file for call in took_part}),
        "calls": len(took_part),
        "changes": changes,
    }


def between(found: list[Call], began: int, ended: int, *roles: str) -> list[Call]:
    return [
        call
        for call in found
        if began <= call.at <= ended and call.role in roles and call.what == "call"
    ]


def wait_for(stamps: Path, size: int, answers: int) -> list[Stamp]:
    """Return the stamps once so many reports on so many ranks have been answered."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        seen = list(read(stamps))
        if sum(stamp.what == "answer" and stamp.size == size for stamp in seen) >= answers:
            return seen
        time.sleep(0.1)
    sys.exit(f"no {answers} reports on {size} ranks")


def read(stamps: Path) -> Iterator[Stamp]:
    for line in stamps.read_text().splitlines() if stamps.exists() else ():
        what, at, size = line.split()
        yield Stamp(what, int(at), int(size))


def search(folder: Path) -> tuple[list[Stamp], int, int]:
    """Run the search; return the stamps, when it was started, and when it was resumed."""
    for name, text in (("trial.py", SCRIPT), ("r.yaml", RECIPE), ("sitecustomize.py", TRACER)):
        (folder / name).write_text(text)
    (folder / "calls").mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder}:{PACKAGE.parent}",
        "WAYS_FOLDER": str(folder / "calls"),
        "WAYS_PACKAGE": str(PACKAGE),
    }

    def gpusched(*words: str) -> None:
        command = [sys.executable, "-m", "gpusched", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)

    started = time.monotonic_ns()
    gpusched("run", "r.yaml", "--detach")
    stamps = wait_for(folder / "stamps", 2, 4)
    (experiment,) = (folder / "runs").glob("r-*")
    os.kill(json.loads((experiment / "lock").read_text())["pid"], signal.SIGKILL)
    time.sleep(1.0)
    resumed = time.monotonic_ns()
    gpusched("resume", "--detach")
    wait_for(folder / "stamps", 2, 10)
    time.sleep(1.0)
    gpusched("cancel")
    return stamps, started, resumed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--files", action="store_true", help="name the files of each way")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        stamps, started, resumed = search(Path(name))
        found = calls(Path(name) / "calls")
    began = next(stamp.at for stamp in stamps if stamp.what == "began")
    reports = [s for s in stamps if s.what == "report" and s.size == 1]
    answers = [s for s in stamps if s.what == "answer" and s.size == 1]
    steady = [
        between(found, report.at, answer.at + AFTER_NS, "rank", "daemon")
        for report, answer in list(zip(reports, answers, strict=False))[1:-1]
    ]
    middle = statistics.median_low(len(way) for way in steady)
    first_on_two = next(s.at for s in stamps if s.what == "answer" and s.size == 2)
    reconciled = next(call.at for call in found if call.what == "return" and call.at > resumed)
    ways = {
        "report": next(way for way in steady if len(way) == middle),
        "launch": between(found, started, began, "command", "daemon"),
        "resume": between(found, resumed, reconciled, "command", "daemon"),
        "resize": between(found, reports[-1].at, first_on_two, "daemon"),
        "resize, all processes": between(
            found, reports[-1].at, first_on_two, "daemon", "server", "rank"
        ),
    }
    for way, took_part in ways.items():
        line = summary(way, took_part)
        if args.files:
            line["names"] = sorted({call.file for call in took_part})
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
