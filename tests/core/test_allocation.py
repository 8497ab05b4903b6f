"""Devices: who may go from which state to which, and where a trial is placed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.core.allocation import DeviceState, DeviceTable

FREE, HELD = DeviceState.FREE, DeviceState.HELD
DRAINING, QUARANTINED = DeviceState.DRAINING, DeviceState.QUARANTINED


def make(count: int = 4, islands: dict[str, int] | None = None) -> DeviceTable:
    devices = DeviceTable()
    devices.join([f"d{n}" for n in range(count)], islands or {}, {})
    return devices


def with_d0(state: DeviceState) -> DeviceTable:
    """A table of one device, in this state."""
    devices = make(1)
    if state is not FREE:
        devices.take(["d0"], trial=1)
    if state is DRAINING:
        devices.drain(["d0"], awaited_by=None)
    if state is QUARANTINED:
        devices.quarantine("d0", "Xid 79")
    return devices


# ---------------------------------------------------------------- states


@pytest.mark.parametrize("state", [HELD, DRAINING, QUARANTINED])
def test_only_a_free_device_can_be_taken(state: DeviceState) -> None:
    with pytest.raises(AssertionError, match=f"d0 is {state.value}, trial 2 may not take it"):
        with_d0(state).take(["d0"], trial=2)


@pytest.mark.parametrize("state", list(DeviceState))
def test_only_a_draining_device_is_released_and_only_one_in_quarantine_readmitted(
    state: DeviceState,
) -> None:
    devices = with_d0(state)
    if state is not QUARANTINED:
        devices.readmit("d0")
    if state is not DRAINING:
        assert devices.released(["d0"]) == set()
    assert devices.slots["d0"].state is state


# ---------------------------------------------------------------- placement

ISLANDS = {"d0": 0, "d1": 0, "d2": 1, "d3": 1, "d4": 1, "d5": 1}


def test_the_tightest_island_that_holds_them_all() -> None:
    devices = make(6, ISLANDS)
    assert devices.choose(2) == ("d0", "d1")
    assert devices.choose(3) == ("d2", "d3", "d4")
    assert devices.choose(1) == ("d0",)


def test_where_no_island_is_large_enough_the_largest_comes_first() -> None:
    devices = make(6, ISLANDS)
    assert devices.choose(5) == ("d2", "d3", "d4", "d5", "d0")


def test_a_growing_trial_stays_on_its_island() -> None:
    devices = make(6, ISLANDS)
    devices.take(["d2"], trial=0)
    assert devices.choose(1, near=["d2"]) == ("d3",)
    assert devices.choose(4, near=["d2"]) == ("d3", "d4", "d5", "d0")
    devices.take(["d0"], trial=1)
    assert devices.choose(2, near=["d0"]) == ("d1", "d3")


def test_more_than_there_are_is_an_error() -> None:
    with pytest.raises(AssertionError, match="3 devices wanted, 2 free"):
        make(2).choose(3)


@given(
    islands=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    taken=st.sets(st.integers(0, 11)),
    data=st.data(),
)
def test_a_placement_is_free_distinct_and_repeats(
    islands: list[int], taken: set[int], data: st.DataObject
) -> None:
    devices = make(len(islands), {f"d{n}": island for n, island in enumerate(islands)})
    devices.take([f"d{n}" for n in taken if n < len(islands)], trial=0)
    count = data.draw(st.integers(0, len(devices.free)))
    near = data.draw(st.sets(st.sampled_from(sorted(devices.slots))))
    chosen = devices.choose(count, near)
    assert len(chosen) == len(set(chosen)) == count
    assert set(chosen) <= devices.free
    assert chosen == devices.choose(count, near)
    used = {devices.slots[name].island for name in chosen}
    free_on = {i: sum(devices.slots[n].island == i for n in devices.free) for i in set(islands)}
    if not near and any(free >= count for free in free_on.values()) and count:
        assert len(used) == 1, "it fits on one island"
