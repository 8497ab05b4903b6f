"""What a trial printed. ``-f`` follows until the trial is over; Ctrl-C ends only the following.

Without --rank, rank 0's output; with --all, every rank's, each line behind its rank. The latest incarnation counts
unless --incarnation names another. Of a rank that printed more than 40 MiB the middle is gone, and a line says so.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from gpusched.cli import common
from gpusched.cli.logfile import read_from
from gpusched.daemon import session
from gpusched.errors import InputError
from gpusched.folder import find
from gpusched.folder.paths import ExperimentPaths, TrialPaths

FINAL = ("completed", "stopped", "failed")
#: How often ``-f`` asks whether its trial is over.
FINAL_EVERY_S = 2.0


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trial", metavar="TRIAL", help="number of the trial")
    common.add_experiment(parser, option=True)
    parser.add_argument("-f", "--follow", action="store_true", help="go on as it prints")
    parser.add_argument("--rank", type=int, metavar="N", help="this rank only (default: 0)")
    parser.add_argument("--all", action="store_true", help="all ranks")
    parser.add_argument("--err", action="store_true", help="standard error only")
    parser.add_argument("--out", action="store_true", help="standard output only")
    parser.add_argument(
        "--incarnation", type=int, metavar="N", help="this launch (default: the latest)"
    )
    parser.add_argument("-n", "--lines", type=int, metavar="N", help="only the last N lines")
    common.add_json(parser, 'print {"rank", "stream", "line"} objects')


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    number = session.trial_number(args.trial)
    trial = paths.trial(number)
    if not trial.root.is_dir():
        known = list(find.trial_folders(paths))
        raise InputError(f"trial {number} has not been launched; those that have: {_ranges(known)}")
    folder = _incarnation(trial, args.incarnation)
    try:
        _print(paths, number, folder, args)
    except KeyboardInterrupt:
        if not args.follow:
            raise
    return 0


def _incarnation(trial: TrialPaths, wanted: int | None) -> Path:
    logs = trial.root / "logs"
    known = sorted(int(p.name) for p in logs.iterdir() if p.name.isdigit()) if logs.is_dir() else []
    if not known:
        raise InputError(f"{trial.root.name} has printed nothing yet")
    if wanted is not None and wanted not in known:
        raise InputError(
            f"there is no incarnation {wanted} of this trial; there are {_ranges(known)}"
        )
    return logs / str(wanted if wanted is not None else known[-1])


def _files(folder: Path, args: argparse.Namespace) -> list[tuple[int, str, Path]]:
    streams = [
        s for s in ("out", "err") if not (args.err and s == "out") and not (args.out and s == "err")
    ]
    ranks = sorted(
        {int(p.stem.removeprefix("rank-")) for p in folder.glob("rank-*.*") if p.stem[5:].isdigit()}
    )
    if args.rank is not None and args.rank not in ranks:
        raise InputError(f"there is no rank {args.rank}; there are {_ranges(ranks)}")
    if not args.all:
        ranks = [args.rank if args.rank is not None else 0]
    found = [
        (rank, stream, folder / f"rank-{rank}.{stream}") for rank in ranks for stream in streams
    ]
    return [entry for entry in found if entry[2].exists()]


def _print(paths: ExperimentPaths, number: int, folder: Path, args: argparse.Namespace) -> None:
    """Everything there is; then, with ``-f``, what is added until its trial or the daemon has come to its end."""
    offsets: dict[Path, int] = {}
    first, ended = True, False
    next_look_at = 0.0
    while True:
        for rank, stream, path in _files(folder, args):
            lines, offsets[path] = read_from(path, offsets.get(path, 0))
            if first and args.lines is not None:
                lines = lines[max(0, len(lines) - args.lines) :]
            for line in lines:
                if args.json:
                    common.print_json({"rank": rank, "stream": stream, "line": line})
                else:
                    print(f"[{rank}] {line}" if args.all else line, flush=args.follow)
        if not args.follow or ended:
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
    """Whether nothing more will be printed by this trial."""
    states = {trial["id"]: trial["state"] for trial in session.view(paths)["trials"]}
    return states.get(number) in FINAL


def _ranges(numbers: list[int]) -> str:
    """``0 to 3, 7``."""
    return ", ".join(_runs(numbers)) or "none"


def _runs(numbers: list[int]) -> Iterator[str]:
    start = previous = None
    for number in [*numbers, None]:
        if previous is not None and number == previous + 1:
            previous = number
            continue
        if start is not None:
            yield f"{start}" if start == previous else f"{start} to {previous}"
        start = previous = number
