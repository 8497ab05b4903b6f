"""Is the predicted gain of a resize what is then measured? Over 50 resizes of a live trial.

    python scripts/bench_gain.py                         50 resizes, four minutes

One trial whose steps sleep as Amdahl's law says (``--serial`` of the work does not scale, each step with ``--noise``),
walked through sizes from 1 to 4 by policy ``profile``. For each resize the journal is replayed up to the decision, and
HyperSched's line 23 is asked with what the search knew then: over the time until the next decision,

    predicted = ((T - To) * s(a') - T * s(a)) / Ta          measured = steps made - T / (step time before)

Steps in part are counted as such. The first ``--learn`` resizes are played but not counted. One JSON line a resize,
then the summary: median relative error, and the share of resizes whose sign was right.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench_resize import experiment_in, gpusched, say

from gpusched.core.commands import Launch, Yield
from gpusched.core.events import Reported
from gpusched.driver import assemble
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.log import Journal

TRIAL = """
import random, time
import gpusched
trial = gpusched.init()
trial.track()
chance = random.Random(trial.seed)
for step in trial.steps():
    scale = {serial} + (1 - {serial}) / trial.world_size
    time.sleep({step_s} * scale * chance.gauss(1, {noise}))
    trial.report(score=step)
"""
RECIPE = (
    "script: trial.py\nmetric: score\ndeadline: 60m\nspace: {{x: {{uniform: [0, 1]}}}}\nmax_trials: 1\n"
    "policy: {{name: profile, sizes: {sizes}, steps: {steps}}}\ndevices: cpu:4\n"
)


@dataclass
class Stretch:
    """The time at one size: from the decision for it to the decision for the next."""

    decided_at: float
    before: int
    after: int
    step_before_s: float
    overhead_s: float
    s_before: float
    s_after: float
    step_on_one_atom_s: float
    ends_at: float = 0.0
    steps: int = 0
    step_s: float = 0.0

    def gains(self) -> tuple[float, float]:
        """Predicted and measured, in steps."""
        time_s = self.ends_at - self.decided_at
        with_s = (time_s - self.overhead_s) * self.s_after
        predicted = (with_s - time_s * self.s_before) / self.step_on_one_atom_s
        return predicted, self.steps - time_s / self.step_before_s


def stretches(paths: ExperimentPaths) -> Iterator[Stretch]:
    """Replay the journal; what was known at every resize and what came of it."""
    assembled = assemble.assemble(assemble.read_recipe(paths), paths)
    experiment = assembled.experiment
    journal = Journal.open(paths.journal)
    state = experiment.state
    state.rules = dataclasses.replace(state.rules, **journal.meta.get("rules", {}))
    now: Stretch | None = None
    times: list[float] = []
    for entry in journal.entries():
        commands = experiment.handle(entry.event)
        if isinstance(entry.event, Reported) and entry.event.report.step_time_s is not None:
            times.append(entry.event.report.step_time_s)
            if now is not None:
                now.steps += 1
        for command in commands:
            trial = state.trials.get(0)
            if isinstance(command, Yield) and trial is not None and trial.after is not None:
                if now is not None:
                    now.ends_at = state.now
                    yield now
                if not trial.after.is_resize:
                    journal.close()
                    return
                speed = state.speed
                now = Stretch(
                    state.now,
                    trial.atoms,
                    trial.after.atoms,
                    statistics.mean(times),
                    speed.overhead,
                    speed.s(trial.atoms),
                    speed.s(trial.after.atoms),
                    speed.step_on_one_atom_s or 1.0,
                )
            elif isinstance(command, Launch):
                times = []
    journal.close()


def walk(count: int, seed: int) -> list[int]:
    """So many sizes, none twice in a row."""
    chance = random.Random(seed)
    sizes = [1]
    while len(sizes) <= count:
        sizes.append(chance.choice([size for size in (1, 2, 3, 4) if size != sizes[-1]]))
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--resizes", type=int, default=50)
    parser.add_argument("--learn", type=int, default=4, help="resizes before those that count")
    parser.add_argument("--steps", type=int, default=30, help="steps at each size")
    parser.add_argument("--step-s", type=float, default=0.2, help="a step on one atom")
    parser.add_argument("--serial", type=float, default=0.08)
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        (folder / "trial.py").write_text(
            TRIAL.format(serial=args.serial, step_s=args.step_s, noise=args.noise)
        )
        sizes = walk(args.learn + args.resizes, args.seed)
        (folder / "r.yaml").write_text(RECIPE.format(sizes=sizes, steps=args.steps))
        done = gpusched(folder, "run", "r.yaml", "--json", "--seed", str(args.seed))
        if done.returncode:
            sys.exit(done.stdout[-2000:] + done.stderr)
        found = list(stretches(ExperimentPaths(experiment_in(folder))))[args.learn :]
    errors, right = [], 0
    for one in found:
        predicted, measured = one.gains()
        errors.append(abs(predicted - measured) / abs(measured))
        right += (predicted > 0) == (measured > 0)
        move = f"{one.before}->{one.after}"
        say(move=move, predicted=round(predicted, 2), measured=round(measured, 2))
    say(
        resizes=len(found),
        median_error=round(statistics.median(errors), 3),
        sign_right=round(right / len(found), 3),
    )


if __name__ == "__main__":
    main()
