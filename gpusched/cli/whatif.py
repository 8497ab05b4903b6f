"""Forecasts of a search under other conditions: ``whatif``."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from gpusched.cli import common
from gpusched.cli.common import argument
from gpusched.errors import InputError
from gpusched.folder.files import write_durably
from gpusched.text import count, show_duration, show_metric


@common.command(
    common.EXPERIMENT,
    argument("--add D", "more time: 90s, 20m, 1h; may be repeated", action="append", default=[]),
    argument("--futures N", "futures of each question (20)", type=int),
    argument("--limit D", "the time that the answer may take (60s)", default="60s"),
)
def whatif(args: argparse.Namespace) -> int:
    """Say what the best score at the deadline will probably be, and what more time would buy.

    The search is replayed into a copy, which continues twenty times in virtual time, at low priority, on curves
    resampled from its own. Nothing of it is journaled. A search that is over is changed as of just before its end.

      gpusched whatif --add 20m --add 1h
    """
    from gpusched.recipe.values import duration
    from gpusched.sim import whatif as futures_of

    more_s = [common.read_option("--add", text.removeprefix("+"), duration) for text in args.add]
    futures = futures_of.FUTURES if args.futures is None else args.futures
    if futures < futures_of.LEAST_FUTURES:
        raise InputError(f"--futures must be at least {futures_of.LEAST_FUTURES}, not {futures}")
    limit_s = common.read_option("--limit", args.limit, duration)
    paths = common.experiment(args)
    found = futures_of.answer(paths, more_s, futures=futures, limit_s=limit_s)
    with contextlib.suppress(OSError):
        write_durably(paths.whatif, json.dumps({**found, "line": line(found)}).encode())
    return common.tell(args, found, "\n".join(lines(found)))


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Word the answer; pure."""
    metric, answers = found["metric"], found["answers"]
    left_s = max(0.0, found["deadline_s"] - found["at_s"])
    when = "at its end" if found["over"] else f"with {show_duration(left_s)} left"
    yield f"{found['experiment']}: {metric} {show_metric(found['best'])} {when}"
    now, *changes = answers
    if not found["over"]:
        of = count(now["futures"], "future")
        yield f"at the deadline: probably {_interval(now['best'], show_metric)} (80% of {of})"
        if now["without_model"]:
            without = count(now["without_model"], "future")
            yield f"{without} would have no model on disk at the deadline: no checkpoint has been saved yet"
    for change in changes:
        yield f"+{show_duration(change['add_s'])}: {_gain(change, found)}"


def line(found: Mapping[str, Any]) -> str:
    """Return the answer in one line, for the dashboard and the report."""
    now, *changes = found["answers"]
    said = [f"+{show_duration(change['add_s'])} {_gain(change, found)}" for change in changes[:2]]
    if not found["over"]:
        at = show_duration(found["at_s"])
        said.insert(0, f"at the deadline probably {metric_of(now['best'], found)}, as of {at}")
    return f"what if: {'; '.join(said)}"


def _gain(change: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Word the metric with a change; how much more is the difference of the numbers that are shown."""
    sign = 1.0 if found["mode"] == "max" else -1.0
    gain = sign * (change["best"]["median"] - found["answers"][0]["best"]["median"])
    more = "better" if gain >= 0 else "worse"
    by = f"{abs(gain):.2g} {more} than without" if gain else "as without"
    return f"probably {metric_of(change['best'], found)}, {by}"


def metric_of(best: Mapping[str, float], found: Mapping[str, Any]) -> str:
    return f"{found['metric']} {_interval(best, show_metric)}"


def _interval(best: Mapping[str, float], show: Any) -> str:
    return f"{show(best['median'])} ({show(best['low'])} to {show(best['high'])})"
