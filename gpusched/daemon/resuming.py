"""A resume beyond the replay: repairs by the daemon that takes over, and a search that continues with other limits.

Repairs are of rare cases, each left by a death at a bad instant:

* The search was over in the journal, but the last commands were not carried out: ``complete``.
* Devices have gone bad, or are gone, while no daemon looked: ``unusable``.

A wish is what ``gpusched resume`` sends: ``in_s`` or ``add_s`` for the deadline, ``target``, ``max_trials`` (None: none
any more). What is left out stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpusched.core.events import LimitsMoved
from gpusched.core.state import DEADLINE, TOO_LATE, State
from gpusched.core.trial import TrialRecord
from gpusched.daemon.clients import moved_deadline, standing
from gpusched.devices.base import Device
from gpusched.driver.assemble import Assembled
from gpusched.errors import InputError
from gpusched.executors.best import keep_best
from gpusched.folder.files import write_durably
from gpusched.text import count

#: Reasons for the end of a search that more time lets continue.
OUT_OF_TIME = (DEADLINE, TOO_LATE)
NOT_THERE = "it was not there any more when the daemon came back"


def complete(assembled: Assembled) -> None:
    """Do what the last daemon of a finished search had decided and not done. Twice is as good as once."""
    state, paths = assembled.experiment.state, assembled.paths
    if state.best is not None:
        keep_best(paths, state.best.command, assembled.recipe.metric)
    if not paths.final_view.is_file():
        write_durably(paths.final_view, json.dumps(standing(assembled)).encode())


def unusable(state: State, inventory: Sequence[Device]) -> dict[str, str]:
    """Return the devices that the journal takes for good and that cannot be used now, or are gone, and why."""
    there = {device.id: device for device in inventory}
    found = {}
    for name, slot in state.devices.slots.items():
        device = there.get(name)
        if slot.state.value != "quarantined" and (device is None or not device.usable):
            found[name] = device.why_not if device is not None else NOT_THERE
    return found


# ---------------------------------------------------------------- a search that is over continues


Wish = Mapping[str, Any]


def changed(assembled: Assembled, wish: Wish, now: float) -> LimitsMoved:
    """Return the event of a search that is not over and continues with other limits. Raises InputError."""
    limits = _limits(assembled, wish, now)
    if not set(wish) <= {"in_s", "add_s"}:
        _require_open_target(assembled, limits["target"])
    return LimitsMoved(at=now, **limits)


def reopened(assembled: Assembled, wish: Wish) -> LimitsMoved:
    """Return the event of a search that continues after its end. Raises InputError where it cannot."""
    state = assembled.experiment.state
    limits = _limits(assembled, wish, state.now)
    require_reopenable(assembled, wish)
    checkpoints = {str(trial.id): step for trial, step in _checkpoints(assembled) if step}
    return LimitsMoved(at=state.now, checkpoints=checkpoints, **limits)


def require_reopenable(assembled: Assembled, wish: Wish) -> None:
    """Raise InputError with what to add where a search that is over would be over again at once."""
    state, name = assembled.experiment.state, assembled.paths.root.name
    limits = _limits(assembled, wish, state.now)
    resume = f"'gpusched resume {name}"
    deadline_s = limits["deadline_s"]
    if deadline_s <= state.now or (
        state.stopping in OUT_OF_TIME and deadline_s == state.rules.deadline_s
    ):
        raise InputError(
            f"{name} is over ({state.stopping}): no time is left. {resume} --deadline +20m' gives it 20 minutes more"
        )
    _require_open_target(assembled, limits["target"])
    if any(
        step or not trial.saved_step for trial, step in _checkpoints(assembled)
    ) or state.configurations.may_have_next(limits["max_trials"]):
        return
    if state.configurations.may_have_next(None):
        raise InputError(
            f"{name} is over ({state.stopping}): all of its {count(len(state.trials), 'trial')} are. "
            f"{resume} --max-trials {2 * len(state.trials)}' starts more"
        )
    raise InputError(
        f"{name} is over ({state.stopping}): no configuration is left to try, and no trial that its end stopped has a "
        "checkpoint. 'gpusched run' with a larger space starts another search"
    )


def _limits(assembled: Assembled, wish: Wish, now: float) -> dict[str, Any]:
    """Return deadline, target and trials as they will be."""
    rules = assembled.experiment.state.rules
    return {
        "deadline_s": moved_deadline(rules.deadline_s, now, wish.get("in_s"), wish.get("add_s")),
        "target": wish.get("target", rules.target),
        "max_trials": wish.get("max_trials", rules.max_trials),
    }


def _require_open_target(assembled: Assembled, target: float | None) -> None:
    """Raise InputError for a target that a trial has reached already."""
    state, name = assembled.experiment.state, assembled.paths.root.name
    scores = [trial.best_score for trial in state.trials.values()]
    if target is None or not scores or max(scores) < target * state.rules.sign:
        return
    best = max(scores) * state.rules.sign
    raise InputError(
        f"{name} has reached the target {target:g}: its best is {best:.6g}. '--target X' with a better one lets it "
        "continue; '--target none' lets it train until its deadline"
    )


def _checkpoints(assembled: Assembled) -> Iterator[tuple[TrialRecord, int]]:
    """Yield each trial that only the end stopped, with the step of its newest checkpoint on disk (0: none)."""
    for trial in assembled.experiment.state.trials.values():
        if trial.cut_atoms is not None:
            yield trial, assembled.paths.trial(trial.id).newest_checkpoint()
