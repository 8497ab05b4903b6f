"""Output of trials: ``logs``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from msgspec import Struct

from gpusched.cli import common
from gpusched.daemon import session
from gpusched.errors import InputError
from gpusched.folder import find
from gpusched.folder.logcap import read_from
from gpusched.folder.paths import ExperimentPaths, TrialPaths

FINAL = ("completed", "stopped", "failed")
#: How often ``-f`` asks whether its trial is over.
FINAL_EVERY_S = 2.0
#: Characters that a terminal would take for a command (reliability F34): shown as a replacement character.
_CONTROL = {
    code: "\ufffd" for code in (*range(9), *range(11, 32), 127, *range(128, 160)) if code != 13
}


class Printed(Struct):
    """A line that a rank printed. ``stream``: out or err."""

    rank: int
    stream: str
    line: str


def _prepare(parser: argparse.ArgumentParser) -> None:
    common.add_trial(parser)
    add = common.add
    add(parser, "-f, --follow", "go on as the trial prints")
    which, stream = parser.add_mutually_exclusive_group(), parser.add_mutually_exclusive_group()
    add(which, "--rank N", "this rank (default: 0)", type=int)
    add(which, "--all", "all ranks")
    add(stream, "--err", "standard error only")
    add(stream, "--out", "standard output only")
    add(parser, "--incarnation N", "this launch (default: the latest)", type=int)
    add(parser, "-n, --lines N", "only the last N lines", type=int)


@common.command(_prepare, prints=[Printed], lines="line")
def logs(args: argparse.Namespace) -> int:
    """Show what a trial printed; -f goes on until the trial is over.

    Shown is rank 0 of the latest launch, unless --rank, --all or --incarnation say otherwise; with --all each line
    begins with its rank. Of a rank that printed more than 40 MiB the middle is gone, and a line says so. Ctrl-C ends
    only the following.
    """
    paths = common.experiment(args)
    number = session.trial_number(args.trial)
    trial = paths.trial(number)
    if not trial.root.is_dir():
        known = paths.trial_numbers
        so_far = f"trials {_span(known)} have" if known else "none has"
        raise InputError(f"trial {number} has not been launched; so far {so_far}")
    folder = _incarnation(trial, args.incarnation)
    try:
        _print(paths, number, folder, args)
    except KeyboardInterrupt:
        if not args.follow:
            raise
    return 0


def _incarnation(trial: TrialPaths, wanted: int | None) -> Path:
    known = trial.incarnations
    if not known:
        raise InputError(f"trial {int(trial.root.name)} has printed nothing yet")
    if wanted is not None and wanted not in known:
        raise InputError(
            f"this trial has no incarnation {wanted}; the trial has had {_span(known)}"
        )
    return trial.logs(wanted if wanted is not None else known[-1])


def _files(folder: Path, args: argparse.Namespace) -> list[tuple[int, str, Path]]:
    streams = [
        s for s in ("out", "err") if not (args.err and s == "out") and not (args.out and s == "err")
    ]
    ranks = sorted(
        {int(p.stem.removeprefix("rank-")) for p in folder.glob("rank-*.*") if p.stem[5:].isdigit()}
    )
    if args.rank is not None and args.rank not in ranks:
        raise InputError(f"this launch has no rank {args.rank}; ranks: {_span(ranks)}")
    if not args.all:
        ranks = [args.rank if args.rank is not None else 0]
    found = [
        (rank, stream, folder / f"rank-{rank}.{stream}") for rank in ranks for stream in streams
    ]
    return [entry for entry in found if entry[2].exists()]


def _print(paths: ExperimentPaths, number: int, folder: Path, args: argparse.Namespace) -> None:
    """Print every line so far; with ``-f`` go on until the trial or the daemon has come to an end."""
    offsets: dict[Path, int] = {}
    first, ended, silent = True, False, True
    next_look_at = 0.0
    while True:
        for rank, stream, path in _files(folder, args):
            found, offsets[path] = read_from(path, offsets.get(path, 0))
            lines = [
                part for line in found for part in line.translate(_CONTROL).splitlines() or [""]
            ]
            if first and args.lines is not None:
                lines = lines[max(0, len(lines) - args.lines) :]
            silent = silent and not lines
            for line in lines:
                if args.json:
                    common.print_json(Printed(rank, stream, line))
                else:
                    print(f"[{rank}] {line}" if args.all else line, flush=args.follow)
        if not args.follow or ended:
            if silent:
                common.note(f"trial {number} has printed nothing in launch {folder.name}")
            return
        first = False
        ended = not find.has_daemon(paths)
        if not ended and time.monotonic() >= next_look_at:
            next_look_at = time.monotonic() + FINAL_EVERY_S
            ended = _is_final(paths, number)
        time.sleep(0.3)
        latest = _incarnation(paths.trial(number), args.incarnation)
        if latest != folder:
            folder = latest
            common.note(f"-- incarnation {folder.name} --")


def _is_final(paths: ExperimentPaths, number: int) -> bool:
    """Tell whether the trial is over and so prints nothing more."""
    states = {trial["id"]: trial["state"] for trial in session.view(paths)["trials"]}
    return states.get(number) in FINAL


def _span(numbers: list[int]) -> str:
    if len(numbers) < 2:
        return f"{numbers[0]} alone" if numbers else "none"
    return f"{numbers[0]} to {numbers[-1]}"
