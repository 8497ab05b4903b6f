"""The findings of a rehearsal: one trial that was paused, grown and shrunk, held against the same trial left alone.

The ranks of both have written down what they did between two reports (``worker/onlooker.py``). ``judge`` words each
mistake of a search with the line to change. Pure: rows in, findings out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gpusched.text import count

Row = Mapping[str, Any]

SAME = 1e-6
"""Rates, and numbers that were computed from the same parameters in the same way, differ by rounding at most."""
APART = 0.02
"""Difference of parameters, as a share of the way that they went since the last report, that no rounding explains."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``kind`` for programs, ``text`` for people. ``is_error``: a search would rank a model that trained wrongly."""

    kind: str
    text: str
    is_error: bool = True

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "error": self.is_error, "text": self.text}


@dataclass(frozen=True, slots=True)
class RehearsedLaunch:
    """One launch: by report, the rows of its ranks. ``error``: how it failed, if it did."""

    atoms: int
    reports: Sequence[Sequence[Row]]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RehearsedTrial:
    """A trial's launches in order, and the remarks of gpusched to its ranks."""

    launches: Sequence[RehearsedLaunch]
    said: Sequence[str] = ()

    @property
    def by_step(self) -> dict[int, Sequence[Row]]:
        return {rows[0]["step"]: rows for launch in self.launches for rows in launch.reports}


def judge(moved: RehearsedTrial, alone: RehearsedTrial | None) -> Iterator[Finding]:
    """Yield the mistakes of a search; ``alone`` is None where the script failed before a comparison."""
    yield from _failures(moved)
    yield from _reports_without_training(moved)
    if alone is None or not moved.launches:
        return
    for rows in alone.by_step.values():
        for text, is_read in rows[0]["shared"]:
            yield Finding("shared file", text, is_error=is_read)
    expected = alone.by_step
    first = moved.launches[0]
    repeats = not any(_differs(rows, expected) for rows in first.reports)
    if not repeats:
        yield Finding(
            "not repeatable",
            "two runs of the same configuration differ from the first report on, so losses and parameters are not "
            "compared: something draws random numbers that gpusched.init() has not seeded (call it before the model "
            "and the data are made), or reads what an earlier run has left",
            is_error=False,
        )
    untrained = next((rows[0]["start"] for rows in alone.by_step.values()), None)
    for before, launch in pairwise(moved.launches):
        if launch.atoms == first.atoms and before.atoms == first.atoms:
            found = _after_a_pause(launch, expected, repeats, untrained)
        else:
            found = _at_another_size(before, launch, expected, repeats, untrained)
        if (finding := next(found, None)) is not None:
            yield finding


def _failures(moved: RehearsedTrial) -> Iterator[Finding]:
    base = moved.launches[0].atoms if moved.launches else 1
    for place, launch in enumerate(moved.launches):
        if launch.error is None:
            continue
        if place == 0:
            when = "the script fails"
        elif launch.atoms > base:
            when = f"on {count(launch.atoms, 'atom')} the script fails"
        elif moved.launches[place - 1].atoms == launch.atoms:
            when = "after a pause the script fails"
        else:
            when = f"back on {count(launch.atoms, 'atom')} the script fails"
        yield Finding("fails", f"{when}: {launch.error}")


def _reports_without_training(moved: RehearsedTrial) -> Iterator[Finding]:
    trains = any(row["updates"] for rows in moved.by_step.values() for row in rows)
    for launch in moved.launches[1:]:
        for rows in launch.reports[:1]:
            if trains and not rows[0]["updates"] and moved.by_step[rows[0]["step"]] is rows:
                yield Finding(
                    "report before training",
                    f"after a pause or a resize the script reports step {rows[0]['step']} before it has trained, so "
                    f"every launch skips as much training: report after training, or say where training stands: "
                    f"trial.report(step=iteration, ...)",
                )
                return


