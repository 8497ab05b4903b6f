"""What does a resize cost the training? Idle time: from the last step before it to the first step after it.

    python scripts/bench_resize.py                      everything, about five minutes on an idle machine
    python scripts/bench_resize.py moves large          only these parts

Parts, each with a trial over gloo that has ``--state-mb`` of state and whose steps take 50 ms; JSON lines, the results
last:

* ``moves``: 1 -> 2 -> 4 -> 1 ranks (policy ``Rehearsal``), beside the same done without gpusched (save, stop, cold
  ``torchrun``, restore) and what it is made of: a warm launch, a save and a load, each measured alone in the same run.
* ``large``: 1 -> 2 -> 4 ranks with ``--large-mb``.
* ``pause``: from the last report to "paused", plus from "unpause" to the next step.
* ``saves``: a step of real arithmetic with a new best at every step (so checkpoints are saved as often as the recipe's
  3% allow): the time that the steps which a save overlaps take more than those around them, as a share of the run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from gpusched.core.events import Reported
from gpusched.journal.rows import event_from
from gpusched.policies.rehearsal import REHEARSAL

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

TRIAL = """
import time, torch, gpusched
trial = gpusched.init()
model = trial.wrap(torch.nn.Linear(1024, {rows}, bias=False))
trial.track(model=model)
x = torch.ones(1, 1024)
stamps = open("stamps", "a", buffering=1) if trial.rank == 0 else None
for step in trial.steps():
    began = time.time()
    time.sleep(0.05)
    if stamps:
        print(began, time.time(), trial.world_size, file=stamps)
    trial.report(score=step)
"""

WORKING = """
import torch, gpusched
trial = gpusched.init()
model = torch.nn.Linear(1024, {rows}, bias=False)
trial.track(model=model)
x = torch.ones(16, 1024)
for step in trial.steps():
    for _ in range({rounds}):
        with torch.no_grad():
            model(x)
    trial.report(score=step)
"""

PLAIN = """
import sys, time, os, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, {rows}, bias=False))
if os.path.exists(sys.argv[1]):
    model.load_state_dict(torch.load(sys.argv[1], weights_only=True))
time.sleep(0.05)
if dist.get_rank() == 0:
    print("first", time.time(), flush=True)
    print("last", time.time(), flush=True)
    torch.save(model.state_dict(), sys.argv[1])
dist.barrier()
dist.destroy_process_group()
"""

RECIPE = (
    "script: trial.py\nmetric: score\ndeadline: {deadline}s\nspace: {{{space}}}\nmax_trials: 1\n"
    "policy: {policy}\ndevices: cpu:{atoms}\n"
)
ROW_BYTES = 4096
Move = tuple[str, float]
Entry = tuple[float, str, dict[str, Any], list[tuple[str, dict[str, Any]]]]


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def median(values: list[float]) -> float:
    return round(statistics.median(values), 3)


# ---------------------------------------------------------------- with gpusched


def run(
    folder: Path,
    script: str,
    policy: str,
    atoms: int,
    *,
    space: str = "x: {uniform: [0, 1]}",
    deadline: int = 240,
) -> Path:
    """Run a trial to its end; its experiment's folder."""
    (folder / "trial.py").write_text(script)
    recipe = RECIPE.format(policy=policy, atoms=atoms, space=space, deadline=deadline)
    (folder / "r.yaml").write_text(recipe)
    done = gpusched(folder, "run", "r.yaml", "--json")
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return experiment_in(folder)


