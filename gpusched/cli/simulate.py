"""Searches in virtual time: ``simulate`` compares policies, ``whatif`` continues a search under other conditions."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gpusched.cli import common
from gpusched.cli.common import argument
from gpusched.errors import InputError
from gpusched.text import count, show_duration, show_metric

if TYPE_CHECKING:
    from gpusched.sim.study import Result

_CURVES = "linear (default), sqrt, none, resnet18, resnet50, resnet101 or shufflenet"
_DELAY = "duration of a launch or resize: seconds, or a share of the deadline, 5%% (0)"


@common.command(
    argument("WORKLOAD", "default: synthetic", nargs="?", default="synthetic"),
    argument("--policy P", "policies, separated by commas (hypersched)", default="hypersched"),
    common.settable("an option of every policy that has it"),
    argument("--seeds N", "number of seeds (10)", type=int, default=10),
    argument("--seed N", "the first seed (0)", type=int, default=0),
    argument("--target X", "metric that is good enough to end a run", type=float),
    argument("--atoms N", "atoms of the simulated machine (8)", type=int, default=8),
    argument("--deadline D", "deadline of each run: 60, 10m, 1h30m (60)", default="60"),
    argument("--scaling S", f"speed over atoms: {_CURVES}", default="linear"),
    argument("--delay D", _DELAY, default="0"),
    argument("--sampler S", "sampler, as in a recipe (random)", default="random"),
    argument("--jobs N", "number of processes (default: one a core)", type=int),
    lines="run",
)
def simulate(args: argparse.Namespace) -> int:
    """Compare policies in virtual time: the real core and the real policies on a simulated machine.

    WORKLOAD is what the trials train:
      synthetic         Score(k) of the HyperSched paper, section 6: steps of 0.1
                        time units, r 5, R 500, eta 4
      FILE.py:FUNCTION  a function of yours: FUNCTION(hparams, step) or (hparams,
                        step, random) returns the metric, or (metric, step time);
                        SPACE, METRIC, MODE and STEP_TIME beside it are optional

    For a seed, every policy meets the same configurations and noise:
      gpusched simulate --policy asha,hypersched --atoms 4 --deadline 15
      gpusched simulate --set eta=3 --delay 5%
      gpusched simulate my.py:train --policy asha,fifo --set R=100
    """
    from gpusched.recipe.values import duration
    from gpusched.sim import setup, study

    if args.jobs is not None and args.jobs < 1:
        raise InputError(f"--jobs must be at least 1, not {args.jobs}")
    deadline_s = common.read_option("--deadline", args.deadline, duration)
    base = setup.Setup(
        workload=args.workload,
        atoms=args.atoms,
        deadline_s=deadline_s,
        seed=args.seed,
        scaling=args.scaling,
        delays=common.read_option("--delay", args.delay, partial(setup.read_delays, deadline_s)),
        sampler=args.sampler,
        target=args.target,
    )
    named = [name.strip() for name in args.policy.split(",")]
    overrides = common.assignments(args.overrides)
    setups = setup.plan(base, list(dict.fromkeys(named)), overrides, args.seeds)
    results = study.run_all(setups, study.simulate, jobs=args.jobs)
    if args.json:
        for result in results:
            common.print_json(result.line())
    else:
        _print_table(results, setups[0].load().metric, args.target)
    return 0 if any(result.best is not None for result in results) else 3


def _print_table(results: Sequence[Result], metric: str, target: float | None) -> None:
    """Print a row a policy; ``difference`` is to the first policy, seed by seed."""
    from gpusched.sim.study import Mean

    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.label, []).append(result)
    first = {one.seed: one.best for one in next(iter(groups.values()))}
    rows = []
    for policy, found in groups.items():
        known = [(one.best, first[one.seed]) for one in found if one.best is not None]
        row: dict[str, object] = {"policy": policy, "seeds": len(found)}
        row[f"best {metric}"] = Mean.of(best for best, _ in known)
        if len(groups) > 1:
            row["difference"] = Mean.of(best - other for best, other in known if other is not None)
        if target is not None:
            times = [one.time_to_target_s for one in found if one.time_to_target_s is not None]
            row |= {"reached": f"{len(times)}/{len(found)}", "after": Mean.of(times)}
        row["trials"] = Mean.of(one.trials for one in found)
        row["steps"] = Mean.of(one.steps for one in found)
        row["device-s"] = Mean.of(one.device_s for one in found)
        rows.append(row)
    head = list(rows[0])
    print(common.table(head, [list(row.values()) for row in rows], head[1:]))
    against = "difference: to the first policy, seed by seed; " if len(groups) > 1 else ""
    common.note(f"{against}± is half a 95% interval of the mean")


# ---------------------------------------------------------------- whatif


@common.command(
    common.EXPERIMENT,
    argument("--add D", "more time: 90s, 20m, 1h; may be repeated", action="append", default=[]),
    argument("--limit D", "the time that the answer may take (5s)", default="5s"),
)
def whatif(args: argparse.Namespace) -> int:
    """Say what the best score at the deadline will probably be, and what more time would buy.

    The search is replayed into a copy, which continues up to twenty times in virtual time, at low priority, on curves
    resampled from its own. Nothing of it is journaled. A search that is over is changed as of just before its end.

      gpusched whatif --add 20m --add 1h
    """
    from gpusched.recipe.values import duration
    from gpusched.sim import whatif as futures_of

    more_s = [common.read_option("--add", text.removeprefix("+"), duration) for text in args.add]
    limit_s = common.read_option("--limit", args.limit, duration)
    paths = common.experiment(args)
    found = futures_of.answer(paths, more_s, limit_s)
    return common.tell(args, found, "\n".join(whatif_lines(found)))


def whatif_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Word the answer; pure."""
    metric, answers = found["metric"], found["answers"]
    left_s = max(0.0, found["deadline_s"] - found["at_s"])
    when = "at its end" if found["over"] else f"with {show_duration(left_s)} left"
    when += " when it was interrupted" if found["interrupted"] else ""
    yield f"{found['experiment']}: {metric} {show_metric(found['best'])} {when}"
    now, *changes = answers
    if not found["over"]:
        of = count(now["futures"], "future")
        yield f"at the deadline: probably {_interval(now['best'])} (80% of {of})"
    elif not changes:
        yield "the search is over; --add 1h forecasts what one hour more would have bought"
    for change in changes:
        yield f"+{show_duration(change['add_s'])}: {_gain(change, found)}"


def _gain(change: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Word the metric with a change; how much more is the difference of the numbers that are shown."""
    sign = 1.0 if found["mode"] == "max" else -1.0
    then, now = (one["best"]["median"] for one in (change, found["answers"][0]))
    gain = sign * (float(show_metric(then)) - float(show_metric(now)))
    more = "better" if gain >= 0 else "worse"
    by = f"{abs(gain):.2g} {more} than without" if gain else "as without"
    return f"probably {found['metric']} {_interval(change['best'])}, {by}"


def _interval(best: Mapping[str, float]) -> str:
    return (
        f"{show_metric(best['median'])} ({show_metric(best['low'])} to {show_metric(best['high'])})"
    )
