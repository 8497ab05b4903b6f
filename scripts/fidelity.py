"""Does the simulator tell the truth? The same workload run for real, and simulated with what was measured there.

    python scripts/fidelity.py [--seeds N]

For each seed a real search: the daemon, warm forks, process groups over gloo that sleep instead of training
(``fidelity_trial.py``, HyperSched's Score(k)), on CPU devices, more of them than cores, since sleeping needs none. What
it measured (start of the daemon, launch, resize, save, exit, release, the time between two reports on 1, 2, 3 .. atoms)
is given to the simulator, which runs the same configurations under the same policy. Compared are the best score at the
deadline and when a first trial came to each rung. HyperDrive's simulator (Middleware'17, 7.1) was within 13%.

Prints a JSON line a seed, then one over all; exit code 1 if anything differs by more than 5%. Four and a half minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpusched.core import speed
from gpusched.core.commands import Launch
from gpusched.core.events import CheckpointSaved, Reported
from gpusched.core.rung import milestones
from gpusched.core.trial import NEVER
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal import rows, timeline
from gpusched.sim.continuing import measured_delays
from gpusched.sim.executor import SimExecutor
from gpusched.sim.physics import Delays
from gpusched.sim.setup import Setup
from gpusched.sim.study import simulate
from gpusched.sim.workload import Synthetic

TRIAL = Path(__file__).with_name("fidelity_trial.py")
WITHIN = 0.05
ATOMS, DEADLINE_S, STEP_S = 4, 50.0, 0.5
POLICY, OPTIONS = "hypersched", {"r": 5, "R": 500, "eta": 4.0}


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of a live run. ``start_s``: until the daemon could launch. ``step_s``: between reports, by atoms."""

    start_s: float
    delays: Delays
    step_s: Mapping[int, float]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    seeds = parser.parse_args().seeds
    with tempfile.TemporaryDirectory() as scratch:
        found = [one(Path(scratch), seed) for seed in range(seeds)]
    errors = [line["error"] for line in found]
    total = {
        "seeds": seeds,
        "best": _spread([error["best"] for error in errors]),
        "rungs": {
            rung: _spread([error["rungs"][rung] for error in errors if rung in error["rungs"]])
            for rung in dict.fromkeys(rung for error in errors for rung in error["rungs"])
        },
    }
    worst = max(abs(error) for line in errors for error in (line["best"], *line["rungs"].values()))
    missed = [line["seed"] for line in found if line["only_live"] or line["only_simulated"]]
    print(json.dumps({**total, "worst": round(worst, 4), "rungs_reached_by_one_only": missed}))
    return int(worst > WITHIN or bool(missed))


def one(runs: Path, seed: int) -> dict[str, Any]:
    """A live run, what it measured, and its simulation."""
    folder = live(runs, seed)
    record = timeline.read(ExperimentPaths(folder).journal)
    measured = measure(ExperimentPaths(folder), measured_delays(record))
    rungs = _rungs()
    came: dict[int, float] = {}
    for trial in record.trials.values():
        for at, step, _ in trial.curve:
            if step in rungs:
                came[step] = min(at, came.get(step, at))
    best = json.loads((folder / "best" / "metric.json").read_text())["value"]
    simulated, simulated_when = imagined(seed, measured)
    line = {
        "seed": seed,
        "live": {"best": best, "trials": len(record.trials), "rungs": came},
        "simulated": {
            "best": simulated.best,
            "trials": simulated.trials,
            "rungs": simulated_when,
        },
        "measured": asdict(measured),
        "error": {
            "best": _error(simulated.best, best),
            "rungs": {r: _error(at, came[r]) for r, at in simulated_when.items() if r in came},
        },
        "only_live": [rung for rung in came if rung not in simulated_when],
        "only_simulated": [rung for rung in simulated_when if rung not in came],
    }
    print(json.dumps(line), flush=True)
    return line


# ---------------------------------------------------------------- for real


