"""Which daemon of an experiment is the one: its epoch, a number that only grows.

A daemon that was stopped (SIGSTOP, a debugger, a suspended virtual machine) holds its lock; but locks can be lost: the
file is removed by hand, the folder is moved, a network file system forgets. So each daemon takes the next number before
it reads anything, in the journal and in a file that shims can read, and whoever meets an older number than the highest
it knows refuses it: the journal in the transaction that would write, shims by closing the line; a launch of an older
epoch does not begin. The older daemon notices and leaves without touching anything (``Fenced``).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gpusched import failpoints
from gpusched.errors import Fenced, GpuschedError
from gpusched.folder.files import write_durably

NAME = "epoch"
_LONGEST = 20


def read_epoch(experiment: Path | str) -> int:
    """Return the epoch of the newest daemon of the experiment in this folder; 0 if unknown."""
    with suppress(OSError, ValueError):
        descriptor = os.open(f"{experiment}/{NAME}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return int(os.read(descriptor, _LONGEST))
        finally:
            os.close(descriptor)
    return 0


class Epoch:
    """The number of this daemon. Raises GpuschedError where it cannot be written down."""

    def __init__(self, experiment: Path, known: int) -> None:
        """``known``: the highest number the journal has seen. The experiment's lock is held."""
        self._experiment = experiment
        self.number = max(read_epoch(experiment), known) + 1
        failpoints.reach("epoch.before")
        try:
            write_durably(experiment / NAME, f"{self.number}\n".encode())
        except OSError as error:
            raise GpuschedError(
                f"{experiment / NAME}: cannot be written ({error.strerror}), so no daemon can take over; "
                "make room, or look at the permissions, and try again"
            ) from None
        failpoints.reach("epoch.file")

    def check(self) -> None:
        """Raises Fenced if a newer daemon has begun."""
        newest = read_epoch(self._experiment)
        if newest > self.number:
            raise Fenced(self.number, newest)