def gpusched(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpusched", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def experiment_in(folder: Path) -> Path:
    (found,) = (folder / "runs").glob("r-*")
    return found


def entries(experiment: Path) -> Iterator[Entry]:
    """(at, kind, event, commands) of a journal."""
    journal = sqlite3.connect(experiment / "journal.db")
    rows = journal.execute("SELECT at, kind, body, commands FROM events ORDER BY seq").fetchall()
    journal.close()
    for at, kind, body, commands in rows:
        fields = json.loads(body)
        if kind == "Reported":
            event = event_from(kind, at, body)
            assert isinstance(event, Reported)
            fields |= asdict(event.report)
        yield at, kind, fields, json.loads(commands or "[]")


def resizes(stamps: Path) -> list[Move]:
    """(``1->2``, seconds from the end of the last step before it to the beginning of the first after it) of every
    resize, as rank 0 has stamped its steps."""
    found: list[Move] = []
    before, ended = 0, 0.0
    for line in stamps.read_text().splitlines():
        began_at, ended_at, size = line.split()
        if before not in (0, int(size)):
            found.append((f"{before}->{size}", float(began_at) - ended))
        before, ended = int(size), float(ended_at)
    return found


def ours(state_mb: int, sizes: list[int]) -> list[Move]:
    with tempfile.TemporaryDirectory() as folder:
        policy = f'{{name: "{REHEARSAL}", sizes: {sizes}, steps: 12}}'
        script = TRIAL.format(rows=state_mb * 2**20 // ROW_BYTES)
        run(Path(folder), script, policy, max(sizes))
        return resizes(Path(folder) / "stamps")


def pause_and_resume(state_mb: int) -> float:
    """Seconds without training, but for the person's own thinking."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = TRIAL.format(rows=state_mb * 2**20 // ROW_BYTES)
        (folder / "trial.py").write_text(script)
        recipe = RECIPE.format(
            policy="{name: fifo, R: 100000}", atoms=1, deadline=120, space="x: {uniform: [0, 1]}"
        )
        (folder / "r.yaml").write_text(recipe)
        done = gpusched(folder, "run", "r.yaml", "--detach")
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        experiment = experiment_in(folder)
        _wait(lambda: _trial(folder)["step"] >= 20)
        gpusched(folder, "pause", "0")
        _wait(lambda: _trial(folder)["state"] == "paused")
        before = _trial(folder)["step"]
        gpusched(folder, "unpause", "0")
        _wait(lambda: _trial(folder)["step"] > before)
        gpusched(folder, "cancel")
        _wait(lambda: json.loads(gpusched(folder, "status", "--json").stdout)["state"] != "running")
        return _idle_of_pause(experiment)


def _trial(folder: Path) -> dict[str, Any]:
    view = gpusched(folder, "status", "--json")
    trials: list[dict[str, Any]] = json.loads(view.stdout or "{}").get("trials", [])
    return trials[0] if trials else {"step": 0, "state": "pending"}


def _wait(met: Callable[[], bool], limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while not met():
        if time.monotonic() > until:
            sys.exit("the trial does not do as it is told")
        time.sleep(0.1)


def _idle_of_pause(experiment: Path) -> float:
    last_at = exited_at = asked_at = 0.0
    for at, kind, event, _ in entries(experiment):
        if kind == "TrialExited" and not exited_at:
            exited_at = at
        elif kind == "UserAsked" and event["verb"] == "unpause":
            asked_at = at
        elif kind == "Reported" and not exited_at:
            last_at = at
        elif kind == "Reported" and asked_at:
            step_s = float(event.get("step_time_s", 0.0))
            return exited_at - last_at + at - asked_at - step_s
    sys.exit("no step after the pause")


# ---------------------------------------------------------------- without gpusched


def plain(state_mb: int, sizes: list[int]) -> list[Move]:
    """The same with cold ``torchrun``: from the last step of one size to the first of the next."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script, state = folder / "plain.py", folder / "state.pt"
        script.write_text(PLAIN.format(rows=state_mb * 2**20 // ROW_BYTES))
        found, last, before = [], 0.0, 0
        for size in sizes:
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)]
            command += ["--local-addr", "127.0.0.1", str(script), str(state)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            out = subprocess.run(command, capture_output=True, text=True, env=environment).stdout
            times = dict(line.split() for line in out.splitlines() if line[:4] in ("firs", "last"))
            if before:
                found.append((f"{before}->{size}", float(times["first"]) - last - 0.05))
            last, before = float(times["last"]), size
        return found


# ---------------------------------------------------------------- what it is made of


def launches(sizes: list[int]) -> dict[int, float]:
    """Seconds from a decision to the first step of a trial with no state, by size, on a warm server."""
    with tempfile.TemporaryDirectory() as name:
        policy = f'{{name: "{REHEARSAL}", sizes: {sizes}, steps: 12}}'
        script = TRIAL.format(rows=1)
        experiment = run(Path(name), script, policy, max(sizes))
        launched: dict[int, tuple[float, int]] = {}
        found: dict[int, float] = {}
        for at, kind, event, commands in entries(experiment):
            if kind == "Reported" and event["incarnation"] in launched:
                began, size = launched.pop(event["incarnation"])
                found[size] = at - began - event.get("step_time_s", 0.0)
            for what, fields in commands:
                if what == "Launch" and fields["incarnation"] > 1:
                    launched[fields["incarnation"]] = (at, len(fields["devices"]))
        return found


def save_and_load(state_mb: int, rounds: int = 5) -> tuple[float, float]:
    """Median seconds of a checkpoint's commit and of its restoration, one rank, nothing else going on."""
    import torch

    from gpusched.worker.group import Group
    from gpusched.worker.saving import Saver

    model = torch.nn.Linear(1024, state_mb * 2**20 // ROW_BYTES, bias=False)
    saves, loads = [], []
    with tempfile.TemporaryDirectory() as folder:
        saver = Saver(Group(0, 1), Path(folder), None, 0, model.state_dict)
        for step in range(1, rounds + 1):
            began = time.monotonic()
            saver.save((step, step))
            saves.append(time.monotonic() - began)
            began = time.monotonic()
            found = saver.newest()
            assert found is not None
            model.load_state_dict(found.load("state.pt"))
            loads.append(time.monotonic() - began)
    return statistics.median(saves), statistics.median(loads)


# ---------------------------------------------------------------- the parts


def part_moves(args: argparse.Namespace) -> None:
    sizes = [int(size) for size in args.sizes.split(",")]
    times: dict[str, dict[str, list[float]]] = {"ours": {}, "plain": {}, "launch": {}}
    parts: list[tuple[float, float]] = []
    for _ in range(args.repeat):
        for how, measure in (("ours", ours), ("plain", plain)):
            for move, seconds in measure(args.state_mb, sizes):
                times[how].setdefault(move, []).append(seconds)
                say(part="moves", how=how, move=move, idle_s=round(seconds, 3))
        for size, seconds in launches(sizes).items():
            times["launch"].setdefault(str(size), []).append(seconds)
        parts.append(save_and_load(args.state_mb))
    save_s, load_s = (statistics.median(part) for part in zip(*parts, strict=True))
    asked = [f"{before}->{after}" for before, after in itertools.pairwise(sizes)]
    for move in asked:  # a growth that slows the trial down is taken back, which is another move
        found = times["ours"][move]
        idle_s, cold_s = median(found), median(times["plain"][move])
        launch = times["launch"].get(move.partition("->")[2], [])
        made_of = {
            "launch_s": median(launch) if launch else None,
            "save_s": round(save_s, 3),
            "load_s": round(load_s, 3),
        }
        total_s = sum(value for value in made_of.values() if value is not None)
        say(
            part="moves",
            move=move,
            state_mb=args.state_mb,
            idle_s=idle_s,
            cold_s=cold_s,
            ratio=round(cold_s / idle_s, 1),
            **made_of,
            times_its_parts=round(idle_s / total_s, 2),
        )


def part_large(args: argparse.Namespace) -> None:
    found: dict[str, list[float]] = {}
    for _ in range(min(args.repeat, 2)):
        for move, seconds in ours(args.large_mb, [1, 2, 4]):
            found.setdefault(move, []).append(seconds)
    for move, values in found.items():
        say(part="large", move=move, state_mb=args.large_mb, idle_s=median(values))


def part_pause(args: argparse.Namespace) -> None:
    values = [pause_and_resume(args.state_mb) for _ in range(args.repeat)]
    say(part="pause", state_mb=args.state_mb, idle_s=median(values))


def part_saves(args: argparse.Namespace) -> None:
    """Time that each save adds to the steps it overlaps, as a share of the run: drifts of the machine cancel out.

    A step is compared with the median of the steps around the save that no save overlaps.
    """
    shares: list[float] = []
    added: list[float] = []
    for _ in range(args.repeat):
        with tempfile.TemporaryDirectory() as folder:
            script = WORKING.format(rows=args.state_mb * 2**20 // ROW_BYTES, rounds=10)
            policy = f"{{name: fifo, R: {args.save_steps}}}"
            where = run(Path(folder), script, policy, 1, deadline=600)
            found = list(entries(where))
            reports = [at for at, kind, _, _ in found if kind == "Reported"]
            saves = [
                (at - body["save_s"], at)
                for at, kind, body, _ in found
                if kind == "CheckpointSaved"
            ]
        steps = list(itertools.pairwise(reports))
        more = [
            _added(steps, save) for save in saves[1:-1]
        ]  # the first is of the first step, the last of the end
        added += more
        shares.append(sum(more) / (reports[-1] - reports[0]))
        say(part="saves", saves=len(more), share=round(shares[-1], 4))
    spread = statistics.stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else 0.0
    middle = statistics.mean(shares)
    say(
        part="saves",
        state_mb=args.state_mb,
        added_s_a_save=median(added) if added else None,
        slowdown=round(middle, 4),
        interval=[round(middle - 2 * spread, 4), round(middle + 2 * spread, 4)],
        runs=len(shares),
    )


def _added(steps: list[tuple[float, float]], save: tuple[float, float]) -> float:
    """Seconds that the steps which a save overlaps took more than those around them; the save begins with a report."""
    began, ended = save
    inside = [stop - start for start, stop in steps if start < ended and stop > began]
    around = [
        stop - start
        for start, stop in steps
        if began - 3.0 < stop <= began or ended <= start < ended + 3.0
    ]
    return sum(inside) - len(inside) * statistics.median(around) if around else 0.0


PARTS = {"moves": part_moves, "large": part_large, "pause": part_pause, "saves": part_saves}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--state-mb", type=int, default=40)
    parser.add_argument("--large-mb", type=int, default=400)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--sizes", default="1,2,4,1")
    parser.add_argument("--save-steps", type=int, default=600, help="steps of a run of `saves`")
    args = parser.parse_args()
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    for name in args.parts or PARTS:
        PARTS[name](args)


if __name__ == "__main__":
    main()
