"""Configurations and sizes; and what the invariants find in a state that is broken on purpose."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gpusched.core import invariants
from gpusched.core.rules import Rules
from gpusched.core.state import State
from gpusched.core.trial import After, TrialState
from tests.helpers import draw

S = TrialState


def make(**rules: object) -> State:
    return State(Rules(deadline_s=100.0, **rules), draw)


# ---------------------------------------------------------------- drawing


@pytest.mark.parametrize(
    ("size", "rules", "left"),
    [
        (3, {}, [math.inf, math.inf, math.inf, 0]),
        (3, {"max_trials": 2}, [2, 1, 0]),
    ],
)
def test_the_configurations_left_are_counted(
    size: int, rules: dict[str, int], left: list[float]
) -> None:
    state = State(Rules(deadline_s=1.0, **rules), lambda n: {"n": n} if n < size else None)
    for expected in left:
        assert (state.draws_left, state.can_draw) == (expected, expected > 0)
        if expected:
            state.draw()
    with pytest.raises(AssertionError, match="no configuration left"):
        state.draw()


# ---------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("max_atoms", "sizes", "fits"),
    [
        (None, (), [1, 1, 2, 3, 4, 5, 8]),
        (4, (), [1, 1, 2, 3, 4, 4, 4]),
        (None, (1, 2, 4), [1, 1, 2, 2, 4, 4, 4]),
        (3, (1, 2, 4), [1, 1, 2, 2, 2, 2, 2]),
        (None, (2, 4), [2, 2, 2, 2, 4, 4, 4]),  # the smallest where nothing fits
    ],
)
def test_sizes_are_rounded_down_to_what_is_allowed(
    max_atoms: int | None, sizes: tuple[int, ...], fits: list[int]
) -> None:
    rules = Rules(deadline_s=1.0, max_atoms=max_atoms, sizes=sizes)
    assert [rules.fit(atoms) for atoms in (0, 1, 2, 3, 4, 5, 8)] == fits
    assert rules.smallest == min(sizes, default=1)


def end_with_devices(state: State) -> None:
    state.move(state.trials[0], S.COMPLETED, "")
    state.rested.clear()
    state.trials[0].gone = 1


#: What the AssertionError must say, and what to break in a healthy state for that.
BREAKAGES: dict[str, Callable[[State], object]] = {
    "not the device of": lambda state: setattr(state.trials[1], "devices", ("d0",)),
    "unclean d0": lambda state: state.devices.drain(["d0"], awaited_by=0),
    "not an allowed size": lambda state: setattr(state.trials[0], "devices", ()),
    "quarantined devices": lambda state: state.devices.quarantined.add("d1"),
    "free devices": lambda state: state.devices.free.clear(),
    "after=": lambda state: setattr(state.trials[0], "after", After(S.PAUSED, "")),
    "NaN": lambda state: setattr(state.trials[0], "score", float("nan")),
    "holds devices": end_with_devices,
    "more incarnations gone": lambda state: setattr(state.trials[0], "gone", 9),
    "not told": lambda state: state.rested.append(state.trials[0]),
    "live index": lambda state: state.live.clear(),
    "wanted and not paused": lambda state: state.wanted.append(0),
    "finished with live": lambda state: setattr(state, "finished", True),
}
#: Those that are found at the trial of an event alone.
AT_ONCE = ("unclean d0", "not an allowed size", "holds devices")


@pytest.mark.parametrize("message", BREAKAGES)
def test_the_invariants_find(message: str) -> None:
    """Two trials, the first of which runs on d0."""
    state = make()
    state.devices.join(["d0", "d1"], {}, {})
    trial, _ = state.draw(), state.draw()
    state.devices.take(["d0"], 0)
    trial.devices, trial.incarnation = ("d0",), 1
    state.move(trial, S.STARTING, "")
    trial.up_at = state.now
    state.move(trial, S.RUNNING, "")
    invariants.check(state)
    BREAKAGES[message](state)
    with pytest.raises(AssertionError, match=message):
        invariants.check(state)
    if message in AT_ONCE:
        with pytest.raises(AssertionError, match=message):
            invariants.check_trial(state, trial)
