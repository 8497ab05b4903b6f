"""Checkpoints that nothing needs any more: ``gc``."""

from __future__ import annotations

import argparse

from msgspec import Struct

from gpusched.cli import common
from gpusched.daemon import storage
from gpusched.driver.assemble import from_journal
from gpusched.errors import InputError
from gpusched.folder import find
from gpusched.folder.lock import Lock
from gpusched.text import count, show_bytes


class Removed(Struct):
    """Folders of checkpoints, and their size. ``dry_run``: they are still there."""

    removed: list[str]
    bytes: int
    dry_run: bool


@common.command(
    common.EXPERIMENT,
    common.argument("--dry-run", "only say what would be removed"),
    prints=[Removed],
)
def gc(args: argparse.Namespace) -> int:
    """Remove checkpoints that nothing needs any more.

    Kept are the best model and, of an experiment that may go on, the newest checkpoints of every trial that is not
    over. Of a finished experiment only ``best/`` stays. A running experiment cleans up by itself when the disk has too
    little room.
    """
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
    verb = "would remove" if args.dry_run else "removed"
    told = f"{verb} {count(number, 'checkpoint')}, {show_bytes(size_bytes)}"
    gone = Removed([str(victim) for victim in victims], size_bytes, args.dry_run)
    nothing = "nothing to remove: every checkpoint is needed"
    return common.tell(args, gone, told if number else nothing)
