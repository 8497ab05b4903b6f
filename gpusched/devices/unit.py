"""A device: one GPU, or one of several shares of it. What a trial does with it, and whether it may be used.

    FREE ──hold──▶ HELD ──drain──▶ DRAINING ──release confirmed──▶ FREE

and, whatever it is doing, it may be *out*: taken out of use, with a reason (a stranger, another search's lease, a late
release, a driver that does not answer, a GPU that is lost or asks for a reset). It is used again once it has been clean
and well for a while. Nothing here blocks: it looks at the newest readings. A device's id is its GPU's UUID, a share's
has ``#`` and a number behind it, so a search that is resumed finds its devices by its journal.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpusched.devices.base import Device, Quarantined, Reading
from gpusched.devices.nvml import Gpu, Vitals, illness, slowed_by
from gpusched.devices.release import Seen, Verdict, judge, learn
from gpusched.folder.files import read_json, write_durably
from gpusched.processes.identity import boot_id

SHARE = "#"
SILENCE_MAX_S = 5.0
"""A free GPU whose driver does not answer for so long is not known to be free any more."""
CLEAN_FOR_S, STRANGER_AWAY_S = 3.0, 30.0
"""A reason must have been gone for so long; a stranger's process: jobs often come in rows, and the next one imports and
reads for a while before it is on the GPU."""
WINDOWS_S = 600.0
"""After so long the memory that a GPU with a screen has in use, and that no process is named for, is its windows'."""
NEVER = -math.inf


