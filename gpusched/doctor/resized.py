"""Compare a rehearsed trial at another size with the one left alone: its model, its shares, its rates.

On the larger size and after it parameters are put back after every step, so the reports of both sizes are of one model.
Each function adds to the judgement what it found wrong, and what it compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gpusched.doctor.findings import (
    METRICS,
    PARAMETERS,
    RATE,
    SAME,
    SAMPLES,
    Finding,
    Judgement,
    RehearsedLaunch,
    Row,
    between,
    draws,
    equal,
    far,
    is_time,
    keeps_global_batch,
    not_restored,
)
from gpusched.text import count

NOT_BOTH = "no step was reported by both, or no optimizer has stepped"
EXACT, NOISY = 1e-3, 0.1
"""Share of a metric by which sizes may differ: where the metric repeats exactly on each size, and where not."""
PADDED = 0.03
"""Share of a metric up to which samples that count twice, where shares are filled up, may be the cause."""


def compare_larger(
    when: str,
    before: RehearsedLaunch,
    launch: RehearsedLaunch,
    expected: Mapping[int, Sequence[Row]],
    found: Judgement,
) -> None:
    """Check that a launch on more atoms begins with the same model, shares its samples, and keeps its rates."""
    untrained = next((rows[0]["start"] for rows in expected.values()), None)
    for place, rows in enumerate(launch.reports):
        row, then = rows[0], expected.get(rows[0]["step"])
        if place == 0 and before.reports and row["start"] and untrained:
            way = far(before.reports[-1][0]["end"], untrained)
            if way > 0 and far(row["start"], untrained) < 0.05 * way:
                text = not_restored(row, untrained)
                found.wrong(when, PARAMETERS, text, "parameters not restored")
            elif way > 0:
                found.same(when, PARAMETERS, "as they were saved")
        if len(rows) > 1:
            moved = [one for row in rows if (one := row.get("moved"))]
            if any(far(one, moved[0]) > SAME * max(map(abs, moved[0])) for one in moved[1:]):
                text = (
                    "the ranks train apart, and the model of rank 0 alone would be ranked: wrap the model (model = "
                    "trial.wrap(model), or DistributedDataParallel), or let trials have one rank: `sizes: [1]`"
                )
                found.wrong(when, PARAMETERS, text, "ranks train apart")
            inputs = [row["inputs"] for row in rows]
            if inputs[0] and all(other == inputs[0] for other in inputs[1:]):
                text = (
                    f"all ranks train on the same samples, each of which counts {len(rows)} times: give each rank its "
                    f"share with trial.loader(data_set, batch_size) or a DistributedSampler (random batches: a "
                    f"generator seeded by trial.rank too), or let trials have one rank: `sizes: [1]`"
                )
                found.wrong(when, SAMPLES, text, "same samples")
            if then is not None:
                _shares(when, rows, then, found)
        if then is not None:
            compare_rates(when, row, then[0], found)
    found.skip(when, PARAMETERS, "no optimizer has stepped")
    found.skip(when, RATE, NOT_BOTH)
    found.skip(when, SAMPLES, "no data loader has drawn a whole epoch on several ranks")


def _shares(when: str, rows: Sequence[Row], then: Sequence[Row], found: Judgement) -> None:
    """Check that ranks together draw each sample of an epoch once; a few come twice to fill the last batch."""
    for mine, theirs, drawn in zip(draws(rows), draws(then), then[0]["drawn"], strict=False):
        if mine is None or theirs is None:
            continue
        length = len(theirs)
        if set(theirs.values()) != {1} or length < 0.9 * (drawn["length"] or math.inf):
            continue
        twice, missing = mine.total() - len(mine), length - len(mine.keys() & theirs.keys())
        if twice > length / 2:
            text = (
                f"each rank draws every sample, so an epoch has {mine.total()} instead of {length}: use "
                f"trial.loader(data_set, batch_size), or DataLoader(data_set, sampler=DistributedSampler(data_set, "
                f"trial.world_size, trial.rank))"
            )
            found.wrong(when, SAMPLES, text)
        elif missing > length / 4:
            text = f"an epoch leaves {missing} of {length} samples out: use trial.loader(data_set, batch_size)"
            found.wrong(when, SAMPLES, text)
        else:
            found.same(when, SAMPLES, "each of an epoch once")


def compare_rates(when: str, row: Row, then: Row, found: Judgement) -> None:
    """Check the rate before scaling, and its factor against the samples that ranks train on in one step."""
    if not row["base"] or not then["base"]:
        return None
    low, high = min(then["base"]), max(then["base"])
    factor = row["target"][0] if row["target"] and not row["fixed"] else 1.0
    own = all(low * factor * 0.999 <= rate <= high * factor * 1.001 for rate in row["base"])
    is_scaled = not all(map(equal, row["rates"], row["base"]))
    keeps = keeps_global_batch(row, then)
    if keeps and not row["fixed"] and factor != 1.0:
        if row["scaled"] or is_scaled or (own and not equal(low * factor, low)):
            text = (
                f"each rank trains on its share of what one atom alone trains on in a step, so the batch stays as it "
                f"is, but the learning rate is multiplied by {factor:.4g}: write `batch: global` in the recipe"
            )
            return found.wrong(when, RATE, text)
        return found.same(when, RATE, "of a batch that stays as it is")
    if keeps is False and row["fixed"]:
        text = (
            "each rank trains on as much in a step as one atom alone, although the recipe has `batch: global`: leave "
            "that out and write trial.scale_lr(opt) before trial.track, or use trial.loader"
        )
        return found.wrong(when, RATE, text)
    # A schedule by step that two reports on a larger size hold back is a whole report behind when the trial is small
    # again; shares that are filled up move one that is right by a step or two.
    share = max(0.5, min(1.0, 2.5 / len(then["base"])))
    slack = max(share * (high - low), 1e-3 * high)
    for rate in row["base"]:
        if not low - slack <= rate <= high + slack and (row["scaled"] or not own):
            text = (
                f"the learning rate is {rate:.4g} before scaling, expected {between(low, high)}: a schedule by step "
                f"has left its course. Write schedule = trial.schedule(schedule) and track that, or `batch: global` "
                f"in the recipe; a script that multiplies its rate by the ranks leaves that to trial.scale_lr"
            )
            return found.wrong(when, RATE, text)
    if not is_scaled and not row["scaled"] and not equal(factor, 1.0) and not own:
        rate = row["base"][-1]
        text = (
            f"the learning rate is {rate:.4g}, expected {rate * factor:.4g} (a batch for each atom): is the "
            f"optimizer given to trial.scale_lr? Write trial.scale_lr(opt) before trial.track"
        )
        return found.wrong(when, RATE, text)
    return found.same(when, RATE, f"times {factor:.4g}" if factor != 1.0 else "")


def compare_metrics(
    when: str, large: RehearsedLaunch, after: Sequence[RehearsedLaunch], found: Judgement
) -> None:
    """Compare metrics of one model on both sizes; what differs by more than its own noise counts the ranks."""
    told = [
        [rows[0]["metrics"] for rows in launch.reports if rows[0]["held"]]
        for launch in (large, *after)
    ]
    if len(told) < 2 or not all(told):
        return found.skip(when, METRICS, "no report of the same model on both sizes")
    names = [name for name in told[0][0] if not is_time(name) and name in told[1][0]]
    names = [name for name in names if name not in found.unsteady]
    for name in names:
        both = [[metrics[name] for metrics in values if name in metrics] for values in told]
        noise = max(max(values) - min(values) for values in both)
        mine, theirs = (sum(values) / len(values) for values in both)
        size = max(abs(mine), abs(theirs))
        repeats_exactly = noise <= SAME * size and min(map(len, both)) > 1
        slack = EXACT * size if repeats_exactly else max(NOISY * size, 4 * noise)
        difference = abs(mine - theirs)
        by_rank = [
            [row["metrics"][name] for row in rows if name in row["metrics"]]
            for rows in large.reports
            if rows[0]["held"]
        ]
        # What is filled up and reduced is the same on all ranks; a share is not.
        is_share = any(max(one) - min(one) > EXACT * size for one in by_rank if one)
        if slack + SAME < difference <= PADDED * size and not is_share:
            why = (
                f"{name} differs by {difference / size:.2g} of itself: so it does where the shares of the ranks are "
                f"filled up to the same length, as torch's and Lightning's samplers do, and some samples count twice, "
                f"or where half precision rounds"
            )
            found.findings.append(Finding("metric", f"{when} {why}", is_error=False))
        elif difference > slack + SAME:
            text = (
                f"the same model reports {name} {mine:.6g}, and {theirs:.6g} on {count(after[0].atoms, 'atom')}: "
                f"the metric counts the ranks. Evaluate all data on each rank, or report trial.mean(total, number)"
            )
            found.findings.append(Finding("metric", f"{when} {text}"))
            found.verdicts[when, METRICS] = ("WRONG", "")
    return found.same(when, METRICS, ", ".join(names))
