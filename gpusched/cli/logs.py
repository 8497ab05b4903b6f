"""Output of trials: ``logs``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from gpusched.cli import common
from gpusched.cli.common import argument, one_of
from gpusched.daemon import session
from gpusched.dashboard.model import FINAL, from_json
from gpusched.errors import InputError
from gpusched.folder import find
from gpusched.folder.files import read_from
from gpusched.folder.paths import ExperimentPaths, TrialPaths

#: How often ``-f`` asks whether its trial is over.
FINAL_EVERY_S = 2.0
#: Characters that a terminal would take for a command (reliability F34): shown as a replacement character.
_CONTROL = {
    code: "\ufffd" for code in (*range(9), *range(11, 32), 127, *range(128, 160)) if code != 13
}


@common.command(
    common.TRIAL,
    argument("-f, --follow", "show more as the trial prints"),
    one_of(
        argument("--rank N", "this rank (default: 0)", type=int), argument("--all", "all ranks")
    ),
    argument("--launch N", "this launch (default: the latest)", type=int),
    lines="line",
)
def logs(args: argparse.Namespace) -> int:
    """Show what a trial printed; -f continues until the trial is over.

    Shown is rank 0 of the latest launch, unless --rank, --all or --launch say otherwise; with --all each line
    begins with its rank. Of a rank that printed more than 32 MiB the last are shown, and a line says so. Ctrl-C
    ends only the following.
    """
    paths = common.experiment(args)
    number = session.trial_number(args.trial)
    trial = paths.trial(number)
    if not trial.root.is_dir():
        known = paths.trial_numbers
        so_far = f"trials {_span(known)} have" if known else "none has"
        raise InputError(f"trial {number} has not been launched; so far {so_far}")
    folder = _launch(trial, args.launch)
    try:
        _print(paths, number, folder, args)
    except KeyboardInterrupt:
        if not args.follow:
            raise
    return 0


def _launch(trial: TrialPaths, wanted: int | None) -> Path:
    known = trial.incarnations
    if not known:
        raise InputError(f"trial {int(trial.root.name)} has printed nothing yet")
    if wanted is not None and wanted not in known:
        raise InputError(f"this trial has no launch {wanted}; there are {_span(known)}")
    return trial.logs(wanted if wanted is not None else known[-1])


def _files(folder: Path, args: argparse.Namespace) -> list[tuple[int, str, Path]]:
    named = {path.stem.removeprefix("rank-") for path in folder.glob("rank-*.*")}
    ranks = sorted(int(name) for name in named if name.isdigit())
    if args.rank is not None and args.rank not in ranks:
        raise InputError(f"this launch has no rank {args.rank}; ranks: {_span(ranks)}")
    if not args.all:
        ranks = [args.rank if args.rank is not None else 0]
    files = [(rank, s, folder / f"rank-{rank}.{s}") for rank in ranks for s in ("out", "err")]
    return [entry for entry in files if entry[2].exists()]


def _print(paths: ExperimentPaths, number: int, folder: Path, args: argparse.Namespace) -> None:
    """Print every line so far; with ``-f`` continue until the trial or the daemon has come to an end."""
    offsets: dict[Path, int] = {}
    ended, silent = False, True
    next_look_at = 0.0
    while True:
        for rank, stream, path in _files(folder, args):
            found, offsets[path] = read_from(path, offsets.get(path, 0))
            plain = (line.translate(_CONTROL) for line in found)
            lines = [part for line in plain for part in line.splitlines() or [""]]
            silent = silent and not lines
            for line in lines:
                if args.json:
                    common.print_json({"rank": rank, "stream": stream, "line": line})
                else:
                    print(f"[{rank}] {line}" if args.all else line, flush=args.follow)
        if not args.follow or ended:
            if silent:
                common.note(f"trial {number} has printed nothing in launch {folder.name}")
            return
        ended = not find.has_daemon(paths)
        if not ended and time.monotonic() >= next_look_at:
            next_look_at = time.monotonic() + FINAL_EVERY_S
            trial = from_json(session.view(paths)).trial(number)
            ended = trial is not None and trial.state in FINAL
        time.sleep(0.3)
        latest = _launch(paths.trial(number), args.launch)
        if latest != folder:
            folder = latest
            common.note(f"-- launch {folder.name} --")


def _span(numbers: list[int]) -> str:
    if len(numbers) < 2:
        return f"{numbers[0]} alone" if numbers else "none"
    return f"{numbers[0]} to {numbers[-1]}"