class Board:
    """The newest reading of one GPU. ``gone``: why the GPU is out of reach; empty while it is not."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        # Of a GPU that is not shown to a search that is resumed, the UUID alone is known.
        self.gone = "" if gpu.is_shown else "the driver or CUDA_VISIBLE_DEVICES hides it"
        if gpu.mig:
            off = f"`sudo nvidia-smi -i {gpu.index} -mig 0` switches MIG off"
            self.gone = f"MIG has cut it into slices, which gpusched does not use ({off})"
        #: Memory in use when nobody is on the GPU; None: nobody has seen it so.
        self.idle_bytes: int | None = None
        self.seen: Seen | None = None
        self.vitals: Vitals | None = None
        #: Time of the newest reading with a stranger's process.
        self.stranger_at = NEVER
        #: Since when an answer is due that has not come; also while another GPU's question hangs.
        self.waits_since: float | None = None
        self.asked_at = NEVER
        self.not_before = 0.0

    def illness(self) -> str:
        """Say what is wrong with the GPU."""
        if self.gone or self.vitals is None:
            return self.gone
        return illness(self.gpu.index, self.vitals)

    def keep(self, seen: Seen) -> None:
        """Take a reading."""
        self.gone, self.seen = "", seen
        self.vitals = seen.vitals or self.vitals
        if any(one.whose == "foreign" and not one.is_of_the_machine for one in seen.holders):
            self.stranger_at = seen.at


class Doing(enum.Enum):
    FREE = "free"
    HELD = "held"
    DRAINING = "draining"


@dataclass(slots=True)
class Out:
    """A reason why a device is out of use, until ``rests_until`` at least.

    ``leased``: by another search; ``is_told``: people know.
    """

    reason: str
    since: float
    leased: bool
    is_told: bool
    rests_until: float


class Unit:
    """The state of one device. ``limit_bytes``: most that may be in use on a GPU that nobody has seen idle yet."""

    def __init__(
        self,
        board: Board,
        island: int,
        now: Callable[[], float],
        *,
        limit_bytes: int,
        share: int | None = None,
    ) -> None:
        self.board = board
        self.island = island
        self._now = now
        gpu = board.gpu
        self.id = gpu.uuid if share is None else f"{gpu.uuid}{SHARE}{share + 1}"
        self.label = gpu.label if share is None else f"{gpu.label} {SHARE}{share + 1}"
        #: The other shares of the same GPU.
        self.neighbours: tuple[Unit, ...] = ()
        self.doing = Doing.FREE
        #: The time at which a trial got it, or at which the trial's process tree was empty.
        self.changed_at = NEVER
        self.out: Out | None = None
        #: Until when a release must be complete.
        self.release_until: float | None = None
        self._limit_bytes = limit_bytes
        self._clean_since: float | None = None

    # ---------------------------------------------------------------- readings

    @property
    def gpu(self) -> Gpu:
        return self.board.gpu

    def verdict(self, since: float = NEVER, *, is_late: bool = False) -> Verdict:
        """Judge the newest reading, if it was begun after ``since``."""
        board, seen = self.board, self.board.seen
        if board.gone:
            return Verdict(False, board.gone)
        if seen is None or seen.at <= since:
            return Verdict(False, self._silence() or "waiting for the driver's answer")
        return judge(
            seen,
            self._limit_bytes if board.idle_bytes is None else board.idle_bytes,
            was_seen=board.idle_bytes is not None,
            is_beside_trial=any(unit.doing is Doing.HELD for unit in self.neighbours),
            is_beside_release=self.doing is Doing.FREE
            and any(unit.doing is Doing.DRAINING and not unit.out for unit in self.neighbours),
            is_late=is_late and not self.neighbours,
        )

    @property
    def is_leaving(self) -> bool:
        """Whether the GPU is not free only for processes that have ended, or for memory that nobody is named for."""
        verdict, is_read = self.verdict(), self.board.seen is not None and not self.board.gone
        return is_read and not verdict.is_free and all(h.whose == "gone" for h in verdict.holders)

    def learn(self) -> None:
        """Take the newest reading into what the GPU has in use when nobody is on it."""
        board, shares = self.board, (self, *self.neighbours)
        if board.seen is not None and all(unit.doing is Doing.FREE for unit in shares):
            board.idle_bytes = learn(board.seen, board.idle_bytes, self._limit_bytes)

    def _silence(self) -> str:
        """Say that the driver has not answered a question about the GPU for long; empty if it has."""
        since = self.board.waits_since
        silent_s = 0.0 if since is None else self._now() - since
        return f"NVML has not answered for {silent_s:.0f} s" if silent_s > SILENCE_MAX_S else ""

    # ---------------------------------------------------------------- a trial's use of it

    def hold(self) -> None:
        """Give the device to a trial."""
        self.doing, self.changed_at = Doing.HELD, self._now()

    def drain(self) -> Quarantined | None:
        """Note that the trial's process tree is empty: readings begun from now on tell whether the device is free.

        A device that an earlier daemon left, and this one gave to nobody, has had no release: it is out at once unless
        it was clean.
        """
        if self.doing is not Doing.HELD:
            return None
        is_left, verdict = self.changed_at == NEVER, self.verdict()
        self.doing, self.changed_at = Doing.DRAINING, self._now()
        if is_left and verdict.is_free:
            self._be_free()
        elif is_left and self.out is None:
            self.take_out(verdict.why)
            return self.tell()
        return None

    def wait_for_release(self, limit_s: float) -> None:
        """Begin to wait; a wait that has begun continues as it was. A device that is out comes back by that alone."""
        if self.out is not None:
            self.drain()
        elif self.release_until is None:
            self.doing, self.changed_at = Doing.DRAINING, self._now()
            self.release_until = self.changed_at + limit_s

    def end_release(self) -> bool:
        """End the release that is waited for: True if it is complete; a late one takes the device out of use."""
        if self.release_until is None:
            return False
        verdict = self.verdict(self.changed_at)
        if verdict.is_free:
            self._be_free()
            return True
        if self._now() >= self.release_until:
            waited_s = self._now() - self.changed_at
            self.take_out(f"not released after {waited_s:.0f} s: {verdict.why}")
        return False

    def _be_free(self) -> None:
        self.doing, self.release_until, self._clean_since = Doing.FREE, None, None

    # ---------------------------------------------------------------- out of use and back

    def take_out(self, reason: str, *, leased: bool = False, rest_s: float = 0.0) -> None:
        """Take the device out of use; a new reason for one that is out already is not told."""
        is_told, now = self.out is not None and self.out.is_told, self._now()
        self.out = Out(reason, now, leased, is_told, now + rest_s)
        self.release_until = self._clean_since = None

    def fault(self) -> Quarantined | None:
        """Return why the device must not be used any more, once; None if nothing is new."""
        out, ill = self.out, self.board.illness()
        if ill and (out is None or (ill != out.reason and not out.leased)):
            self.out = None  # told anew: a stranger's GPU was lost as well
            self.take_out(ill)
        elif out is None and (busy := self._busy()):
            self.take_out(busy)
        return None if self.out is None or self.out.is_told else self.tell()

    def tell(self) -> Quarantined:
        """Return why the device is out of use; from now on people know."""
        assert self.out is not None
        self.out.is_told = True
        return Quarantined(self.id, self.out.reason)

    def _busy(self) -> str:
        """Say why a device that should be free is not known to be."""
        seen = self.board.seen
        if self.doing is not Doing.FREE:
            return ""
        if silence := self._silence():
            return silence
        if seen is None:
            return ""
        shares = (self, *self.neighbours)
        if any(seen.at <= unit.changed_at for unit in shares if unit.doing is not Doing.HELD):
            return ""
        return self.verdict().why

    def must_be_closed(self) -> str:
        """Say what the GPU waits for, of one on which nobody is and that must not be open for that; empty if none."""
        is_in_use = any(unit.doing is Doing.HELD for unit in (self, *self.neighbours))
        return "" if is_in_use or self.board.gone else self.board.illness()

    def can_recover(self) -> bool:
        """Tell whether the reason has passed: the device has been clean and well for a while."""
        out, seen = self.out, self.board.seen
        if out is None or out.leased or self.doing is Doing.HELD or self._now() < out.rests_until:
            return False
        is_late = self._now() - max(out.since, self.board.stranger_at) > WINDOWS_S
        is_clean = self.verdict(max(out.since, self.changed_at), is_late=is_late).is_free
        if seen is None or not is_clean or self.board.illness():
            self._clean_since = None
            return False
        self._clean_since = seen.at if self._clean_since is None else self._clean_since
        is_alone = seen.at - self.board.stranger_at >= STRANGER_AWAY_S
        return is_alone and seen.at - self._clean_since >= CLEAN_FOR_S

    def back_in_use(self) -> None:
        """Make a device that can recover FREE again."""
        self.out = None
        self._be_free()
        if self.board.seen is not None and not self.verdict().is_free:
            self.board.idle_bytes = self.board.seen.own_bytes
        self.learn()

    # ---------------------------------------------------------------- for others

    def as_device(self) -> Device:
        """Describe the unit as the core's device."""
        why = f"{self.label}: {self.out.reason}" if self.out else ""
        return Device(self.id, self.label, self.island, not why, why)

    def reading(self) -> Reading:
        """Describe the device for people."""
        seen, vitals = self.board.seen, self.board.vitals
        notes = [self.out.reason] if self.out else []
        if vitals and (slowed := slowed_by(vitals)):
            notes.append(slowed)
        if self.release_until is not None:
            notes.append(f"not released yet: {self.verdict(self.changed_at).why}")
        holders = [one for one in seen.holders if not one.is_of_the_machine] if seen else []
        strangers = tuple(
            str(holder)
            for holder in holders
            if self.doing is Doing.HELD and holder.whose == "foreign"
        )
        notes += [f"shared with {stranger}" for stranger in strangers]
        return Reading(
            device=self.id,
            utilisation=vitals.utilisation if vitals else None,
            memory_used_bytes=seen.memory_bytes if seen else None,
            memory_total_bytes=self.gpu.memory_total_bytes,
            temperature_c=vitals.temperature_c if vitals else None,
            power_w=vitals.power_w if vitals else None,
            holders=tuple(map(str, holders)),
            strangers=strangers,
            notes=tuple(notes),
        )


