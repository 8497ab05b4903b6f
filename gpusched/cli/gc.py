"""Remove checkpoints that nothing needs any more.

Kept are the best model and, of an experiment that may go on, the newest checkpoints of every trial that is not over. Of
a finished experiment only ``best/`` stays. A running experiment cleans up by itself when the disk has too little room.
"""

from __future__ import annotations

import argparse

from gpusched.cli import common
from gpusched.daemon import storage
from gpusched.driver.assemble import from_journal
from gpusched.errors import InputError
from gpusched.folder import find
from gpusched.folder.lock import Lock
from gpusched.text import count, show_bytes


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_experiment(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    if find.has_daemon(paths):
        raise InputError(
            f"{paths.root.name} is running and removes its old checkpoints itself; run gc when the experiment has ended"
        )
    # No daemon may begin to resume from what is just being removed; the lock goes with this process.
    lock = Lock.take(paths.lock)
    victims = storage.unneeded(paths, from_journal(paths).experiment.state)
    number, size_bytes = len(victims), sum(map(storage.size_of, victims))
    if not args.dry_run:
        number, size_bytes = storage.remove(victims)
    lock.release()
    if args.json:
        common.print_json(
            {"removed": [str(v) for v in victims], "bytes": size_bytes, "dry_run": args.dry_run}
        )
    else:
        verb = "would remove" if args.dry_run else "removed"
        what = f"{verb} {count(number, 'checkpoint')}, {show_bytes(size_bytes)}"
        print(what if number else "nothing to remove: every checkpoint is needed")
    return 0
