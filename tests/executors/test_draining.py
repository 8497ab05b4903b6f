"""From "the tree is empty" to "the device is free", in simulated time."""

from __future__ import annotations

from collections.abc import Sequence

from gpusched.devices.base import Release
from gpusched.executors.base import FOREVER
from gpusched.executors.local.draining import Draining


class Driver:
    """Frees a device at a given time; notes when it was asked."""

    def __init__(self, **free_at: float) -> None:
        self.free_at = free_at
        self.now = 0.0
        self.asked: list[float] = []

    def released(self, devices: Sequence[str]) -> list[Release]:
        self.asked.append(self.now)
        return [
            Release(name, self.now >= self.free_at[name], "pid 12 (python)") for name in devices
        ]


def play(driver: Driver, draining: Draining, until: float = FOREVER) -> list[tuple[float, object]]:
    """Step whenever there is something to do."""
    told: list[tuple[float, object]] = []
    while draining.next_at <= until and draining.next_at < FOREVER:
        driver.now = draining.next_at
        released, given_up = draining.step(driver.now)
        told += [(driver.now, released)] if released else []
        told += [(driver.now, one) for one in given_up]
    return told


def test_what_is_free_is_free_at_once() -> None:
    driver = Driver(a=0.0, b=0.0)
    draining = Draining(driver.released, 60.0)
    assert draining.next_at == FOREVER
    draining.add(["a", "b"], 0.0)
    assert play(driver, draining) == [(0.0, ("a", "b"))]
    assert draining.next_at == FOREVER


def test_asked_often_at_first_then_once_a_second() -> None:
    driver = Driver(a=30.0)
    draining = Draining(driver.released, 60.0)
    draining.add(["a"], 0.0)
    ((at, devices),) = play(driver, draining)
    assert devices == ("a",)
    assert 30.0 <= at <= 31.0
    pauses = [
        round(later - earlier, 6)
        for earlier, later in zip(driver.asked, driver.asked[1:], strict=False)
    ]
    assert pauses[0] == 0.02
    assert pauses == sorted(pauses)
    assert max(pauses) == 1.0
    assert len(driver.asked) < 50


def test_each_device_for_itself() -> None:
    driver = Driver(a=0.05, b=5.0)
    draining = Draining(driver.released, 60.0)
    draining.add(["a", "b"], 0.0)
    told = play(driver, draining)
    assert [devices for _, devices in told] == [("a",), ("b",)]
    assert told[0][0] < 0.2


def test_after_the_limit_it_is_given_up_with_its_holder() -> None:
    driver = Driver(a=FOREVER, b=0.0)
    draining = Draining(driver.released, 60.0)
    draining.add(["a", "b"], 100.0)
    driver.now = 100.0
    told = play(driver, draining)
    assert told == [
        (100.0, ("b",)),
        (160.0, ("a", "not released after 60 s: held by pid 12 (python)")),
    ]


def test_asked_for_twice_the_first_time_counts() -> None:
    driver = Driver(a=FOREVER)
    draining = Draining(driver.released, 10.0)
    draining.add(["a"], 0.0)
    play(driver, draining, until=8.0)
    draining.add(["a"], 8.0)
    ((at, _),) = play(driver, draining)
    assert at == 10.0


class Stuck:
    """Processes that SIGKILL does not end for a while."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def round(self) -> int:
        self.rounds -= 1
        return max(0, self.rounds)

    def describe(self) -> str:
        return "process 77 (train.py)"


def test_a_device_is_not_free_while_a_process_of_ours_cannot_be_killed() -> None:
    driver = Driver(a=0.0, b=0.0)
    draining = Draining(driver.released, 60.0)
    draining.hold(["a"], Stuck(5))
    draining.add(["a", "b"], 0.0)
    told = play(driver, draining)
    assert told[0] == (0.0, ("b",))
    assert told[1][1] == ("a",)
    assert len(driver.asked) == 5
    draining.hold(["b"], Stuck(10_000))
    draining.add(["b"], driver.now)
    ((_, given_up),) = play(driver, draining)
    assert given_up == ("b", "not released after 60 s: held by process 77 (train.py)")


def test_the_limit_is_reached_whatever_the_figures_round_to() -> None:
    """A difference of two times may be a little less than the limit that their sum had reached."""
    driver = Driver(a=FOREVER)
    draining = Draining(driver.released, 60.0)
    draining.add(["a"], 4.508171032151748)
    told = play(driver, draining)
    assert [what for _, what in told] == [("a", "not released after 60 s: held by pid 12 (python)")]


def test_what_is_forgotten_is_not_asked_about() -> None:
    driver = Driver(a=FOREVER, b=1.0)
    draining = Draining(driver.released, 60.0)
    draining.add(["a", "b"], 0.0)
    draining.forget("a")
    draining.forget("nobody waits for it")
    assert [what for _, what in play(driver, draining)] == [("b",)]
