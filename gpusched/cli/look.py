"""Standing of searches and trials: ``status``, ``ls``, ``best``, ``explain``, and in words the end of ``run``."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpusched.cli import common
from gpusched.daemon import best_model, session
from gpusched.dashboard.model import (
    BestRow,
    Standing,
    TrialRow,
    device_notes,
    from_json,
    idle_atoms,
    idle_shares,
)
from gpusched.errors import GpuschedError
from gpusched.folder import find
from gpusched.folder.files import read_json
from gpusched.folder.paths import ExperimentPaths
from gpusched.text import (
    count,
    flat,
    hparam_texts,
    log_line,
    show_duration,
    show_hparams,
    show_metric,
)


@common.command(common.TRIAL)
def explain(args: argparse.Namespace) -> int:
    """Explain why a trial is where it is, how it came there, and with which options its script trains alone."""
    from gpusched.space.space import command_line

    paths = common.experiment(args)
    answer = session.explanation(paths, args.trial)
    words = [common.paragraph(log_line(line), rest=" " * 15) for line in answer["lines"]]
    seed = (read_json(paths.trial(args.trial).hparams) or {}).get("seed")
    if seed is not None:
        answer["data"]["seed"] = seed
        hparams = answer["data"]["hparams"]
        own = (read_json(paths.resolved) or {}).get("args", ())
        passed = (read_json(paths.worker) or {}).get("passed", ())
        rest = {name: value for name, value in flat(hparams) if name not in passed}
        if not passed:  # else a parser of the script's own may refuse --seed
            rest = {"seed": seed, **rest}
        alone = command_line(own, hparams, args.trial, ".")  # trial.folder without a search
        alone += command_line(["${hparams}"], rest, args.trial, ".")
        words += ["", log_line(f"to train it alone (seed {seed}): {shlex.join(alone)}")]
    return common.tell(args, answer["data"], "\n".join(words))


# ---------------------------------------------------------------- status


@common.command(
    common.EXPERIMENT,
    common.argument("--all", "up to 200 trials, not 20"),
)
def status(args: argparse.Namespace) -> int:
    """Show where a search stands: its trials, its devices and why they are idle, the best so far."""
    paths = common.experiment(args)
    view = session.view(paths)
    words = lines(from_json(view), everything=args.all)
    is_interrupted = view["state"] == "interrupted"
    view["failure"] = str(session.failure(paths)) if is_interrupted else None
    if is_interrupted:
        words[1:1] = view["failure"].splitlines()
    return common.tell(args, view, "\n".join(words))


def lines(view: Standing, *, everything: bool = False) -> list[str]:
    """Word the standing; pure."""
    by_state = dataclasses.asdict(view.atoms)
    total = count(by_state.pop("total"), "atom")
    counts = ", ".join(f"{number} {state}" for state, number in by_state.items() if number)
    out = [_headline(view), f"{total}: {counts or 'none in use'}"]
    out += [f"  {line}" for line in (*idle_atoms(view), *idle_shares(view))]
    if (best := view.best) is not None:
        score = f"{view.metric} {show_metric(best.metric)}"
        out.append(f"best: {score}, trial {best.trial} at step {best.step}")
    out += [f"note: {text}" for text in (*view.notes, *view.warnings, *device_notes(view))]
    out += failures(view)
    return out + trials(view, None if everything else 20)


def trials(view: Standing, most: int | None) -> list[str]:
    """Word the trials, the best first, at most so many, as a table below an empty line."""
    shown = view.trials[:most]
    head = ("trial", "state", "step", view.metric, "best", "atoms", "launches", "hparams")
    rows = [
        (
            trial.id,
            trial.state,
            trial.step,
            show_metric(trial.metric),
            show_metric(trial.best_metric),
            trial.atoms or "-",
            trial.incarnation,
            show_hparams(trial.hparams),
        )
        for trial in shown
    ]
    out = ["", common.table(head, rows, head[:1] + head[2:-1])]
    if more := sum(view.trial_counts.values()) - len(shown):
        name = _argument(view)
        are_all_there = len(shown) < len(view.trials) == sum(view.trial_counts.values())
        how = f"status{name} --all' shows" if are_all_there else f"export{name} --trials' lists"
        out.append(f"... and {more} more ('gpusched {how} them)")
    return out if shown else []


def _headline(view: Standing) -> str:
    why = f" ({view.ending})" if view.ending else ""
    parts = [f"{view.experiment}: {view.state}{why}", f"policy {view.policy}"]
    if view.state == "running":
        parts.append(f"{show_duration(view.time_left_s)} left")
    if view.daemon_pid:
        parts.append(f"daemon {view.daemon_pid}")
    return ", ".join(parts)


#: Different errors of trials that are told.
ERRORS = 4
ASKED_FOR = ("stopped by", "cancelled by")  # begins the reason for an end by a person or a signal


def failures(view: Standing) -> Iterator[str]:
    """Say how many trials failed, and why: the first trial of each error, for the first few errors."""
    if found := _failed(view):
        failed, first = view.trial_counts.get("failed", len(found)), found[0]
        yield f"{count(failed, 'trial')} failed; the first, trial {first.id} at step {first.step}: {first.error}"
    for trial in found[1:ERRORS]:
        yield f"  another error, trial {trial.id} at step {trial.step}: {trial.error}"
    again = [trial for trial in view.trials if trial.error and trial.state != "failed"]
    for trial in again[:ERRORS]:
        yield f"trial {trial.id} {trial.error}"


def _failed(view: Standing) -> list[TrialRow]:
    """List the first trial of each error."""
    failed = (trial for trial in view.trials if trial.state == "failed")
    first = {one.error: one for one in sorted(failed, key=lambda trial: -trial.id)}
    return sorted(first.values(), key=lambda trial: trial.id)


def _behind(better: TrialRow) -> str:
    """Say that the best model on disk is not of the best report."""
    return (
        f"behind the best report, {show_metric(better.best_metric)} of trial {better.id} at step {better.best_step}, "
        "which has no checkpoint"
    )


# ---------------------------------------------------------------- ls


@common.command(common.DIR, lines="experiment")
def ls(args: argparse.Namespace) -> int:
    """List the searches in a folder, the latest last: state, metric, best so far."""
    runs = find.runs_folder(args.dir)
    rows = [_listed(paths) for paths in find.experiments(runs)]
    if args.json:
        for row in rows:
            common.print_json(row)
    elif not rows:
        print(f"{runs}/ has no searches yet; 'gpusched run RECIPE' starts one")
    else:
        head = ("search", "state", "metric", "best", "folder")
        cells = [
            (r["experiment"], r["state"], r["metric"] or "-", show_metric(r["best"]), r["folder"])
            for r in rows
        ]
        print(common.table(head, cells, ("best",)))
    return 0


def _listed(paths: ExperimentPaths) -> dict[str, Any]:
    """Describe a search from small files alone, so that a hundred are listed at once."""
    final = (read_json(paths.final_view) or {}).get("state", "interrupted")
    return {
        "experiment": paths.root.name,
        "state": "running" if find.has_daemon(paths) else final,
        "metric": (read_json(paths.resolved) or {}).get("metric"),
        "best": (read_json(paths.best / "metric.json") or {}).get("value"),
        "folder": str(paths.root),
    }


# ---------------------------------------------------------------- best


@common.command(common.EXPERIMENT)
def best(args: argparse.Namespace) -> int:
    """Show the best model so far: its metric, its configuration, where its checkpoint lies, and how to use it."""
    from gpusched.daemon import provenance

    paths = common.experiment(args)
    about = best_model.describe(paths)
    better: TrialRow | None = None
    with contextlib.suppress(GpuschedError, OSError, ValueError):
        better = from_json(session.view(paths)).best_unsaved
    found = {
        **dataclasses.asdict(about),
        "best_unsaved": better,
        "code": provenance.recorded(paths),
        "said": common.said(paths.trial(about.trial)),
    }
    out = [f"{about.metric} {show_metric(about.value)}: trial {about.trial} at step {about.step}"]
    out += [_behind(better)] if better is not None else []
    out += [f"  {key} = {value}" for key, value in flat({"seed": about.seed} | about.hparams)]
    if words := provenance.in_words(found["code"]):
        out.append(f"code:       {words}")
    checkpoint = paths.best / "checkpoint"
    part = "folder" if (checkpoint / "files").is_dir() else "state"
    out += [
        f"checkpoint: {checkpoint}",
        f"in Python:  import gpusched; {part} = gpusched.load({str(paths.root)!r}).{part}",
        *(f"note:       {text}" for text in found["said"]),
    ]
    return common.tell(args, found, "\n".join(out))


# ---------------------------------------------------------------- the end of a run


def summary(view: Standing) -> str:
    """Word the end in some lines of plain text; how an interrupted search continues is told with its failure."""
    if view.best is None:
        lines = [_outcome(view), "", *_no_winner(view)]
    else:
        told = (_outcome(view), *failures(view), *idle_shares(view))
        lines = [*told, "", *_winner(view, view.best)]
    return "\n".join(lines)


def _argument(view: Standing) -> str:
    return find.as_argument(ExperimentPaths(Path(view.folder)))


def _outcome(view: Standing) -> str:
    counts = ", ".join(f"{number} {state}" for state, number in view.trial_counts.items() if number)
    trials = count(view.trials_total, "trial") + (f" ({counts})" if counts else "")
    words = {"finished": "is over", "interrupted": "was interrupted"}
    how = words.get(view.state, f"is {view.state}")
    why = f" ({view.ending})" if view.ending and view.state == "finished" else ""
    return f"{view.experiment} {how}{why} after {show_duration(view.now_s)}: {trials}"


def _winner(view: Standing, best: BestRow) -> Iterator[str]:
    atoms = f", on {count(best.atoms, 'atom')}" if best.atoms else ""
    score = f"{show_metric(best.metric)}  (trial {best.trial} at step {best.step}{atoms})"
    paths = ExperimentPaths(Path(view.folder))
    checkpoint = ("checkpoint", str(paths.best / "checkpoint"))
    rows = [(view.metric, score), *hparam_texts(best.hparams), checkpoint]
    column = max(len(name) for name, _ in rows)
    for name, value in rows:
        yield f"  {name:<{column}}  {value}"
    yield from (f"  note: {text}" for text in common.said(paths.trial(best.trial)))
    if view.best_unsaved is not None:
        yield f"B{_behind(view.best_unsaved)[1:]}."
    yield ""
    if view.state != "interrupted":
        from gpusched.daemon.resuming import OUT_OF_TIME

        name = _argument(view)
        ways = {
            f"best{name}": "how to load the model",
            f"explain {best.trial}{name}": "the trial's story",
            f"report{name}": "plots of the whole search",
        }
        is_asked_for = (view.ending or "").startswith(ASKED_FOR)
        if is_asked_for and view.time_left_s:
            ways[f"resume{name}"] = "continue, with the time that is left"
        elif is_asked_for or view.ending in OUT_OF_TIME:
            ways[f"resume{name} --deadline +1h"] = "an hour more"
        for way, what in ways.items():
            yield f"  gpusched {way:<{max(map(len, ways))}}  {what}"


def _no_winner(view: Standing) -> Iterator[str]:
    """Say why no model was found, as far as that can be told, and what to do."""
    name = _argument(view)
    if failed := _failed(view):
        yield "No trial left a model."
        yield from failures(view)
        yield f"'gpusched logs {failed[0].id}{name}' shows what the trial printed. Mend the script or the recipe."
    elif view.state == "interrupted":
        return
    elif (view.ending or "").startswith(ASKED_FOR) and not any(t.step for t in view.trials):
        yield "The search was ended before a trial had reported a step."
        if view.time_left_s:
            yield f"'gpusched resume{name}' continues it."
    elif not view.trials_total:
        yield (
            f"No trial was started: no device was free ('gpusched gpus' shows who holds them), no configuration came "
            f"in time, or the policy {view.policy} started none. Give a longer --deadline."
        )
    elif all(trial.step == 0 for trial in view.trials):
        yield (
            f"No trial reported a step before the end. The script must call trial.report(..) after each step; if a "
            f"step takes longer, give a longer --deadline. 'gpusched logs 0{name}' shows how far the first trial came."
        )
    elif all(trial.best_metric is None for trial in view.trials):
        yield (
            f"No report of {view.metric} was a finite number: training diverged (try smaller learning rates), or the "
            f"script computes it wrongly."
        )
    else:
        yield (
            f"Trials reported, but none saved a checkpoint: the script must name its model, as in trial.steps(.., "
            f"model=model), or the disk refused them: 'gpusched logs 0{name}' shows what trial 0 was told."
        )
