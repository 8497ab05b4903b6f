"""A GPU or MIG slice of this experiment: what a trial does with it, and whether it may be used.

    FREE ──hold──▶ HELD ──drain──▶ DRAINING ──released: all signals agree──▶ FREE

and, whatever it is doing, it may be *out*: taken out of use, with a reason. ``passing`` reasons (a stranger on it,
another experiment's lease, a driver that does not answer) end by themselves (``can_recover``); the others (a lost GPU,
a fatal XID, a pending reset) end only on request (``can_readmit``). Nothing here blocks: it looks at the readings of
``watch.py``.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

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
    strangers,
)
from gpusched.devices.watch import Watch

SILENCE_SAID_S = 2.0
SILENCE_MAX_S = 5.0
"""A free GPU whose driver does not answer for so long is not known to be free any more."""
SILENCE_NOTICED_S = 0.4
ERRORS_MAX = 3
FOREIGN_GRACE_S = 5.0
"""A release in which only strangers are in the way turns into a busy GPU after that."""
CLEAN_FOR_S = 3.0
"""A stranger must have been gone for so long: jobs often come in rows."""
NEVER = -math.inf


class Doing(enum.Enum):
    FREE = "free"
    HELD = "held"
    DRAINING = "draining"


@dataclass(slots=True)
class Out:
    """A reason why a GPU is out of use, since when, and whether that can pass by itself. ``is_told``: people know."""

    reason: str
    since: float
    passing: bool
    leased: bool = False
    is_told: bool = False


class Unit:
    """The state of one GPU, or of one share of it. Readings come from ``watch``; see the module for the states."""

    def __init__(self, gpu: Gpu, watch: Watch, baseline: Baseline | None, share: int = 0) -> None:
        self.gpu = gpu
        self.watch = watch
        self.baseline = baseline
        self.share = share
        #: The other shares of the same GPU.
        self.neighbours: tuple[Unit, ...] = ()
        self.means = Means()
        self.doing = Doing.FREE
        #: The time at which a trial got it, or at which the trial's process tree was empty.
        self.changed_at = NEVER
        self.out: Out | None = None
        self.strangers: dict[int, Holder] = {}
        #: Why it was not released when that was last looked at.
        self.held_by = ""
        #: The release has taken too long, and is waited for no more.
        self.is_given_up = False
        self._now = watch.now
        self._born = self._now()
        #: A reading has shown the GPU clean: no trial of an earlier daemon is on this share.
        self._was_clean = False
        self._clean_since: float | None = None
        #: Errors that only vitals read after them can judge.
        self.xids = health.Xids()
        self._silent_from: float | None = None
        self._hurt = ""
        self._inquired_at = NEVER

    # ---------------------------------------------------------------- readings

    @property
    def usage(self) -> GpuUsage | None:
        return self.watch.usage.get(self.gpu.uuid)

    def has_read_since(self, at: float) -> bool:
        """Tell whether the newest reading was begun at ``at`` or later."""
        return self.usage is not None and self.usage.at >= at

    def verdict(self, since: float = NEVER, *, lenient: bool = True) -> Verdict:
        """Judge the newest reading, if it was begun at ``since`` or later. ``lenient``: see ``assumed``."""
        if self.watch.lost is not None:
            return Verdict(False, self.watch.lost)
        usage = self.usage
        if usage is None or usage.at < since:
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
            any(unit.doing is Doing.HELD for unit in self.neighbours),
            self._is_beside_remains(),
        )
        self._was_clean |= verdict.clean
        return verdict

    def fit_for_use(self, since: float = NEVER, *, lenient: bool = True) -> Verdict:
        """Judge whether nothing is on the GPU, and the GPU is well."""
        verdict = self.verdict(since, lenient=lenient)
        ill = self.watch.unwell() if verdict.clean else ""
        return Verdict(False, ill) if ill else verdict

    def _is_beside_remains(self) -> bool:
        """Tell whether this share was free before another one's trial ended, which is being released."""
        draining = [unit for unit in self.neighbours if unit.doing is Doing.DRAINING]
        if not draining or any(unit.out is not None or unit.is_given_up for unit in draining):
            return False
        return self.doing is Doing.FREE and self._was_clean

    def silent_s(self) -> float:
        """Return the age of the newest reading: about a second at most unless the driver hangs."""
        usage = self.usage
        return self._now() - (self._born if usage is None else usage.at)

    def learn(self) -> None:
        """Take the newest reading into the baseline if the GPU is idle."""
        watch, usage = self.watch, self.usage
        is_free = all(unit.doing is Doing.FREE for unit in (self, *self.neighbours))
        if usage is not None and is_free:
            known, contained = self.baseline, watch.is_contained
            self.baseline = learn(usage, known, self.means, watch.who, contained=contained)

    # ---------------------------------------------------------------- a trial's use of it

    def hold(self) -> None:
        """Give the GPU to a trial."""
        self.doing, self.changed_at = Doing.HELD, self._now()
        self.strangers = {}
        self._hurt = ""

    def drain(self) -> None:
        """Begin a release: the trial's process tree is empty now."""
        if self.doing is Doing.HELD or self.changed_at == NEVER:
            self.doing, self.changed_at = Doing.DRAINING, self.watch.request()
            self.is_given_up = False

    def released(self) -> Verdict:
        """Judge whether the GPU is free again since the release has begun. Out of use is not released."""
        self.examine()
        if self.out is not None:
            verdict = Verdict(False, self.out.reason)
        else:
            verdict = self.fit_for_use(self.changed_at, lenient=False)
            self.doing = Doing.FREE if verdict.clean else Doing.DRAINING
        self.held_by = verdict.why
        return verdict

    def ceiling_bytes(self) -> int | None:
        """Return the memory in use above which the GPU is not free, whoever is on it; None where that is unknown."""
        is_alone = all(unit.doing is Doing.DRAINING for unit in self.neighbours)
        if self.usage is None or not is_alone or self.gpu.is_numa_node:
            return None
        return (self.baseline or assumed(lenient=False)).ceiling_bytes(self.usage)

    def inquire(self) -> None:
        """Ask for the reading and the vitals by which ``blamed`` and ``can_readmit`` judge."""
        self._inquired_at = self.watch.request(vitals=True)

    def blamed(self) -> str | None:
        """Say why the GPU is to blame for its trial's failure; empty: it is not; None: not known yet."""
        self.examine()
        if self.out is not None and not self.out.passing:
            return self.out.reason
        if said := self._hurt or self.watch.illness():
            return said
        usage, vitals = self.usage, self.watch.vitals
        if usage is None or usage.at < self._inquired_at or usage.error:
            return None
        if vitals is None or vitals.at < self._inquired_at or vitals.error or self.xids:
            return None
        return ""

    # ---------------------------------------------------------------- out of use and back

    def take_out(self, reason: str, *, passing: bool, leased: bool = False) -> None:
        """Take the GPU out of use. Told anew where a passing reason was told: this one ends only on request."""
        was = self.out
        is_known = was is not None and was.is_told and (passing or not was.passing)
        self.out = Out(reason, self._now(), passing, leased, is_told=is_known)

    def condemn(self, reason: str) -> None:
        """Take the GPU out of use until somebody asks for it, if there is a reason."""
        if reason and (self.out is None or self.out.passing):
            self.take_out(reason, passing=False)

    def keep_out(self, reason: str) -> None:
        """Take up a quarantine that an earlier daemon ended with, and that is known."""
        if self.out is None:
            self.take_out(reason, passing=True)
        if self.out is not None:
            self.out.is_told = True

    def news(self) -> str:
        """Say why the GPU must not be used any more, once; empty if nothing is new.

        A trial of ours that outlived the last daemon may finish though the lease is another experiment's.
        """
        self.examine()
        out = self.out
        if out is None or out.is_told:
            return ""
        if out.leased and any(holder.whose == "ours" for holder in self.verdict().holders):
            return ""
        out.is_told = True
        return out.reason

    def can_recover(self) -> bool:
        """Tell whether a passing reason has passed, or a release that is waited for no more is complete."""
        usage, is_fresh = self.usage, self.silent_s() <= SILENCE_MAX_S
        is_idle = is_fresh and self.doing is not Doing.HELD
        if self.out is None:  # another GPU of its atom is out
            return is_idle and self.fit_for_use(self.changed_at).clean
        if not self.out.passing or self.out.leased:
            return False
        is_new = is_idle and usage is not None and usage.at > self.out.since
        if usage is None or not is_new or not self.fit_for_use(self.changed_at).clean:
            self._clean_since = None
            return False
        self._clean_since = usage.at if self._clean_since is None else self._clean_since
        return usage.at - self._clean_since >= CLEAN_FOR_S

    def ask_back(self) -> None:
        """Look the GPU up anew: somebody asks for it, and its past errors count no more."""
        self.xids.clear()
        if self.out is not None and not self.out.passing:
            self.watch.rebind()
        else:
            self.watch.forget()
        self.inquire()

    def can_readmit(self) -> Verdict:
        """Judge a GPU that was asked back."""
        self.examine()
        if self.out is not None and not self.out.passing and self.out.since >= self._inquired_at:
            return Verdict(False, self.out.reason)
        if self.doing is Doing.HELD:  # a trial that dies of it may not have opened its context yet
            return Verdict(False, "the trial on it has not ended yet")
        if self.xids:
            return Verdict(False, WAITING)
        since = max(self._inquired_at, self.changed_at)
        verdict, vitals = self.fit_for_use(since), self.watch.vitals
        if verdict.clean and (vitals is None or vitals.at < self._inquired_at):
            return Verdict(False, WAITING)
        return verdict

    def back_in_use(self) -> None:
        """Make a GPU that can recover or be readmitted FREE again."""
        self.out = self._clean_since = None
        self.doing = Doing.FREE
        self.learn()

    # ---------------------------------------------------------------- what is wrong

    def xid(self, number: int) -> None:
        """Take note of an XID that the driver reported for the board."""
        self.xids.note(number, self._now())
        self.watch.request(vitals=True)
        if number in health.HURTING_XIDS:
            self._hurt = f"XID {number}: {health.RECORDED_XIDS[number]}"

    def examine(self) -> None:
        """Take the GPU out of use if there is a reason to."""
        now, watch = self._now(), self.watch
        ill = self.watch.illness(at_once=self.doing is Doing.HELD)
        hit = self.xids.judge(self.gpu.index, now, watch.vitals, watch.first_vitals)
        if hit:
            self.take_out(ill or hit, passing=False)
        elif ill:
            self.condemn(ill)
        elif self.out is None and (busy := self._busy(now)):
            self.take_out(busy, passing=True)
            self._clean_since = None

    def _busy(self, now: float) -> str:
        """Say why a GPU that should be free is not known to be, or a release turned out to wait for strangers."""
        if self._is_silent(now):
            return _silence(self.silent_s()) if self.doing is Doing.FREE else ""
        usage = self.usage
        if usage is None:
            return ""
        if self.doing is Doing.FREE and self.watch.ill_read_in_a_row >= ERRORS_MAX:
            return self.watch.unwell()
        if usage.error:
            tired = self.doing is Doing.FREE and self.watch.errors_in_a_row >= ERRORS_MAX
            return f"the GPU cannot be read: {usage.error}" if tired else ""
        if self.doing is Doing.HELD:
            contained = self.watch.is_contained
            self.strangers |= strangers(usage, self.baseline, self.watch.who, contained=contained)
            return ""
        verdict, shares = self.verdict(), (self, *self.neighbours)
        if verdict.clean or any(usage.at < unit.changed_at for unit in shares):
            return ""
        if self.doing is Doing.FREE:
            is_new = all(unit.changed_at == NEVER for unit in shares)
            if is_new and any(holder.whose == "ours" for holder in verdict.holders):
                for unit in shares:  # a trial that outlived the last daemon
                    unit.hold()
                return ""
            return verdict.why
        is_overdue = now - self.changed_at > FOREIGN_GRACE_S
        return verdict.why if verdict.foreign_only and is_overdue else ""

    def _is_silent(self, now: float) -> bool:
        """Tell whether the silence was noticed twice: a daemon that was stopped must give its helpers a moment."""
        is_silent = self.silent_s() > SILENCE_MAX_S
        self._silent_from = (self._silent_from or now) if is_silent else None
        return self._silent_from is not None and now - self._silent_from >= SILENCE_NOTICED_S


def _silence(silent_s: float) -> str:
    return f"NVML has not answered for {silent_s:.0f} s"