def live(runs: Path, seed: int) -> Path:
    """The folder of a finished search."""
    space = {**Synthetic.space, "step_s": STEP_S}
    recipe = {
        "name": f"fidelity-{seed}",
        "script": str(TRIAL),
        "deadline": f"{DEADLINE_S:g}s",
        "metric": "score",
        "space": space,
        "policy": {"name": POLICY, **OPTIONS},
        "devices": f"cpu:{ATOMS}",
        "scaling": "linear",
        "seed": seed,
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(recipe, file)
        file.flush()
        command = [sys.executable, "-m", "gpusched", "run", file.name, "--dir", str(runs), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"the live run of seed {seed} failed: {done.stderr}{done.stdout[-2000:]}")
    (folder,) = runs.glob(f"fidelity-{seed}-*")
    return folder


def measure(paths: ExperimentPaths, medians: Delays) -> Measured:
    """Means, since what is rare and long counts in a sum as well; of what is short the medians."""
    began: dict[tuple[int, int], tuple[float, int]] = {}
    last: dict[tuple[int, int], float] = {}
    gaps: dict[int, list[float]] = {}
    seen: set[tuple[int, int]] = set()
    #: (begun at, took, incarnation, atoms) of each launch that came to a report.
    launches: list[tuple[float, float, int, int]] = []
    for entry in rows.read(paths.journal):
        event = entry.event
        for launch in entry.commands:
            if isinstance(launch, Launch):
                began[launch.trial, launch.incarnation] = event.at, len(launch.devices)
        if isinstance(event, CheckpointSaved):
            last.pop((event.trial, event.incarnation), None)  # it stood still meanwhile
        if not isinstance(event, Reported):
            continue
        key = event.trial, event.incarnation
        begun_s, atoms = began[key]
        if key in last:
            gaps.setdefault(atoms, []).append(event.at - last[key])
        elif key not in seen:
            seen.add(key)
            took_s = event.at - begun_s - event.report.step_time_s
            launches.append((begun_s, took_s, event.incarnation, atoms))
        last[key] = event.at
    step_s = {atoms: statistics.fmean(found) for atoms, found in sorted(gaps.items())}
    start_s, delays = _launches(launches)
    return Measured(start_s, replace(medians, **delays), step_s)


def _launches(launches: list[tuple[float, float, int, int]]) -> tuple[float, dict[str, float]]:
    """How long it took until the daemon could launch, and the delays of launches from then on."""
    begun_s = min(at for at, *_ in launches)
    # The first launches wait until the warm server has imported what it imports.
    at_once = [took_s for at, took_s, *_ in launches if at == begun_s]
    fresh = [took_s for at, took_s, n, _ in launches if n == 1 and at > begun_s] or at_once
    launch_s = statistics.fmean(fresh)
    again = [took_s for _, took_s, n, atoms in launches if n > 1 and atoms == 1] or fresh
    resize_s = statistics.fmean(again)
    # Of all launches on several atoms together: what they took beyond one atom, over their further atoms. A mean of
    # each one's own slope would count a slow launch on two atoms threefold on four.
    more = [(took_s - resize_s, atoms - 1) for _, took_s, _, atoms in launches if atoms > 1]
    further = sum(count for _, count in more)
    delays = {
        "launch_s": launch_s,
        "resize_s": resize_s,
        "launch_per_atom_s": max(0.0, sum(took_s for took_s, _ in more) / max(1, further)),
    }
    return max(0.0, begun_s + statistics.fmean(at_once) - launch_s), delays


# ---------------------------------------------------------------- in virtual time


@dataclass(frozen=True, kw_only=True)
class AsMeasured(Setup):
    """A simulated run whose steps are as much faster on several atoms as they were."""

    speedup: Mapping[int, float]

    def machine(self) -> SimExecutor:
        scaling = speed.table(self.speedup)
        return SimExecutor(
            self.load(), self.atoms, scaling=scaling, delays=self.delays, seed=self.seed
        )


def imagined(seed: int, measured: Measured) -> tuple[Any, dict[int, float]]:
    """The same search simulated, and when a first trial came to each rung."""
    one_s = measured.step_s[1]
    setup = AsMeasured(
        policy=POLICY,
        options=OPTIONS,
        workload=f"synthetic:{one_s!r}",
        atoms=ATOMS,
        deadline_s=DEADLINE_S - measured.start_s,
        seed=seed,
        speedup={atoms: one_s / step_s for atoms, step_s in measured.step_s.items()},
        delays=measured.delays,
    )
    first: dict[int, float] = {}

    def observer(event: Any, _: Any) -> None:
        if isinstance(event, Reported):
            first.setdefault(event.step, event.at + measured.start_s)

    result = simulate(setup, observer=observer)
    return result, {rung: first[rung] for rung in _rungs() if rung in first}


def _rungs() -> list[int]:
    every = milestones(OPTIONS["r"], OPTIONS["eta"])
    return [*itertools.takewhile(lambda rung: rung < OPTIONS["R"], every)]


# ---------------------------------------------------------------- words


def _error(simulated: float, live: float) -> float:
    return round(simulated / live - 1.0, 4)


def _spread(errors: list[float]) -> dict[str, float]:
    return {
        "mean": round(statistics.fmean(errors), 4),
        "worst": max(errors, key=abs, default=NEVER),
        "seeds": len(errors),
    }


if __name__ == "__main__":
    sys.exit(main())