def _after_a_pause(
    launch: RehearsedLaunch, expected: Mapping[int, Sequence[Row]], repeats: bool, untrained: Any
) -> Iterator[Finding]:
    """Check that a launch at the same size trains on as if there had been no pause."""
    for rows in launch.reports:
        row, step = rows[0], rows[0]["step"]
        if step not in expected:
            continue
        then = expected[step][0]
        if repeats and (apart := _apart(row["start"], then["start"], then)) > APART:
            yield _not_restored("after a pause", row, untrained, apart)
        if repeats and row["untracked"] and _apart(row["end"], then["end"], then) > APART:
            yield Finding(
                "optimizer not tracked",
                f"after a pause step {step} takes the parameters elsewhere: the state of {row['untracked'][0]} (its "
                f"rate, momentum, averages) is lost. Give it to trial.track(..., opt=opt)",
            )
        yield from _rates_after_a_pause(row, then)
        yield from _samples_after_a_pause(rows, expected[step])
        if not repeats:
            continue
        if _apart(row["end"], then["end"], then) > APART:
            yield Finding(
                "state not tracked",
                f"after a pause step {step} takes the parameters elsewhere than without one, from the same parameters "
                f"at the same rate: something that training depends on is not in the checkpoint. Give it to "
                f"trial.track (an average of weights, a GradScaler), or keep plain values in trial.state",
            )
        if (name := _other_metric(row, then)) is not None:
            yield Finding(
                "metric",
                f"after a pause step {step} reports {name} {row['metrics'][name]:.6g}, without one "
                f"{then['metrics'][name]:.6g}, of the same parameters: keep what it is computed from (a running mean, "
                f"a counter) in trial.state",
            )


def _not_restored(when: str, row: Row, untrained: Any, apart: float) -> Finding:
    begins = "with other parameters than it was left with"
    if untrained is not None and _far(row["start"], untrained) < 1e-9:
        begins = "untrained again"
    fix = (
        "give the model to trial.track(model=model, opt=opt)"
        if row["loose"]
        else "call trial.track when all is built, and change no parameter after it"
    )
    return Finding("parameters not restored", f"{when} the model begins {begins}: {fix}")


def _rates_after_a_pause(row: Row, then: Row) -> Iterator[Finding]:
    for name in ("base", "rates"):
        for mine, theirs in zip(row[name], then[name], strict=False):
            if not _equal(mine, theirs):
                fix = "give the scheduler to trial.track(schedule=schedule), or compute the rate from trial.step"
                if name == "rates":
                    fix = "call trial.scale_lr(opt) before trial.track"
                yield Finding(
                    "learning rate",
                    f"the learning rate after a pause is {mine:.4g}, expected {theirs:.4g}: {fix}",
                )
                return


def _samples_after_a_pause(rows: Sequence[Row], then: Sequence[Row]) -> Iterator[Finding]:
    step = rows[0]["step"]
    for mine, theirs in zip(_draws(rows), _draws(then), strict=False):
        if mine is None or theirs is None or mine == theirs:
            continue
        lost = (theirs - mine).total()
        if lost:
            yield Finding(
                "samples",
                f"after a pause step {step} trains on other samples than without one ({lost} of {theirs.total()}): use "
                f"trial.loader, which goes on where the trial stopped, or begin an epoch with every report",
            )
            return
    mine_first, their_first = rows[0]["inputs"], then[0]["inputs"]
    if mine_first and their_first and not _equal(mine_first[0], their_first[0]):
        yield Finding(
            "order of samples",
            f"after a pause step {step} begins with another batch than without one: use trial.loader, or seed the "
            f"order by trial.step (sampler.set_epoch(epoch))",
            is_error=False,
        )


def _at_another_size(
    before: RehearsedLaunch,
    launch: RehearsedLaunch,
    expected: Mapping[int, Sequence[Row]],
    repeats: bool,
    untrained: Any,
) -> Iterator[Finding]:
    """Check that a launch at another size goes on from the same model, shares its samples, and keeps its rates."""
    on = f"on {count(launch.atoms, 'atom')}"
    for place, rows in enumerate(launch.reports):
        row, step = rows[0], rows[0]["step"]
        if place == 0 and before.reports and row["start"] and untrained:
            left = before.reports[-1][0]["end"]
            way = _far(left, untrained)
            if repeats and way > 0 and _far(row["start"], untrained) < 0.05 * way:
                yield _not_restored(on, row, untrained, 1.0)
        then = expected.get(step)
        if len(rows) > 1:
            yield from _same_work(on, rows)
            if then is not None:
                yield from _shares(on, rows, then)
        if then is not None:
            yield from _rates_at_another_size(on, row, then[0])


def _same_work(on: str, rows: Sequence[Row]) -> Iterator[Finding]:
    inputs = [row["inputs"] for row in rows]
    if inputs[0] and all(other == inputs[0] for other in inputs[1:]):
        yield Finding(
            "same samples",
            f"{on} all ranks train on the same samples, each of which counts {len(rows)} times: give each rank its "
            f"share with trial.loader(data_set, batch_size) or a DistributedSampler (random batches: a generator "
            f"seeded by trial.rank too), or let trials have one rank: `sizes: [1]`",
        )


