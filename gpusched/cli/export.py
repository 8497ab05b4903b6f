"""Reports and trials of an experiment for other programs: ``export``."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from msgspec import Struct
from msgspec.structs import asdict

from gpusched.cli import common
from gpusched.cli.common import argument
from gpusched.daemon import session
from gpusched.errors import GpuschedError, InputError
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal import timeline
from gpusched.journal.timeline import Timeline
from gpusched.loggers import base as loggers
from gpusched.loggers import follow
from gpusched.text import first_line, flat, show

#: Tools that take a search as runs: the option of the logger that an argument fills.
_TOOLS = {
    "tensorboard": ("dir", "event files under DIR"),
    "mlflow": ("uri", "to a server or sqlite:///FILE"),
    "wandb": ("dir", "offline runs under DIR, for 'wandb sync'"),
    "trackio": ("dir", "in the folder DIR, for 'TRACKIO_DIR=DIR trackio show'"),
}


class Row(Struct):
    """A report, or with --trials a trial; metrics and ``hparams.*`` stand beside."""

    trial: int
    step: int
    atoms: int


_STUDY = "a new study of Optuna in FILE: SQLite if FILE ends in .db, else a journal"


@common.command(
    common.EXPERIMENT,
    common.one_of(
        argument("--csv", "comma-separated values (the default)"),
        argument("--json", "one JSON object a line"),
        argument("--parquet", "Parquet; needs pyarrow and --output"),
        *(
            argument(f"--{name} {option.upper()}", f"hand the trials over as runs, {where}")
            for name, (option, where) in _TOOLS.items()
        ),
        argument("--optuna FILE", _STUDY, type=Path),
    ),
    argument("--trials", "one row a trial, not one a report"),
    argument("-o, --output FILE", "write to FILE instead of standard output"),
    prints=[Row],
    json=False,
)
def export(args: argparse.Namespace) -> int:
    """Write the reports of an experiment as CSV, JSON lines or Parquet, one row a report; or hand it to another tool.

    With --trials there is one row a trial: state, steps, metrics and hyperparameters.

    Works while the experiment runs, too.
    """
    paths = common.experiment(args)
    for name, (option, _) in _TOOLS.items():
        if (where := getattr(args, name)) is not None:
            return _hand_over(paths, name, {option: where})
    if args.optuna is not None:
        return _write_study(paths, args.optuna)
    if args.trials:
        rows = [_of_trial(trial) for trial in session.view(paths)["trials"]]
        rows.sort(key=lambda row: row["trial"])
    else:
        rows = list(records(timeline.read(paths.journal)))
    if not args.output and not args.parquet:
        _write(rows, sys.stdout, as_json=args.json)
        return 0
    try:
        if args.parquet:
            _write_parquet(rows, args.output)
        else:
            with Path(args.output).open("w", newline="") as out:
                _write(rows, out, as_json=args.json)
    except OSError as error:
        why = f"the export cannot be written there ({error.strerror or error})"
        raise InputError(f"{args.output}: {why}") from None
    return 0


def _hand_over(paths: ExperimentPaths, name: str, options: dict[str, Any]) -> int:
    kind: Any = loggers.load(name)
    try:
        follow.send_all(paths, lambda search: kind(search, **options))
    except GpuschedError:
        raise
    except Exception as error:
        why = first_line(f"{type(error).__name__}: {error}")
        tool = f"{name} {show(*options.values())}"
        raise InputError(f"{tool} did not take the search: {why}") from error
    return 0


def _write_study(paths: ExperimentPaths, file: Path) -> int:
    if find_spec("optuna") is None:
        raise InputError("--optuna needs Optuna; install it with: pip install 'gpusched[optuna]'")
    from gpusched.driver.assemble import read_recipe
    from gpusched.driver.clock import Beginning
    from gpusched.samplers import study
    from gpusched.space.space import parse_space

    recipe, view = read_recipe(paths), session.view(paths)
    began_s = Beginning.from_json(json.loads(paths.began.read_bytes())).wall_s
    states = {trial["id"]: trial["state"] for trial in view["trials"]}
    exported = []
    for number, trial in sorted(timeline.read(paths.journal).trials.items()):
        reported = [step for _, step in trial.steps()]
        curve = {s.report.step: s.metric for s in reported if s.metric is not None}
        last = trial.incarnations[-1]
        most_atoms = max(len(incarnation.devices) for incarnation in trial.incarnations)
        ended_s = last.exited_at if last.exited_at is not None else view["now_s"]
        exported.append(
            study.Exported(
                trial=number,
                hparams=trial.hparams,
                state=states.get(number, "stopped"),
                curve=sorted(curve.items()),
                began_s=began_s + trial.incarnations[0].launched_at,
                ended_s=began_s + ended_s,
                notes={"launches": trial.launches, "most atoms": most_atoms},
            )
        )
    study.write(
        file, paths.root.name, recipe.mode, parse_space(recipe.space, was_checked=True), exported
    )
    print(f"{file}: study {paths.root.name}, {len(exported)} trials")
    return 0


def _write(rows: list[dict[str, Any]], out: TextIO, *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False), file=out)
    else:
        writer = csv.DictWriter(out, columns(rows), restval="")
        writer.writeheader()
        writer.writerows(rows)


def records(told: Timeline) -> Iterator[dict[str, Any]]:
    """Yield one flat mapping a report: trial, incarnation, .., metrics, then ``hparams.*``."""
    for number, trial in sorted(told.trials.items()):
        hparams = {f"hparams.{name}": value for name, value in flat(trial.hparams)}
        for incarnation, step in trial.steps():
            report = asdict(step.report)
            metrics = report.pop("metrics")
            where = {"at_s": round(step.at, 3), "atoms": len(incarnation.devices)}
            yield {"trial": number, **report, **where, **metrics, **hparams}


def _of_trial(trial: dict[str, Any]) -> dict[str, Any]:
    """Return a trial of the view as a flat mapping: its number first, then plain values, ``hparams.*`` last."""
    plain = {key: value for key, value in trial.items() if not isinstance(value, dict | list)}
    hparams = {f"hparams.{name}": value for name, value in flat(trial["hparams"])}
    return {"trial": plain.pop("id"), **plain, **hparams}


def columns(rows: list[dict[str, Any]]) -> list[str]:
    """List all keys in the order in which they first appear."""
    return list(dict.fromkeys(key for row in rows for key in row))


def _write_parquet(rows: list[dict[str, Any]], output: str | None) -> None:
    if output is None:
        raise InputError("--parquet needs --output FILE: Parquet is not for a terminal")
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "--parquet needs pyarrow; install it beside gpusched: pip install pyarrow"
        ) from None
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in columns(rows)})
    pyarrow.parquet.write_table(table, output)
