"""Standing of experiments and their trials: ``status``, ``ls``, ``best``, ``explain``."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpusched.cli import common
from gpusched.daemon import best_model, session
from gpusched.dashboard.model import LIVE, Standing, from_json
from gpusched.dashboard.summary import failures
from gpusched.folder import find
from gpusched.folder.files import read_json
from gpusched.folder.paths import ExperimentPaths
from gpusched.text import count, flat, show_duration, show_hparams, show_metric


@common.command(common.TRIAL, prints=["gpusched.core.explain:Explanation"])
def explain(args: argparse.Namespace) -> int:
    """Explain why a trial is where it is: its story, its ranks, and what would make it move."""
    paths = common.experiment(args)
    answer = session.explanation(paths, session.trial_number(args.trial))
    words = (common.paragraph(line, rest=" " * 15) for line in answer["lines"])
    return common.tell(args, answer["data"], "\n".join(words))


# ---------------------------------------------------------------- status


@common.command(
    common.EXPERIMENT,
    common.argument("--all", "every trial, not only the first 20"),
    prints=[Standing],
)
def status(args: argparse.Namespace) -> int:
    """Show where an experiment stands: its trials, its devices, the best so far."""
    view = session.view(common.experiment(args))
    return common.tell(args, view, "\n".join(lines(view, everything=args.all)))


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
    out += [f"note: {warning}" for warning in view["warnings"]]
    out += failures(from_json(view))
    trials = view["trials"]
    failed = sorted((trial["id"], trial["error"]) for trial in trials if trial["error"])
    untold = {error for _, error in failed} - {error for _, error in failed[:1]}
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
                trial["error"] if trial["error"] in untold else show_hparams(trial["hparams"]),
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


# ---------------------------------------------------------------- ls


class Listed(Struct):
    """An experiment of the list. ``best``: its best metric so far."""

    experiment: str
    state: str
    metric: str | None
    best: float | None
    folder: str


@common.command(common.DIR, prints=[Listed], lines="experiment")
def ls(args: argparse.Namespace) -> int:
    """List the experiments in a folder, the latest last: state, metric, best so far."""
    runs = find.runs_folder(args.dir)
    rows = [_listed(paths) for paths in find.experiments(runs)]
    if args.json:
        for row in rows:
            common.print_json(row)
    elif not rows:
        print(f"{runs}/ has no experiments yet; 'gpusched run RECIPE' starts one")
    else:
        head = ("experiment", "state", "metric", "best", "folder")
        cells = [
            (r.experiment, r.state, r.metric or "-", show_metric(r.best), r.folder) for r in rows
        ]
        print(common.table(head, cells, ("best",)))
    return 0


def _listed(paths: ExperimentPaths) -> Listed:
    """Describe an experiment from small files alone, so that a hundred are listed at once."""
    state = "running"
    if not find.has_daemon(paths):
        state = _read(paths.final_view).get("state", "interrupted")
    metric, best = _read(paths.worker).get("metric"), _read(paths.best / "metric.json").get("value")
    return Listed(paths.root.name, state, metric, best, str(paths.root))


def _read(path: Path) -> dict[str, Any]:
    return read_json(path, limit_bytes=-1) or {}


# ---------------------------------------------------------------- best


@dataclasses.dataclass(frozen=True, kw_only=True)
class Best(best_model.Description):
    """The best model, the code that trained it, and what of that differs now.

    ``best_unsaved``: the report that beats the best model on disk, None without one.
    """

    best_unsaved: Mapping[str, Any] | None
    code: dict[str, Any] | None
    differs_now: list[str]


@common.command(common.EXPERIMENT, prints=[Best])
def best(args: argparse.Namespace) -> int:
    """Show the best model so far: its metric, its configuration, where its checkpoint lies, and how to use it."""
    from gpusched.daemon import provenance
    from gpusched.driver.assemble import read_recipe

    paths = common.experiment(args)
    about = best_model.describe(paths)
    code, script = provenance.recorded(paths), Path(read_recipe(paths).script)
    found = Best(
        **dataclasses.asdict(about),
        best_unsaved=session.best_unsaved(paths),
        code=code,
        differs_now=provenance.differences(paths, script),
    )
    return common.tell(args, found, "\n".join(_best_lines(paths, found)))


def _best_lines(paths: ExperimentPaths, best: Best) -> list[str]:
    from gpusched.daemon import provenance

    score = f"{best.metric} {show_metric(best.value)}"
    out = [f"{score}: trial {best.trial} at step {best.step}"]
    if (better := best.best_unsaved) is not None:
        out.append(
            f"behind the best report, {show_metric(better['metric'])} of trial {better['trial']} at step "
            f"{better['step']}, which has no checkpoint: {better['why']}"
        )
    out += [f"  {key} = {value}" for key, value in flat(best.hparams)]
    if best.code is not None and (words := provenance.in_words(best.code)):
        out.append(f"code:       {words}")
    out += [f"            now {line}" for line in best.differs_now]
    checkpoint = paths.best / "checkpoint"
    part = "folder" if (checkpoint / "files").is_dir() else "state"
    return [
        *out,
        f"checkpoint: {checkpoint}",
        f"in Python:  gpusched.load({str(paths.root)!r}).{part}",
        f"by hand:    {by_hand(paths, best)}",
    ]


def by_hand(paths: ExperimentPaths, best: best_model.Description) -> str:
    """Return the command that trains this configuration without gpusched, on one device, to the best model's step.

    What ``gpusched.init()`` needs goes through the environment: a script may refuse options that it does not know.
    """
    from gpusched.driver.assemble import read_recipe
    from gpusched.recipe.checks import PRIVATE
    from gpusched.space import arguments

    recipe = read_recipe(paths)
    environment = {name: value for name, value in recipe.env.items() if value is not None}
    environment["GPUSCHED_HPARAMS"] = str(paths.best / "hparams.json")
    environment["GPUSCHED_MAX_STEPS"] = str(best.step)
    settings = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    words = [str(recipe.python or "python"), str(recipe.script)]
    words += arguments.fill(recipe.args, best.hparams)
    where = [] if recipe.cwd == Path(PRIVATE) else ["cd", shlex.quote(str(recipe.cwd)), "&&"]
    return " ".join([*where, *settings, shlex.join(words)])