def _shares(on: str, rows: Sequence[Row], then: Sequence[Row]) -> Iterator[Finding]:
    """Check that ranks together draw each sample of an epoch once; a few come twice to fill the last batch."""
    for mine, theirs, drawn in zip(_draws(rows), _draws(then), then[0]["drawn"], strict=False):
        if mine is None or theirs is None:
            continue
        length = len(theirs)
        if set(theirs.values()) != {1} or length < 0.9 * (drawn["length"] or math.inf):
            continue
        twice, missing = mine.total() - len(mine), length - len(mine.keys() & theirs.keys())
        if twice > length / 2:
            yield Finding(
                "samples",
                f"{on} each rank draws every sample, so an epoch has {mine.total()} instead of {length}: use "
                f"trial.loader(data_set, batch_size), or DataLoader(sampler=DistributedSampler(data_set))",
            )
        elif missing > length / 4:
            yield Finding(
                "samples",
                f"{on} an epoch leaves {missing} of {length} samples out: use trial.loader(data_set, batch_size)",
            )


def _rates_at_another_size(on: str, row: Row, then: Row) -> Iterator[Finding]:
    if not row["base"] or not then["base"]:
        return
    low, high = min(then["base"]), max(then["base"])
    factor = row["target"][0] if row["target"] and not row["fixed"] else 1.0
    own = all(low * factor * 0.999 <= rate <= high * factor * 1.001 for rate in row["base"])
    slack = max(high - low, 1e-3 * high)
    for rate in row["base"]:
        if not low - slack <= rate <= high + slack and not own:
            yield Finding(
                "learning rate",
                f"the learning rate {on} is {rate:.4g} before scaling, expected {_between(low, high)}: a schedule by "
                f"step has left its course. Write schedule = trial.schedule(schedule) and track that, or `batch: "
                f"global` in the recipe",
            )
            return
    unscaled = all(map(_equal, row["rates"], row["base"]))
    if unscaled and not row["scaled"] and not _equal(factor, 1.0) and not own:
        rate = row["base"][-1]
        yield Finding(
            "learning rate",
            f"the learning rate {on} is {rate:.4g}, expected {rate * factor:.4g} (a batch for each atom): is the "
            f"optimizer given to trial.scale_lr? Write trial.scale_lr(opt) before trial.track, or `batch: global` or "
            f"`lr_scaling: none` in the recipe",
        )


def _differs(rows: Sequence[Row], expected: Mapping[int, Sequence[Row]]) -> bool:
    then = expected.get(rows[0]["step"])
    if then is None:
        return False
    row, other = rows[0], then[0]
    return (
        _apart(row["end"], other["end"], other) > APART
        or _other_metric(row, other) is not None
        or row["inputs"][:1] != other["inputs"][:1]
    )


def _other_metric(row: Row, then: Row) -> str | None:
    """Return the first metric that differs; times and rates of work do by nature."""
    for name, value in row["metrics"].items():
        other = then["metrics"].get(name)
        is_time = any(word in name for word in ("time", "second", "per_s", "runtime", "speed"))
        if (
            other is not None
            and not is_time
            and not math.isclose(value, other, rel_tol=1e-3, abs_tol=1e-6)
        ):
            return str(name)
    return None


def _draws(rows: Sequence[Row]) -> list[Counter[int] | None]:
    """Return what the ranks have drawn together of each data set; None where there was too much to write down."""
    found: list[Counter[int] | None] = []
    for place in range(max(len(row["drawn"]) for row in rows)):
        drawn = [row["drawn"][place] for row in rows if place < len(row["drawn"])]
        is_whole = all(len(one["samples"]) == one["count"] for one in drawn)
        samples = (sample for one in drawn for sample in one["samples"])
        found.append(Counter(samples) if is_whole else None)
    return found


def _apart(mine: Any, theirs: Any, then: Row) -> float:
    """Return how far two states are apart, as a share of the way that the undisturbed one went in this step."""
    if not mine or not theirs or len(mine) != len(theirs):
        return 0.0
    apart = _far(mine, theirs)
    way = _far(then["start"], then["end"])
    return apart / way if way else float(apart > SAME)


def _far(one: Sequence[float], other: Sequence[float]) -> float:
    if not one or not other or len(one) != len(other):
        return math.inf
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def _equal(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=SAME, abs_tol=1e-12)


def _between(low: float, high: float) -> str:
    return f"{low:.4g}" if _equal(low, high) else f"{low:.4g} to {high:.4g}"
