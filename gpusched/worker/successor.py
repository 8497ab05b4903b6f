"""An incarnation that was launched while the one before it still trains: how its ranks wait, and from when they count.

1. *Set up.* The script runs until something depends on where training stands: ``track``, ``steps``, ``report``, the
   step, a loader's position. There all ranks wait, and rank 0 says so to the daemon.
2. *Restored.* The daemon says what to go on from: what the one before hands over in memory while it commits the same
   to disk, or the newest checkpoint on disk. Training begins.
3. *Confirmed.* The one before has gone, its checkpoint is committed, and the launch is in the journal. The shim takes
   the mark ``waits`` away. Until then reports are kept back and nothing is saved: if the one before dies without a
   checkpoint, this incarnation is ended and has never been.

A successor lives by its line to the daemon: where that ends before it is confirmed, its shim ends it.
"""

from __future__ import annotations

import time
from pathlib import Path

from gpusched.worker import lastword
from gpusched.worker.channel import Channel
from gpusched.worker.group import Call, Group
from gpusched.worker.handover import Parcel, Received
from gpusched.worker.say import say

_LOOK_S = 0.005


class Successor:
    """``mark``: the file that is there until this incarnation counts. ``channel``: rank 0's; None elsewhere."""

    def __init__(self, mark: Path, group: Group, channel: Channel | None, trial: int) -> None:
        self._mark = mark
        self._group = group
        self._channel = channel
        self._trial = trial
        self._confirmed = False

    def wait(self) -> Received | None:
        """Until the trial may go on from here; what was handed over, None for the newest checkpoint on disk.

        All ranks call it. Raises SystemExit where it will never go on.
        """
        self._group.exchange(Call.RESTORE)
        parcel = self._hear() if self._channel is not None else Parcel(-1, 0, 0, 0)
        said = (parcel.step, parcel.pid, parcel.state, parcel.rest)
        step, pid, state, rest = map(int, self._group.share(Call.RESTORE, *said))
        if step < 0:
            return None
        found: Received | None = None
        try:
            found = Received(Parcel(step, pid, state, rest), self._trial)
        except (OSError, ValueError, KeyError) as problem:
            say(f"what was handed over cannot be opened: {problem}")
        if not self._group.all_true(Call.RESTORE, found is not None):
            self._give_up()
        return found

    def _hear(self) -> Parcel:
        assert self._channel is not None
        word = self._channel.told("restore")
        if word is None:
            self._give_up()
        return Parcel.read(word) or Parcel(-1, 0, 0, 0)

    def _give_up(self) -> None:
        lastword.mark_failed()
        raise SystemExit(1)

    @property
    def is_confirmed(self) -> bool:
        self._confirmed = self._confirmed or not self._mark.exists()
        return self._confirmed

    def confirm(self) -> None:
        """Wait until it counts. If it never does, this process is ended here."""
        while not self.is_confirmed:
            time.sleep(_LOOK_S)
