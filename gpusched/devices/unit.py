"""A GPU or MIG slice of this experiment: what it is doing, and whether it may be used.

    FREE ──hold──▶ HELD ──released()──▶ DRAINING ──all signals agree──▶ FREE

and, whatever it is doing, it may be *out*: taken out of use, with a reason. ``passing`` reasons (a stranger on it,
another experiment's lease, a driver that does not answer) end by themselves (``can_recover``); the others (a lost GPU,
a fatal XID, a pending reset) end only on request (``can_readmit``). Nothing here blocks: it looks at the readings of
``watch.py``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from gpusched.devices import health
from gpusched.devices.gpu import Gpu, GpuUsage
from gpusched.devices.holders import Holder
from gpusched.devices.release import (
    WAITING,
    Baseline,
    Means,
    Verdict,
    assumed,
    judge,
    learn,
    looks_idle,
    tolerance_bytes,
)
from gpusched.devices.watch import Watch

SILENCE_SAID_S = 2.0
SILENCE_MAX_S = 5.0
"""A free GPU whose driver does not answer for so long is not known to be free any more."""
SILENCE_NOTICED_S = 0.4
ERRORS_MAX = 3
OPENERS_AFTER_S = 5.0
"""Time a release must be overdue before every process's open files are searched for a hidden holder."""
FOREIGN_GRACE_S = 5.0
"""A release in which only strangers are in the way turns into a busy GPU after that."""
UNEXPLAINED_MIN_BYTES = 512 << 20
"""Beside a trial: what its own contexts may have more in use than NVML says of them."""
CLEAN_FOR_S = 3.0
"""A stranger must have been gone for so long: jobs often come in rows."""
VITALS_AGE_MAX_S = 5.0
"""Vitals are read every two seconds; older ones say nothing about a GPU that is to be given out."""
XID_PATIENCE_S = 10.0
"""Time to wait for vitals read after an XID that must be judged by them."""


