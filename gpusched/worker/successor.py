"""A prestarted incarnation, while the one before still trains: how its ranks wait, and from when they count.

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
from contextlib import suppress
from pathlib import Path

from gpusched.protocol import Handed
from gpusched.worker import lastword
from gpusched.worker.channel import Channel
from gpusched.worker.group import Call, Group
from gpusched.worker.handover import Received

_LOOK_S = 0.005
_PATIENCE_S = 5.0


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
        handed = self._hear() if self._channel is not None else None
        said = (
            (-1, 0, 0, 0)
            if handed is None
            else (handed.step, handed.pid, handed.state, handed.rest)
        )
        step, pid, state, rest = map(int, self._group.share(Call.RESTORE, *said))
        if step < 0:
            return None
        found: Received | None = None
        with suppress(OSError, ValueError, KeyError):
            found = Received(Handed(step, pid, state, rest), self._trial)
        if self._group.all_true(Call.RESTORE, found is not None):
            return found
        # The incarnation before has gone already: either it has committed this step, or this one will be ended.
        if found is not None:
            found.close()
        if self._channel is not None:
            self.confirm()
        self._group.share(Call.RESTORE, step)
        return None

    def _hear(self) -> Handed | None:
        assert self._channel is not None
        word = self._channel.wait_to_restore()
        until_s = time.monotonic() + _PATIENCE_S
        while word is None and not self.is_confirmed:
            # The daemon has gone. Either it has told our shim before that this counts, or the shim ends us.
            if time.monotonic() > until_s:
                self._give_up()
            time.sleep(_LOOK_S)
        return word.handed if word is not None else None

    def _give_up(self) -> None:
        lastword.mark_failed()
        raise SystemExit(1)

    @property
    def is_confirmed(self) -> bool:
        self._confirmed = self._confirmed or not self._mark.exists()
        return self._confirmed

    def confirm(self) -> None:
        """Wait until the incarnation counts. If it never does, its shim ends this process here."""
        while not self.is_confirmed:
            time.sleep(_LOOK_S)
