"""What every policy shares: defaults that decide nothing, and the rules that several of them use.

A policy is one file: a frozen ``Options`` dataclass beside a class with a name and a few callbacks. It is registered in
``policies/__init__.py``; the recipe's validation, the simulator and the contract tests pick it up from there.
Callbacks get the experiment's ``State``, read it, and answer with decisions in atoms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gpusched.core.allocation import DeviceState
from gpusched.core.decisions import Complete, Decision
from gpusched.core.rules import Rules
from gpusched.core.rung import Rung
from gpusched.core.state import State
from gpusched.core.trial import Trial

Problem = tuple[str, str]
NOTHING: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a policy that only trains. ``R``: steps after which a trial is complete (None: never)."""

    R: int | None = None

    def problems(self) -> Iterator[Problem]:
        """What is wrong with the options together: (option, what and what to do)."""
        if self.R is not None and self.R < 1:
            yield "R", f"must be at least 1 step, not {self.R}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvingOptions(Options):
    """``r`` steps to the first rung, a factor ``eta`` between rungs, ``R`` steps at most."""

    r: int = 1
    R: int | None = 81
    eta: float = 4.0

    def problems(self) -> Iterator[Problem]:
        yield from Options.problems(self)
        if self.r < 1:
            yield "r", f"must be at least 1 step, not {self.r}"
        if self.R is not None and self.r > self.R >= 1:
            yield (
                "r",
                f"the first rung at {self.r} steps lies beyond R = {self.R}; lower r or raise R",
            )
        if not self.eta > 1:
            yield "eta", f"must be more than 1, not {self.eta:g}; 4 is the usual choice"


class Policy:
    """Base of all policies; implements ``core.state.Policy``."""

    name: ClassVar[str]
    options_type: ClassVar[type[Any]] = Options
    #: What a hand-over takes decides whether it can work: earlier runs of the recipe are asked before it starts.
    lives_by_handovers: ClassVar[bool] = False

    def problems(self, rules: Rules, atoms: int) -> Iterator[Problem]:
        """What is wrong with the options in this experiment on so many atoms, before it starts."""
        return iter(())

    def foreword(self, rules: Rules, atoms: int) -> Sequence[str]:
        """What a person should know before it starts."""
        return ()

    def on_report(self, state: State, trial: Trial) -> Sequence[Decision]:
        return NOTHING

    def on_capacity(self, state: State) -> Sequence[Decision]:
        return NOTHING

    def on_exit(self, state: State, trial: Trial) -> Sequence[Decision]:
        return NOTHING

    def on_wake(self, state: State) -> Sequence[Decision]:
        return NOTHING

    def on_forecast(
        self, state: State, trial: Trial, step: int, forecast: Mapping[str, float]
    ) -> Sequence[Decision]:
        return NOTHING

    def explain(self, state: State, trial: Trial) -> Sequence[str]:
        return ()

    def rungs(self, state: State) -> Sequence[Rung]:
        """Rungs to show in the dashboard, lowest first."""
        return ()

    def notes(self, state: State) -> Sequence[str]:
        """One or two lines about the search as a whole, for the dashboard."""
        return ()


def complete_at(trial: Trial, R: int | None) -> Sequence[Decision]:
    """Algorithms 2 (line 5) and 3 (line 12): a trial that has had R steps is complete."""
    if R is not None and trial.step >= R:
        return (Complete(trial.id, f"complete: {trial.step} of {R} steps"),)
    return NOTHING


def atoms_coming(state: State) -> int:
    """Atoms that will be free as soon as their trial has left, or their release is confirmed."""
    coming = 0
    for trial in state.live.values():
        if trial.after is not None and not trial.after.is_resize:
            coming += trial.atoms + len(trial.reserved)
    if state.devices.draining:
        for slot in state.devices.slots.values():
            coming += slot.state is DeviceState.DRAINING and slot.awaited_by is None
    return coming