class Doing(enum.Enum):
    FREE = "free"
    HELD = "held"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Out:
    """A reason why a GPU is out of use, since when, and whether that can pass by itself."""

    reason: str
    since: float
    passing: bool
    leased: bool = False


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A request for fresh readings, and when it was made: vitals carry no ticket."""

    ticket: int
    at: float


class Unit:
    """The state of one GPU. Readings come from ``watch``; see the module for the states."""

    def __init__(self, gpu: Gpu, watch: Watch, baseline: Baseline | None, share: int = 0) -> None:
        self.gpu = gpu
        self.watch = watch
        self.baseline = baseline
        self.share = share
        #: The other shares of the same GPU.
        self.neighbours: tuple[Unit, ...] = ()
        self.means = Means()
        self.doing = Doing.FREE
        self.out: Out | None = None
        self.strangers: dict[int, Holder] = {}
        #: Why it was not released when that was last looked at.
        self.held_by = ""
        self._now = watch.now
        self._born = self._now()
        self._held_at: float | None = None
        #: A reading has shown the GPU clean: no trial of an earlier daemon is on this share.
        self._was_clean = False
        #: The release has taken too long, and is waited for no more.
        self.is_given_up = False
        self._drain: Inquiry | None = None
        self._readmission: Inquiry | None = None
        self._blame: Inquiry | None = None
        self._condemned = ("", 0.0)
        self._clean_since: float | None = None
        self._xids: list[tuple[int, float]] = []
        self._reported = False
        self._silent_from: float | None = None
        self._hurt = ""

    # ---------------------------------------------------------------- readings

    @property
    def usage(self) -> GpuUsage | None:
        return self.watch.usage.get(self.gpu.uuid)

    def verdict(self, ticket: int = 0, *, lenient: bool = True) -> Verdict:
        """Judge the newest reading, if it was begun after ``ticket`` was handed out. ``lenient``: see ``assumed``."""
        if self.watch.lost is not None:
            return Verdict(False, self.watch.lost)
        usage = self.usage
        if usage is None or usage.ticket < ticket:
            silent_s = self.silent_s()
            return Verdict(False, _silence(silent_s) if silent_s > SILENCE_SAID_S else WAITING)
        self.means = self.means.with_reading(self.gpu, usage)
        known = self.baseline or assumed(lenient=lenient, contained=self.watch.is_contained)
        verdict = judge(
            self.gpu,
            usage,
            known,
            self.means,
            self.watch.who,
            self.is_beside_another,
            self.is_beside_remains,
        )
        self._was_clean |= verdict.clean
        return verdict

    @property
    def is_beside_another(self) -> bool:
        """Another trial of ours is on the same GPU."""
        return any(unit.doing is Doing.HELD for unit in self.neighbours)

    @property
    def is_beside_remains(self) -> bool:
        """The GPU holds what is left of another share's trial, which is being released; this share was free before."""
        draining = [unit for unit in self.neighbours if unit.doing is Doing.DRAINING]
        if not draining or any(unit.out is not None or unit.is_given_up for unit in draining):
            return False
        return self.doing is Doing.FREE and self._was_clean

    def _fit_for_use(self, ticket: int = 0, *, lenient: bool = True) -> Verdict:
        """Judge whether nothing is on it, and it is well."""
        verdict = self.verdict(ticket, lenient=lenient)
        ill = self._unwell() if verdict.clean else ""
        return Verdict(False, ill) if ill else verdict

    def silent_s(self) -> float:
        """Return the age of the newest reading: about a second at most unless the driver hangs."""
        usage = self.usage
        return self._now() - (self._born if usage is None else usage.at)

    def learn_if_idle(self) -> bool:
        """Take the newest reading into the baseline if the GPU is idle; whether the baseline changed."""
        usage = self.usage
        if usage is None or usage.error or usage.is_partial:
            return False
        if any(unit.doing is not Doing.FREE for unit in (self, *self.neighbours)):
            return False
        if usage.graphics_bytes and self.baseline is not None:
            # A display that shrinks between two calls would look like a lower baseline.
            return False
        residents = []
        for process in usage.compute:
            holder = self.watch.who(process.pid)
            if holder.whose == "unseen" and self._may_be_resident(process.memory_bytes):
                residents.append(process.pid)
            elif holder.whose != "resident":
                return False
        if self.means.memory and not looks_idle(
            usage, self.baseline, contained=self.watch.is_contained
        ):
            return False
        learnt = learn(usage, self.baseline, tuple(residents))
        changed = learnt != self.baseline
        self.baseline = learnt
        return changed

    def _may_be_resident(self, memory_bytes: int | None) -> bool:
        """Take a small process that was in a container before we came for the machine's own (MPS)."""
        return self.baseline is None and memory_bytes is not None and memory_bytes <= 64 << 20

    # ---------------------------------------------------------------- the executor's questions

    def hold(self) -> None:
        """Give the GPU to a trial."""
        self.doing, self._held_at = Doing.HELD, self._now()
        self.strangers = {}
        self._blame, self._hurt = None, ""

    def released(self) -> Verdict:
        """Judge whether it is free again after the trial's process tree is empty. Out of use is not released."""
        verdict = self._released()
        self.held_by = verdict.why
        return verdict

    def _released(self) -> Verdict:
        self.examine()
        if self.out is not None:
            return Verdict(False, self.out.reason)
        if self.doing is Doing.FREE and self._drain is not None:
            verdict = self.verdict(self._drain.ticket, lenient=False)
            if verdict.clean:
                return verdict
        if self.doing is not Doing.DRAINING or self._drain is None:
            self.doing, self._drain = Doing.DRAINING, self._inquire(vitals=False)
            self.is_given_up = False
            self.watch.openers = None
            return Verdict(False, WAITING)
        verdict = self._fit_for_use(self._drain.ticket, lenient=False)
        if not verdict.clean:
            return self._with_openers(verdict, self._drain)
        self.doing = Doing.FREE
        return verdict

    def ceiling_bytes(self) -> int | None:
        """Return the memory in use above which the GPU is not free, whoever is on it; None where that is unknown."""
        known, usage = self.baseline or assumed(lenient=False), self.usage
        if (
            usage is None
            or any(unit.doing is not Doing.DRAINING for unit in self.neighbours)
            or usage.memory_v2_bytes is None
            or known.v2_bytes is None
            or self.gpu.is_numa_node
        ):
            return None
        return known.v2_bytes + tolerance_bytes() + usage.graphics_bytes

    def _with_openers(self, verdict: Verdict, drain: Inquiry) -> Verdict:
        """Add the processes that have the GPU's device file open, when a release is overdue and NVML names none."""
        is_overdue = self._now() - drain.at > OPENERS_AFTER_S
        if not is_overdue or verdict.holders or not self._has_read(drain):
            return verdict
        if self.watch.openers is None:
            self.watch.search_openers()
        if not self.watch.openers:
            return verdict
        names = ", ".join(map(str, self.watch.openers))
        return replace(verdict, why=f"{verdict.why} (its device file is open in {names})")

    def _has_read(self, inquiry: Inquiry) -> bool:
        """Tell whether there is a reading begun after the inquiry."""
        return self.usage is not None and self.usage.ticket >= inquiry.ticket

    def xid(self, number: int) -> None:
        """Take note of an XID that the driver reported for the board."""
        self._xids.append((number, self._now()))
        self.watch.request_vitals()
        if number in health.HURTING_XIDS:
            self._hurt = f"XID {number}: {health.RECORDED_XIDS[number]}"

    def blamed(self) -> str | None:
        """Say why the GPU is to blame for its trial's failure; empty: it is not; None: not known yet.

        What counts is a reading, and vitals, begun after the trial had failed.
        """
        self.examine()
        if self.out is not None and not self.out.passing:
            return self.out.reason
        if said := self._hurt or self._illness(at_once=False):
            return said
        if self._blame is None:
            self._blame = self._inquire()
        usage, vitals = self.usage, self.watch.vitals
        if usage is None or not self._has_read(self._blame) or usage.error:
            return None
        if vitals is None or vitals.at < self._blame.at or vitals.error or self._xids:
            return None
        return ""

    def _inquire(self, *, vitals: bool = True) -> Inquiry:
        return Inquiry(self.watch.request(vitals=vitals), self._now())

    def examine(self) -> None:
        """Take the GPU out of use if there is a reason to."""
        now = self._now()
        ill = self._illness(at_once=self.doing is Doing.HELD) or self._judged_xids(now)
        if ill:
            self.condemn(ill)  # told anew if a passing reason was: this one ends only on request
        elif self.out is None and (busy := self._busy(now)):
            self.out, self._clean_since = Out(busy, now, passing=True), None

    def check(self) -> str:
        """Say why the GPU must not be used any more, once; empty if nothing is new."""
        self.examine()
        if self.out is None or self._reported or (self.out.leased and self._has_ours()):
            return ""
        self._reported = True
        return self.out.reason

    @property
    def is_waiting_for_vitals(self) -> bool:
        """An error has come that only fresh vitals can judge."""
        return bool(self._xids)

    def held_s(self) -> float:
        """Return the time since a trial was given the GPU."""
        return self._now() - (self._held_at or 0.0)

    def condemn(self, reason: str) -> None:
        """Take the GPU out of use until somebody asks for it, if there is a reason."""
        if reason and (self.out is None or self.out.passing):
            self.out, self._reported = Out(reason, self._now(), passing=False), False

    def told(self) -> None:
        """Mark the present reason as known: ``check`` does not give it again."""
        self._reported = self.out is not None

    def keep_out(self, reason: str) -> None:
        """Take up a quarantine that an earlier daemon ended with, and that is known."""
        if self.out is None:
            self.out = Out(reason, self._now(), passing=True)
        self._reported = True

    def _has_ours(self) -> bool:
        """Tell whether a trial of ours is on the GPU: one that outlived the last daemon may finish without a lease."""
        return any(holder.whose == "ours" for holder in self.verdict().holders)

    def can_recover(self) -> bool:
        """Tell whether a passing reason has passed, or a release that is waited for no more is complete."""
        if self.out is None:  # another GPU of its atom is out
            fresh = self.doing is not Doing.HELD and self.silent_s() <= SILENCE_MAX_S
            return fresh and self._fit_for_use(self._drain.ticket if self._drain else 0).clean
        if not self.out.passing or self.out.leased:
            return False
        usage = self.usage
        if (
            usage is None
            or usage.at <= self.out.since
            or self.silent_s() > SILENCE_MAX_S
            or not self._fit_for_use().clean
        ):
            self._clean_since = None
            return False
        if self._clean_since is None:
            self._clean_since = usage.at
        return usage.at - self._clean_since >= CLEAN_FOR_S

    def begin_readmission(self) -> None:
        """Begin anew: the GPU is asked for, and what it did until now counts no more."""
        self._readmission = None

    def can_readmit(self) -> Verdict:
        """Judge a GPU that is asked for: by a fresh look-up, a fresh reading, fresh vitals."""
        asked = self._readmission
        if asked is None:
            self._xids = []
            if self.out is not None and not self.out.passing:
                self.watch.rebind()
            else:
                self.watch.forget()
            self._readmission = self._inquire()
            return Verdict(False, WAITING)
        self.examine()
        reason, condemned_at = self._condemned
        if reason and condemned_at >= asked.at:
            return Verdict(False, reason)
        if self._xids:
            return Verdict(False, WAITING)
        verdict, vitals = self._fit_for_use(asked.ticket), self.watch.vitals
        if verdict.clean and (vitals is None or vitals.at < asked.at):
            return Verdict(False, WAITING)
        return verdict

    def back_in_use(self) -> None:
        """Make a GPU that can recover or be readmitted FREE again."""
        self.out = self._clean_since = self._readmission = None
        self._reported = False
        self.doing = Doing.FREE
        self.learn_if_idle()

    # ---------------------------------------------------------------- what is wrong

    def _illness(self, *, at_once: bool) -> str:
        """Say what only a person can cure. ``at_once``: only what even a running trial cannot live with."""
        if self.watch.lost is not None:
            return self.watch.lost
        vitals = self.watch.vitals
        if vitals is None:
            return ""
        ill = health.trouble(self.gpu.index, vitals, self.watch.first_vitals)
        return ill.reason if ill and (ill.at_once or not at_once) else ""

    def _unwell(self) -> str:
        """Say why a GPU that is free of processes may not be given out: ill, or of unknown health just now."""
        vitals = self.watch.vitals
        if ill := self._illness(at_once=False):
            return ill
        if vitals is None or self._now() - vitals.at > VITALS_AGE_MAX_S:
            return WAITING
        return f"the GPU's health cannot be read: {vitals.error}" if vitals.error else ""

    def _judged_xids(self, now: float) -> str:
        """Say why an XID condemns the GPU, judged by vitals read after it came; those that lack them wait."""
        vitals = self.watch.vitals
        numbers = [number for number, _ in self._xids]
        waiting = []
        said = ""
        for number, at in self._xids:
            fresh = vitals if vitals is not None and vitals.at > at else None
            decided = number in health.IGNORED_XIDS or number == health.LOST_XID
            if not decided and fresh is None and now - at < XID_PATIENCE_S:
                waiting.append((number, at))
                continue
            first = self.watch.first_vitals
            ill = health.xid_trouble(number, self.gpu.index, fresh, first, numbers)
            said = said or (ill.reason if ill else "")
        self._xids = waiting
        if said:
            self._condemned = (said, now)
        return said

    def _busy(self, now: float) -> str:
        """Say why a GPU that should be free is not known to be, or a release turned out to wait for strangers."""
        if self._is_silent(now):
            return _silence(self.silent_s()) if self.doing is Doing.FREE else ""
        usage = self.usage
        if usage is None:
            return ""
        if self.doing is Doing.FREE and self.watch.ill_read_in_a_row >= ERRORS_MAX:
            return self._unwell()
        if usage.error:
            tired = self.doing is Doing.FREE and self.watch.errors_in_a_row >= ERRORS_MAX
            return f"the GPU cannot be read: {usage.error}" if tired else ""
        if self.doing is Doing.HELD:
            self._remember_strangers(usage)
            return ""
        verdict, drain, shares = self.verdict(), self._drain, (self, *self.neighbours)
        if verdict.clean or any(
            unit._drain is not None and not self._has_read(unit._drain) for unit in shares
        ):
            return ""
        if self.doing is Doing.FREE:
            is_new = all(unit._held_at is None and unit._drain is None for unit in shares)
            if is_new and any(holder.whose == "ours" for holder in verdict.holders):
                for unit in shares:  # a trial that outlived the last daemon
                    unit.hold()
                return ""
            return verdict.why
        is_overdue = drain is not None and now - drain.at > FOREIGN_GRACE_S
        return verdict.why if verdict.foreign_only and is_overdue else ""

    def _is_silent(self, now: float) -> bool:
        """Tell whether the silence was noticed twice: a daemon that was stopped must give its helpers a moment."""
        if self.silent_s() <= SILENCE_MAX_S:
            self._silent_from = None
        elif self._silent_from is None:
            self._silent_from = now
        return self._silent_from is not None and now - self._silent_from >= SILENCE_NOTICED_S

    def _remember_strangers(self, usage: GpuUsage) -> None:
        for process in usage.compute:
            holder = self.watch.who(process.pid)
            if holder.whose == "foreign":
                self.strangers[process.pid] = holder
        if hidden_bytes := self._unexplained_bytes(usage):
            self.strangers[0] = Holder(0, "unseen", memory_bytes=hidden_bytes)

    def _unexplained_bytes(self, usage: GpuUsage) -> int:
        """Return the memory that no process of this container has: newer drivers hide all others in there."""
        sizes = [process.memory_bytes for process in usage.compute]
        excess = self.baseline.excess_bytes(usage) if self.baseline else None
        if not self.watch.is_contained or excess is None or not sizes or None in sizes:
            return 0
        hidden = excess - sum(size or 0 for size in sizes)
        return hidden if hidden > UNEXPLAINED_MIN_BYTES else 0


def _silence(silent_s: float) -> str:
    return f"NVML has not answered for {silent_s:.0f} s"
