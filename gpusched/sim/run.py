"""What the simulated machine remembers of a trial (``Story``) and of one launch of it (``Run``)."""

from __future__ import annotations

from typing import Literal

from gpusched.core.events import TrialExited
from gpusched.sim.physics import NEVER_STEP, Faults
from gpusched.sim.workload import Curve

Trouble = Literal["crash", "lost", "hang"]


class Story:
    """What stays of a trial on disk between its launches."""

    __slots__ = (
        "crash_step",
        "curve",
        "end_step",
        "exit",
        "log",
        "run",
        "saved",
        "seq",
        "trial",
    )

    def __init__(self, trial: int, curve: Curve, crash_step: int) -> None:
        self.trial = trial
        self.curve = curve
        self.crash_step = crash_step
        self.end_step = NEVER_STEP if curve.length is None else curve.length
        self.seq = 0
        #: Steps of the two newest checkpoints, the newest last.
        self.saved: tuple[int, ...] = ()
        self.run: Run | None = None
        #: Of each report, in order: incarnation, step, step time, as ``reports.jsonl`` would hold it.
        self.log: list[tuple[int, int, float]] = []
        #: How the latest launch ended: what a new daemon finds.
        self.exit: TrialExited | None = None

    @property
    def saved_step(self) -> int:
        return self.saved[-1] if self.saved else 0

    def save(self, step: int) -> None:
        if step != self.saved_step:
            self.saved = (*self.saved[-1:], step)


class Run:
    """One incarnation: its processes.

    It trains a step, or ``waiting`` for an answer; it is ``hung``; or it is ``leaving``: how it ends is decided.
    ``cut``: the end is not its own doing, so that a checkpoint half written is none.
    """

    __slots__ = (
        "cut",
        "devices",
        "gone",
        "hung",
        "incarnation",
        "launched_at",
        "leave",
        "leaving",
        "save",
        "speedup",
        "step",
        "step_time_s",
        "story",
        "trouble",
        "trouble_step",
        "waiting",
    )

    def __init__(
        self, story: Story, incarnation: int, devices: tuple[str, ...], now: float, speedup: float
    ) -> None:
        self.story = story
        self.incarnation = incarnation
        self.devices = devices
        self.launched_at = now
        self.speedup = speedup
        #: The step it has reached: it begins behind the newest checkpoint.
        self.step = story.saved_step
        self.step_time_s = 0.0
        self.waiting = False
        #: What the answer to its next report will be.
        self.save = False
        self.leave = False
        self.leaving = False
        self.hung = False
        self.cut = False
        self.gone = False
        self.trouble: Trouble = "crash"
        self.trouble_step = story.crash_step

    def meet(self, faults: Faults, seed: int) -> None:
        """Find out in which step what goes wrong, if anything does."""
        lost, hang = faults.fault_steps(seed, self.story.trial, self.incarnation)
        if self.step + lost < self.trouble_step:
            self.trouble, self.trouble_step = "lost", self.step + lost
        if self.step + hang < self.trouble_step:
            self.trouble, self.trouble_step = "hang", self.step + hang

    def __repr__(self) -> str:
        return f"trial {self.story.trial}, incarnation {self.incarnation}"
