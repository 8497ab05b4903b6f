"""The indices of the state stay true whatever happens to trials: compared with a look at all of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.core import invariants
from gpusched.core.allocation import DeviceTable
from gpusched.core.rules import Rules
from gpusched.core.state import State
from gpusched.core.trial import NEVER, After, TrialState
from tests.helpers import draw

S = TrialState


def make(**rules: object) -> State:
    return State(Rules(deadline_s=100.0, **rules), draw)


# ---------------------------------------------------------------- drawing


def test_configurations_come_in_order_and_are_numbered() -> None:
    state = make(max_trials=3)
    drawn = []
    while state.can_draw:
        drawn.append(state.draw())
    assert [(t.id, t.hparams) for t in drawn] == [(0, {"n": 0}), (1, {"n": 1}), (2, {"n": 2})]
    assert state.trials == {trial.id: trial for trial in drawn}


def test_an_exhausted_space_can_draw_no_more() -> None:
    state = State(Rules(deadline_s=1.0), lambda n: {"n": n} if n < 1 else None)
    assert state.can_draw
    state.draw()
    assert not state.can_draw
    with pytest.raises(AssertionError, match="no configuration left"):
        state.draw()


@pytest.mark.parametrize(
    ("size", "rules", "left"),
    [
        (3, {}, [math.inf, math.inf, math.inf, 0]),
        (3, {"max_trials": 2}, [2, 1, 0]),
        (500, {"max_trials": 2}, [2, 1, 0]),
    ],
)
def test_the_configurations_left_are_counted(
    size: int, rules: dict[str, int], left: list[float]
) -> None:
    state = State(Rules(deadline_s=1.0, **rules), lambda n: {"n": n} if n < size else None)
    for expected in left:
        assert state.draws_left == expected
        if expected:
            state.draw()


def test_a_barred_configuration_is_not_left() -> None:
    """Two configurations, each tried twice; the first is barred when it has been tried once."""
    state = State(Rules(deadline_s=1.0), lambda n: {"n": n % 2} if n < 4 else None)
    state.configurations.bar(state.draw().hparams)
    state.draw()
    state.draw()
    assert state.draws_left == 0


def test_asking_twice_draws_once() -> None:
    asked: list[int] = []

    def noting(n: int) -> dict[str, object]:
        asked.append(n)
        return {"n": n}

    state = State(Rules(deadline_s=1.0), noting)
    assert state.can_draw
    assert state.can_draw
    assert state.draw().hparams == {"n": 0}
    assert asked == [0]


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


# ---------------------------------------------------------------- indices

#: Ways through the table that keep a trial alive or end it.
NEXT = {
    S.PENDING: [S.STARTING],
    S.STARTING: [S.RUNNING, S.YIELDING, S.PAUSED, S.FAILED],
    S.RUNNING: [S.YIELDING, S.STARTING, S.COMPLETED],
    S.YIELDING: [S.STARTING, S.PAUSED, S.STOPPED],
    S.PAUSED: [S.STARTING, S.STOPPED],
}

moves = st.lists(
    st.tuples(
        st.integers(0, 7),
        st.integers(0, 3),
        st.sampled_from([NEVER, 0.0, 0.5, 0.75, 1.0]),
        st.floats(0, 10),
    ),
    max_size=60,
)


@given(moves)
def test_who_is_live_or_paused_agrees_with_a_look_at_all_trials(
    moves: list[tuple[int, int, float, float]],
) -> None:
    state = make()
    for _ in range(8):
        assert state.can_draw
        state.draw()
    for number, choice, score, wait_s in moves:
        state.now += wait_s
        trial = state.trials[number]
        if trial.state is S.RUNNING and choice == 3:
            trial.score = score
        elif trial.state in NEXT:
            ways = NEXT[trial.state]
            to = ways[choice % len(ways)]
            if to is S.RUNNING:
                trial.up_at = state.now
            state.move(trial, to, "test")
        _compare(state)


def _compare(state: State) -> None:
    live = [t for t in state.trials.values() if t.state in (S.STARTING, S.RUNNING, S.YIELDING)]
    by_score = sorted(live, key=lambda t: (-t.score, t.id))
    assert [state.rank_among_live(trial) for trial in by_score] == list(range(len(by_score)))
    assert set(state.live) == {trial.id for trial in live}
    paused = [t for t in state.trials.values() if t.state is S.PAUSED]
    assert list(state.paused_by_score()) == sorted(paused, key=lambda t: (-t.score, t.id))
    assert set(state.paused) == {trial.id for trial in paused}
    longest_s = max(trial.training_s(state.now) for trial in state.trials.values())
    assert state.longest_training_s == pytest.approx(longest_s)
    for trial in state.trials.values():
        assert trial.up_at is None or trial.state.is_live




def test_wanted_trials_are_wanted_once_and_until_they_start() -> None:
    state = make()
    for _ in range(2):
        assert state.can_draw
        state.move(state.draw(), S.STARTING, "")
    for trial in state.trials.values():
        state.move(trial, S.PAUSED, "")
        state.want(trial)
        state.want(trial)
    assert state.wanted == [0, 1]
    state.move(state.trials[0], S.STARTING, "")
    assert state.wanted == [1]
    state.move(state.trials[1], S.STOPPED, "")
    assert state.wanted == []


def test_who_comes_to_rest_is_queued_for_the_policy() -> None:
    state = make()
    assert state.can_draw
    trial = state.draw()
    for to in (S.STARTING, S.PAUSED, S.STARTING, S.RUNNING, S.FAILED):
        state.move(trial, to, "")
    assert list(state.rested) == [trial, trial]


def breakages() -> dict[str, tuple[str, object]]:
    """What to break in a healthy state, and what the AssertionError must say."""

    def two_owners(state: State) -> None:
        state.trials[1].devices = ("d0",)

    def unclean(state: State) -> None:
        state.devices.drain(["d0"], awaited_by=0)

    def holds_nothing(state: State) -> None:
        state.trials[0].devices = ()

    def quarantine_unknown(state: State) -> None:
        state.devices.quarantined = 3

    def forgotten_free(state: State) -> None:
        state.devices.free.clear()

    def after_without_yield(state: State) -> None:
        state.trials[0].after = After(S.PAUSED, "")

    def nan(state: State) -> None:
        state.trials[0].score = float("nan")

    def final_with_devices(state: State) -> None:
        state.move(state.trials[0], S.COMPLETED, "")
        state.rested.clear()
        state.trials[0].gone = 1

    def future_exit(state: State) -> None:
        state.trials[0].gone = 9

    def untold(state: State) -> None:
        state.rested.append(state.trials[0])

    def lost_index(state: State) -> None:
        del state.live[0]

    def wanted_while_running(state: State) -> None:
        state.wanted.append(0)

    def finished_alive(state: State) -> None:
        state.finished = True

    def miscounted_drain(state: State) -> None:
        state.devices.draining = 1

    return {
        "two owners": ("not the device of|two allocations", two_owners),
        "unclean": ("unclean d0", unclean),
        "holds nothing": ("not an allowed size", holds_nothing),
        "quarantine": ("quarantined devices", quarantine_unknown),
        "free": ("free devices", forgotten_free),
        "after": ("after=", after_without_yield),
        "nan": ("NaN", nan),
        "final holds": ("holds devices", final_with_devices),
        "gone": ("more incarnations gone", future_exit),
        "untold": ("not told", untold),
        "live index": ("live index", lost_index),
        "wanted": ("wanted and not paused", wanted_while_running),
        "finished": ("finished with live", finished_alive),
        "draining": ("draining devices", miscounted_drain),
    }


def running_on_d0() -> State:
    """Two trials, the first of which runs."""
    state = make()
    state.devices = DeviceTable(["d0", "d1"], {})
    for _ in range(2):
        assert state.can_draw
        state.draw()
    trial = state.trials[0]
    state.devices.take(["d0"], 0)
    trial.devices, trial.incarnation = ("d0",), 1
    state.move(trial, S.STARTING, "")
    trial.up_at = state.now
    state.move(trial, S.RUNNING, "")
    return state


@pytest.mark.parametrize("name", list(breakages()))
def test_the_invariants_find(name: str) -> None:
    state = running_on_d0()
    invariants.check(state)
    message, break_it = breakages()[name]
    break_it(state)
    with pytest.raises(AssertionError, match=message):
        invariants.check(state)


@pytest.mark.parametrize("name", ["unclean", "holds nothing", "final holds"])
def test_the_trial_of_an_event_is_checked_as_strictly(name: str) -> None:
    state = running_on_d0()
    invariants.check_trial(state, state.trials[0])
    message, break_it = breakages()[name]
    break_it(state)
    with pytest.raises(AssertionError, match=message):
        invariants.check_trial(state, state.trials[0])
