"""Commands on all that a search leaves, while it runs and after: ``logs``, ``export``, ``report``, ``gc``."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from gpusched.cli import common
from gpusched.cli.common import argument
from gpusched.daemon import session
from gpusched.dashboard.model import FINAL, TrialRow, from_json
from gpusched.errors import InputError
from gpusched.folder import find
from gpusched.folder.files import read_from, read_json
from gpusched.folder.lock import Lock
from gpusched.folder.paths import ExperimentPaths, TrialPaths
from gpusched.journal import timeline
from gpusched.journal.timeline import Timeline
from gpusched.text import count, flat, log_line, no_trial, show_bytes

FINAL_EVERY_S = 2.0
"""Time after which ``logs -f`` asks again whether its trial is over."""

# ---------------------------------------------------------------- logs


@common.command(
    common.TRIAL,
    argument("-f, --follow", "show more as the trial prints"),
    argument("--rank N", "this rank (default: 0)", type=int),
    argument("--all", "all ranks"),
    argument("--launch N", "this launch (default: the latest)", type=int),
    lines="line",
)
def logs(args: argparse.Namespace) -> int:
    """Show what a trial printed; -f continues until the trial is over.

    Shown is rank 0 of the latest launch, unless --rank, --all or --launch say otherwise; with --all each line
    begins with its rank. Of what a rank printed the last 32 MiB are shown; a line says where more is left out.
    """
    paths, number = common.experiment(args), args.trial
    trial = paths.trial(number)
    if not trial.root.is_dir():
        raise InputError(no_trial(number, len(paths.trial_numbers)))
    ranks = _ranks(folder := _launch(trial, args.launch))
    if args.launch is None and (before := len(trial.incarnations) - 1):
        common.note(f"-- launch {folder.name}; --launch N shows one of the {before} before --")
    if ranks and args.rank is not None and args.rank not in ranks:
        raise InputError(f"this launch has no rank {args.rank}; the last is {ranks[-1]}")
    try:
        _print(paths, number, args)
    except KeyboardInterrupt:
        if not args.follow:
            raise
        print()  # below a line that grows
    return 0


def _launch(trial: TrialPaths, wanted: int | None) -> Path:
    known = trial.incarnations
    if not known:
        raise InputError(f"trial {int(trial.root.name)} has printed nothing yet")
    if wanted is not None and wanted not in known:
        raise InputError(f"this trial has no launch {wanted}; the latest is {known[-1]}")
    return trial.logs(wanted if wanted is not None else known[-1])


def _ranks(folder: Path) -> list[int]:
    named = {path.stem.removeprefix("rank-") for path in folder.glob("rank-*.*")}
    return sorted(int(name) for name in named if name.isdigit())


def _files(folder: Path, args: argparse.Namespace) -> list[tuple[int, str, Path]]:
    ranks = _ranks(folder) if args.all else [args.rank or 0]
    files = [(rank, s, folder / f"rank-{rank}.{s}") for rank in ranks for s in ("out", "err")]
    return [entry for entry in files if entry[2].exists()]


def _print(paths: ExperimentPaths, number: int, args: argparse.Namespace) -> None:
    """Print every line so far; with ``-f`` continue until the trial or the daemon has come to an end.

    A line that is not whole yet waits for its end; a terminal shows its present state below the others.
    """
    offsets: dict[Path, int] = {}
    folder = _launch(paths.trial(number), args.launch)
    ended, next_look_at = not args.follow, 0.0
    clear = "\r\x1b[K" if args.follow and not args.json and sys.stdout.isatty() else ""
    while True:
        latest = _launch(paths.trial(number), args.launch)  # the one before it has ended by now
        grows, growing = not ended and latest == folder, ""
        for rank, stream, path in _files(folder, args):
            found, offsets[path] = read_from(path, offsets.get(path, 0), is_growing=grows)
            whose = f"[{rank}] " if args.all else ""
            for line in map(log_line, found):
                if args.json:
                    common.print_json({"rank": rank, "stream": stream, "line": line})
                else:
                    print(f"{clear}{whose}{line}")
            for line in read_from(path, offsets[path])[0] if clear else ():
                growing = whose + log_line(line)
        print(end=f"{clear}{growing[: shutil.get_terminal_size().columns - 1]}", flush=True)
        if args.follow and latest != folder:
            folder = latest
            common.note(f"-- launch {folder.name} --")
            continue
        if ended:
            if not any(offsets.values()):
                common.note(f"trial {number} has printed nothing in launch {folder.name}")
            return
        ended = not find.has_daemon(paths)
        if not ended and time.monotonic() >= next_look_at:
            next_look_at = time.monotonic() + FINAL_EVERY_S
            ended = session.explanation(paths, number)["data"]["state"] in FINAL
        time.sleep(0.3)


# ---------------------------------------------------------------- export


@common.command(
    common.EXPERIMENT,
    argument("--trials", "one row a trial, not one a report"),
    lines="row",
)
def export(args: argparse.Namespace) -> int:
    """Print the reports of a search as CSV or JSON lines, one row a report: gpusched export > reports.csv.

    With --trials there is one row a trial: state, steps, metrics and hyperparameters.

    Works while the search runs, too. A recipe's log_to shows a search in other tools.
    """
    paths = common.experiment(args)
    if args.trials:
        from gpusched.dashboard.view import every_trial
        from gpusched.driver.assemble import from_journal

        state = from_journal(paths).experiment.state
        rows = [_of_trial(trial, state.trials[trial.id].metrics) for trial in every_trial(state)]
    else:
        rows = list(records(timeline.read(paths.journal)))
    if not rows:
        common.note(f"{paths.root.name}: nothing was reported")
    elif args.json:
        for row in rows:
            common.print_json(row)
    else:
        columns = dict.fromkeys(key for row in rows for key in row)
        writer = csv.DictWriter(sys.stdout, list(columns), restval="")
        writer.writeheader()
        writer.writerows(rows)
    return 0


def records(told: Timeline) -> Iterator[dict[str, Any]]:
    """Yield one flat mapping a report: trial, incarnation, .., metrics, then ``hparams.*``."""
    for number, trial in sorted(told.trials.items()):
        for incarnation, step in trial.steps():
            report = structs.asdict(step.report)
            metrics = report.pop("metrics")
            where = {"at_s": round(step.at, 3), "atoms": len(incarnation.devices)}
            yield _row({"trial": number, **report, **where}, metrics, trial.hparams)


def _of_trial(trial: TrialRow, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial as a flat mapping: its number first, then plain values, metrics, ``hparams.*`` last."""
    kinds = (dict, list, tuple)
    told = dataclasses.asdict(trial).items()
    plain = {key: value for key, value in told if not isinstance(value, kinds)}
    return _row({"trial": plain.pop("id"), **plain}, metrics, trial.hparams)


