"""The judgement of a rehearsal: one trial that was paused, grown and shrunk, held against the same trial left alone.

The ranks of both have written down what they did between two reports (``worker/onlooker.py``). On the larger size and
after it the rehearsal puts the parameters back after every optimizer step, so that the reports of both sizes are of one
model and their metrics can be compared. ``judge`` words each mistake of a search with the line to change, and says for
each launch what was compared. Pure: rows in, a judgement out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpusched.doctor.findings import (
    APART,
    ASPECTS,
    METRICS,
    PARAMETERS,
    RATE,
    SAME,
    SAMPLES,
    Finding,
    Judgement,
    RehearsedLaunch,
    RehearsedTrial,
    Row,
    begins_elsewhere,
    differs,
    draws,
    equal,
    is_time,
    not_restored,
    strayed,
    unsteady,
)
from gpusched.doctor.resized import NOT_BOTH, compare_larger, compare_metrics, compare_rates
from gpusched.text import count


def judge(moved: RehearsedTrial, alone: RehearsedTrial) -> Judgement:
    """Return the mistakes that a search would make, and what was compared."""
    found, launches = Judgement(), moved.launches
    named = [(_when(launches, place), launch) for place, launch in enumerate(launches)]
    failed: set[str] = set()
    for when, launch in (*named, *(("left alone", one) for one in alone.launches)):
        if launch.error is not None and launch.error not in failed:
            failed.add(launch.error)
            text = f"{when} the script fails: {launch.error}".strip()
            found.findings.append(Finding("fails", text))
    last = [rows for launch in launches for rows in launch.reports][-1:]
    if unread := [name for rows in last for name in rows[0].get("unread", ())]:
        names = ", ".join(unread)
        text = (
            f"the script reads no {names}, so every trial trains alike: read them from trial.hparams, or pass "
            f'them on: args: ["--{unread[0]}=${{{unread[0]}}}"]'
        )
        found.findings.append(Finding("unread", text))
    if not launches:
        return found
    expected, first = alone.by_step, launches[0]
    repeats = not any(differs(rows, expected) for rows in first.reports)
    found.unsteady |= {name for rows in first.reports for name in unsteady(rows, expected)}
    if strange := [name for name in found.unsteady if not is_time(name)]:
        text = (
            f"{', '.join(sorted(strange))} of two runs of the same configuration differ and the parameters do not: a "
            f"time or a speed, rounding on a GPU, or drawn without a seed; not compared"
        )
        found.findings.append(Finding("not repeatable", text, is_error=False))
    if not repeats:
        text = (
            "two runs of the same configuration differ from the first report on: something draws random numbers "
            "that gpusched.init() has not seeded (call it before the model and the data are made), or reads what "
            "an earlier run has left; on a GPU some kernels add in any order"
        )
        found.findings.append(Finding("not repeatable", text, is_error=False))
    for place, ((_, before), (when, launch)) in enumerate(pairwise(named)):
        if launch.atoms == before.atoms == first.atoms:
            _Pause(when, first, launch, expected, repeats, found).compare()
        elif launch.atoms != first.atoms:
            compare_larger(when, before, launch, expected, found)
            compare_metrics(when, launch, launches[place + 2 : place + 3], found)
        else:
            for rows in launch.reports:
                if rows[0]["step"] in expected:
                    compare_rates(when, rows[0], expected[rows[0]["step"]][0], found)
            found.skip(when, RATE, NOT_BOTH)
    return found


def _when(launches: Sequence[RehearsedLaunch], place: int) -> str:
    """Name a launch by what came before."""
    atoms, base = launches[place].atoms, launches[0].atoms
    if not place:
        return ""
    if launches[place - 1].atoms == atoms:
        return "after a pause"
    return f"{'on' if atoms > base else 'back on'} {count(atoms, 'atom')}"


# ---------------------------------------------------------------- after a pause


@dataclass(slots=True)
class _Pause:
    """A launch at the same size, which trains on as if there had been no pause."""

    when: str
    first: RehearsedLaunch
    launch: RehearsedLaunch
    expected: Mapping[int, Sequence[Row]]
    repeats: bool
    found: Judgement

    def compare(self) -> None:
        known = [rows for rows in self.launch.reports if rows[0]["step"] in self.expected]
        for place, rows in enumerate(known):
            then = self.expected[rows[0]["step"]]
            self._rates(rows[0], then[0])
            self._samples(rows, then)
            if self.repeats:
                self._parameters(place, rows[0], then[0])
                self._metrics(rows[0], then[0])
        why = NOT_BOTH if self.repeats or not known else "two runs of one configuration differ"
        for aspect in ASPECTS:
            self.found.skip(self.when, aspect, why)

    def _rates(self, row: Row, then: Row) -> None:
        fixes = {
            "base": "give optimizer and scheduler to trial.track(opt=opt, schedule=schedule), or compute the rate "
            "from trial.step",
            "rates": "call trial.scale_lr(opt) before trial.track",
        }
        for name, fix in fixes.items():
            for mine, theirs in zip(row[name], then[name], strict=False):
                if not equal(mine, theirs):
                    text = f"the learning rate is {mine:.4g}, expected {theirs:.4g}: {fix}"
                    return self.found.wrong(self.when, RATE, text)
                self.found.same(self.when, RATE)
        return None

    def _samples(self, rows: Sequence[Row], then: Sequence[Row]) -> None:
        """Compare what was drawn, or else the first input; what a launch begins with again is lost."""
        step, found = rows[0]["step"], self.found
        for mine, theirs in zip(draws(rows), draws(then), strict=False):
            if mine is None or theirs is None:
                found.skip(self.when, SAMPLES, "too many are drawn to be written down")
            elif set(theirs.values()) != {1}:
                found.skip(self.when, SAMPLES, "they are drawn with replacement")
            elif mine == theirs:
                found.same(self.when, SAMPLES)
            elif lost := (theirs - mine).total():
                text = (
                    f"step {step} trains on other samples than without one ({lost} of {theirs.total()}): use "
                    f"trial.loader, which continues where the trial stopped, or begin an epoch with every report"
                )
                found.wrong(self.when, SAMPLES, text)
                return
        mine_first, their_first = rows[0]["inputs"][:1], then[0]["inputs"][:1]
        if not mine_first or not their_first:
            found.skip(self.when, SAMPLES, "no model was given a tensor")
        elif equal(mine_first[0], their_first[0]):
            found.same(self.when, SAMPLES)
        elif self.first.reports and any(
            equal(mine_first[0], first) for first in self.first.reports[0][0]["inputs"][:1]
        ):
            text = (
                f"step {step} begins with the data of the first launch again: every launch draws the same. Seed an "
                f"environment, a generator or a sampler's epoch by trial.step, or use trial.loader"
            )
            found.wrong(self.when, SAMPLES, text)
        elif found.outcome(self.when, SAMPLES) != "WRONG":
            fix = "use trial.loader, or seed the order by trial.step (sampler.set_epoch(epoch))"
            found.verdicts[self.when, SAMPLES] = ("same", "in another order")
            order = [[one["samples"] for one in each[0]["drawn"]] for each in (rows, then)]
            if order[0] and order[0] == order[1]:
                fix = (
                    "the samples come in the same order, and other values reach the model: the data are split at "
                    "random after trial.track (split them before it), or noise or augmentation draws from a generator "
                    "of its own (default_rng, torch.Generator): use the global one, or seed it by trial.step"
                )
                found.verdicts[self.when, SAMPLES] = ("not compared", "their values differ")
            elif not then[0]["drawn"]:
                fix = (
                    "no data loader drew it, so a replay buffer or an environment is lost, or a batch is drawn before "
                    "the loop: keep it in trial.state, or track gpusched.pickled(buffer)"
                )
                found.verdicts[self.when, SAMPLES] = ("not compared", "no data loader draws them")
            text = f"{self.when} step {step} begins with another batch than without one: {fix}"
            if not any(finding.kind == "order of samples" for finding in found.findings):
                found.findings.append(Finding("order of samples", text, is_error=False))

    @property
    def _has_other_samples(self) -> bool:
        kinds = {finding.kind for finding in self.found.findings}
        return self.found.outcome(self.when, SAMPLES) == "WRONG" or "order of samples" in kinds

    def _parameters(self, place: int, row: Row, then: Row) -> None:
        step, found = row["step"], self.found
        if not then["updates"]:
            return found.skip(self.when, PARAMETERS, "no optimizer has stepped")
        ends_apart = strayed(row["end"], then)
        if not place and begins_elsewhere(row, then):
            untrained = next(iter(self.expected.values()))[0]["start"]
            return found.wrong(
                self.when, PARAMETERS, not_restored(row, untrained), "parameters not restored"
            )
        if row["updates"] < then["updates"] / 2 and (not row["end"] or ends_apart > APART):
            return self._less_training(place, row, then)
        if not place and row["updates"] > then["updates"] and row["ranks"] == then["ranks"]:
            text = (
                f"{self.when} step {step} has {count(row['updates'], 'optimizer step')}, without one "
                f"{then['updates']}: steps of the loop are trained again at every launch. Report the steps that are "
                f"finished: trial.report(step=iteration + 1, ...) after the update"
            )
            found.findings.append(Finding("more training", text, is_error=False))
        if ends_apart <= APART:
            told = f"apart by {ends_apart:.1%} of their way" if ends_apart >= 0.001 else ""
            return found.same(self.when, PARAMETERS, told)
        if self._has_other_samples:
            return found.skip(self.when, PARAMETERS, "it trains on other samples")
        if found.outcome(self.when, RATE) == "WRONG":
            return found.skip(self.when, PARAMETERS, "the learning rate is another")
        text = (
            f"step {step} takes the parameters elsewhere than without one, from the same parameters at the same "
            f"rate: something that training depends on is not in the checkpoint. Give it to trial.track (the "
            f"optimizer, an average of weights, a GradScaler), or keep plain values in trial.state"
        )
        return found.wrong(self.when, PARAMETERS, text, "state not tracked")

    def _less_training(self, place: int, row: Row, then: Row) -> None:
        later = self.launch.reports[place + 1 :]
        if row["updates"] == 0 and place == 0 and any(rows[0]["updates"] for rows in later):
            text = (
                f"the script reports step {row['step']} before it has trained, so every launch skips as much training: "
                f"report after training, or say where training stands: trial.report(step=iteration, ...)"
            )
            return self.found.wrong(self.when, PARAMETERS, text, "report before training")
        text = (
            f"step {row['step']} has {count(row['updates'], 'optimizer step')}, without one {then['updates']}: "
            f"something that training needs is lost (a replay buffer, a counter). Keep it in trial.state, or in "
            f"trial.checkpoint_dir()"
        )
        return self.found.wrong(self.when, PARAMETERS, text, "less training")

    def _metrics(self, row: Row, then: Row) -> None:
        is_wrong = self.found.outcome(self.when, PARAMETERS) == "WRONG"
        if is_wrong or strayed(row["end"], then) > SAME:
            return self.found.skip(self.when, METRICS, "the parameters differ")
        left_out = self.found.unsteady
        names = [
            name
            for name in row["metrics"]
            if name in then["metrics"] and not is_time(name) and name not in left_out
        ]
        for name in names:
            mine, theirs = row["metrics"][name], then["metrics"][name]
            if not math.isclose(mine, theirs, rel_tol=1e-3, abs_tol=1e-6):
                if self._has_other_samples:
                    return self.found.skip(self.when, METRICS, "it trains on other samples")
                text = (
                    f"step {row['step']} reports {name} {mine:.6g}, without one {theirs:.6g}: something that it is "
                    f"computed from (a running mean, a counter, a variable) is not in the checkpoint; keep it in "
                    f"trial.state"
                )
                return self.found.wrong(self.when, METRICS, text, "metric")
        return self.found.same(self.when, METRICS, ", ".join(names))
