"""Show where an experiment stands: its trials, its devices, the best so far."""

from __future__ import annotations

import argparse
from typing import Any

from gpusched.cli import common
from gpusched.daemon import session
from gpusched.dashboard.model import LIVE, from_json
from gpusched.dashboard.summary import failures
from gpusched.text import count, show_duration, show_hparams, show_metric


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_experiment(parser)
    common.add_json(parser)
    parser.add_argument("--all", action="store_true", help="every trial, not only the first 20")


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    view = session.view(paths)
    if args.json:
        common.print_json(view)
    else:
        print("\n".join(lines(view, everything=args.all)))
    return 0


def lines(view: dict[str, Any], *, everything: bool = False) -> list[str]:
    """Word the view; pure."""
    atoms = view["atoms"]
    out = [_headline(view)]
    counts = ", ".join(f"{atoms[key]} {key}" for key in atoms if key != "total" and atoms[key])
    out.append(f"{count(atoms['total'], 'atom')}: {counts or 'none in use'}")
    for device in view.get("devices", ()):
        if device.get("reason"):
            out.append(f"  {device['id']} is {device['state']}: {device['reason']}")
    best = view.get("best")
    if best:
        out.append(
            f"best: {view['metric']} {show_metric(best['metric'])}, trial {best['trial']} at step {best['step']}"
        )
    out += failures(from_json(view))
    trials = view["trials"]
    shown = trials if everything else trials[:20]
    if shown:
        head = ("trial", "state", "step", view["metric"], "atoms", "launches", "saved", "hparams")
        rows = [
            (
                trial["id"],
                trial["state"],
                trial["step"],
                show_metric(trial["metric"]),
                trial["atoms"] or "-",
                trial["incarnation"],
                _saved(trial),
                trial.get("error") or show_hparams(trial["hparams"]),
            )
            for trial in shown
        ]
        out += [
            "",
            common.table(head, rows, ("trial", "step", view["metric"], "atoms", "launches")),
        ]
    if len(shown) < len(trials):
        out.append(f"... and {len(trials) - len(shown)} more (--all shows them)")
    return out


def _saved(trial: dict[str, Any]) -> str:
    """Word the newest checkpoint of a trial: its step and, while the trial trains, its age."""
    if not trial["saved_step"]:
        return "-"
    age_s = trial["saved_age_s"] if trial["state"] in LIVE else None
    return f"step {trial['saved_step']}" + (f", {show_duration(age_s)} ago" if age_s else "")


def _headline(view: dict[str, Any]) -> str:
    why = f" ({view['ending']})" if view.get("ending") else ""
    parts = [f"{view['experiment']}: {view['state']}{why}", f"policy {view['policy']}"]
    if view["state"] == "running":
        parts.append(f"{show_duration(view['time_left_s'])} left")
    if view.get("daemon_pid"):
        parts.append(f"daemon {view['daemon_pid']}")
    return ", ".join(parts)