def units_of(
    board: Board, island: int, now: Callable[[], float], shares: int, *, limit_bytes: int
) -> list[Unit]:
    """Make the device of a GPU, or one a share."""
    numbers: Sequence[int | None] = range(shares) if shares > 1 else (None,)
    units = [Unit(board, island, now, limit_bytes=limit_bytes, share=n) for n in numbers]
    for unit in units:
        unit.neighbours = tuple(other for other in units if other is not unit)
    return units


def keep_idle(folder: Path, idle_bytes: Mapping[str, int | None]) -> None:
    """Keep the memory in use when nobody was on each GPU, by UUID, in the search's folder, for a resume.

    That may find a trial's processes there, and could not learn the figure. Where the disk refuses it does without.
    """
    with suppress(OSError):
        found = {"boot": boot_id(), "idle_bytes": dict(idle_bytes)}
        write_durably(folder / "gpus.json", json.dumps(found).encode())


def kept_idle(folder: Path) -> tuple[Mapping[str, int | None], bool]:
    """Return the figures of this boot, and whether processes of that search may be left: not where it was another."""
    found = read_json(folder / "gpus.json") or {}
    is_this_boot = found.get("boot", boot_id()) == boot_id()
    return found.get("idle_bytes", {}) if is_this_boot else {}, is_this_boot
