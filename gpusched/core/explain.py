"""The reasons for a trial's place. Data first (``Explanation``, which ``--json`` prints), sentences second (``lines``).

From the state, the trial's story and the policy's own words; changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpusched.core.decisions import Policy
from gpusched.core.state import State
from gpusched.core.trial import TrialRecord, TrialState
from gpusched.text import count, first_line, show_at

S = TrialState
_WHERE_TO = {
    S.STARTING: "to continue with another number of atoms",
    S.PAUSED: "to pause",
    S.COMPLETED: "complete",
}


@dataclass(frozen=True, slots=True)
class Moment:
    """An entry of a trial's story: seconds since the search began, and the event or decision."""

    at: float
    what: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Reasons for a trial's state.

    ``why``: the present state in a sentence; ``policy``: the policy's sentences; ``saved_step``: of its newest
    checkpoint, None without one; of a trial that is over none may be left.
    """

    trial: int
    state: str
    step: int
    metric: float | None
    why: str
    policy: tuple[str, ...]
    story: tuple[Moment, ...]
    hparams: Mapping[str, Any]
    error: str | None
    saved_step: int | None

    def lines(self) -> list[str]:
        """Word the explanation for people."""
        # Worded to stand behind "trial 3" where it was decided.
        why = self.why.removeprefix("pauses: ")
        out = [f"trial {self.trial} is {self.state} at step {self.step}: {why}"]
        out += [f"  {sentence}" for sentence in self.policy]
        if self.step and not S(self.state).is_final:
            saved = self.saved_step
            behind = count(self.step - (saved or 0), "step")
            where = f"of step {saved}, {behind} behind" if saved else "none yet"
            out.append(f"  checkpoint: {where}")
        out += ["", "story:"]
        for moment in self.story:
            first, *more = moment.what.splitlines() or [""]
            out.append(f"   {show_at(moment.at)}  {first}")
            out += [f"  {'':9}    {line}" for line in more]
        return out


def explain(state: State, policy: Policy, trial_id: int) -> Explanation:
    """Explain a trial's place. Raises KeyError."""
    trial = state.trials[trial_id]
    return Explanation(
        trial=trial.id,
        state=trial.state.value,
        step=trial.step,
        metric=trial.metric,
        why=_why(state, trial),
        policy=tuple(policy.explain(state, state.trials[trial_id])),
        story=tuple(Moment(round(at, 3), what) for at, what in trial.story),
        hparams=trial.hparams,
        error=trial.error,
        saved_step=trial.saved_step or None,
    )


def _why(state: State, trial: TrialRecord) -> str:
    if trial.doom is not None:
        cause = trial.doom.why or (trial.after.reason if trial.after else "stopped")
        return f"being ended: {cause}"
    match trial.state:
        case S.STARTING:
            if waits := [name for name in trial.devices if name in state.devices.draining]:
                return f"waits until the release of {state.devices.named(waits)} is confirmed"
            return f"processes start on {state.devices.named(trial.devices)}"
        case S.RUNNING:
            return f"trains on {trial.size_in_words} ({state.devices.named(trial.devices)})"
        case S.YIELDING:
            if (after := trial.after) is None:
                return ""
            how = "saves and leaves" if after.save else "leaves"
            where = _WHERE_TO.get(after.state, "for good")
            return f"{how}, {where}: {after.reason.removeprefix('pauses: ')}"
        case S.PAUSED if trial.held_by_user:
            return f"paused by the user; 'gpusched unpause {trial.id}' lets it continue"
        case S.PAUSED if trial.id in state.wanted and not state.storage_low:
            return f"continues as soon as its atoms are free ({trial.reason})"
        case S.PENDING | S.PAUSED | S.COMPLETED | S.STOPPED | S.FAILED:
            return first_line(trial.reason)