def _row(
    own: dict[str, Any], metrics: Mapping[str, Any], hparams: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a row; a metric that is called as a column of ours gets a longer name."""
    told = {f"metrics.{name}" if name in own else name: value for name, value in metrics.items()}
    return {**own, **told, **{f"hparams.{name}": value for name, value in flat(hparams)}}


# ---------------------------------------------------------------- report


@common.command(
    common.EXPERIMENT, argument("-o, --output FILE", "write the report to FILE", type=Path)
)
def report(args: argparse.Namespace) -> int:
    """Write an HTML report of a search: curves, devices, hyperparameters.

    One file with interactive plots that loads nothing from outside (5 MB): report.html in the search's folder unless
    --output says otherwise. To compare searches, give their recipes log_to: mlflow or wandb.
    """
    from gpusched.report import page

    paths = common.experiment(args)
    target: Path = args.output or paths.report
    recipe = read_json(paths.resolved) or {}  # a report needs none
    try:
        view = from_json(session.view(paths))
        text = page.html(view, timeline.read(paths.journal), recipe.get("space"))
        target.write_text(text, "utf-8", "replace")
    except OSError as error:
        why = f"{target}: the report cannot be written there ({error.strerror})"
        raise InputError(f"{why}; -o FILE writes to another file") from None
    return common.tell(args, {"report": str(target)}, str(target))


# ---------------------------------------------------------------- gc


@common.command(
    common.EXPERIMENT,
    argument("--yes", "remove them; otherwise nothing is removed"),
)
def gc(args: argparse.Namespace) -> int:
    """List checkpoints that nothing needs any more; with --yes remove them.

    Kept are the best model and, of an interrupted search, the newest checkpoints of every trial that is not over. Of a
    finished search only ``best/`` stays: resume continues none of its trials. A running search makes room by itself.
    """
    from gpusched.daemon import storage
    from gpusched.driver.assemble import from_journal

    paths = common.experiment(args)
    if find.has_daemon(paths):
        raise InputError(
            f"{paths.root.name} is running and removes its old checkpoints itself; run gc when the search has ended"
        )
    # A daemon must not begin to resume from a checkpoint that is being removed; the lock ends with this process.
    lock = Lock.take(paths.lock)
    state = from_journal(paths).experiment.state
    victims = storage.unneeded(paths, storage.Needs.of(state))
    number, size_bytes = len(victims), sum(map(storage.size_of, victims))
    if args.yes:
        number, size_bytes = storage.remove(victims)
    lock.release()
    found = f"{count(number, 'checkpoint')}, {show_bytes(size_bytes)}"
    told = f"removed {found}" if args.yes else f"not removed: {found}; --yes removes them"
    could_continue = state.finished and any(t.cut_atoms is not None for t in state.trials.values())
    if could_continue and not args.yes:
        told += ", after which 'gpusched resume' continues none of its trials"
    data = {"checkpoints": [*map(str, victims)], "bytes": size_bytes, "removed": args.yes}
    return common.tell(args, data, told if victims else "nothing to remove")
