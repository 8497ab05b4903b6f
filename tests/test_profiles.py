"""s(a) and To from a journal, kept under a hash that changes with what changes the speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusched import profiles
from gpusched.config import Recipe, load_recipe
from gpusched.core.decisions import Command, Launch
from gpusched.core.events import Event, Reported, TimerFired
from gpusched.core.speed import Speed
from gpusched.journal import Entry


def _recipe(folder: Path, script: str = "pass\n", lr: float = 0.1) -> Recipe:
    (folder / "t.py").write_text(script)
    path = folder / "t.yaml"
    path.write_text(
        f"script: t.py\ndeadline: 10s\nmetric: m\nspace: {{lr: {lr}, x: {{uniform: [0, 1]}}}}\ndevices: cpu:4\n"
    )
    return load_recipe(path)


def _walk(sizes: dict[int, float], overhead_s: float) -> list[Entry]:
    """A profiling run: at each size a slow first step, then three of the given time."""
    now, seq = 5.0, 0
    entries: list[Entry] = []

    def tell(event: Event, *commands: Command) -> None:
        entries.append(Entry(len(entries) + 1, event, list(commands)))

    for incarnation, (atoms, step_s) in enumerate(sizes.items(), 1):
        devices = tuple(f"cpu:{i}" for i in range(atoms))
        tell(TimerFired(at=now, timer="x"), Launch(0, incarnation, devices, {}))
        now += overhead_s
        for time_s in (10 * step_s, step_s, step_s, step_s):
            seq += 1
            now += time_s
            tell(
                Reported(
                    at=now,
                    trial=0,
                    incarnation=incarnation,
                    seq=seq,
                    step=seq,
                    metric=0.0,
                    step_time_s=time_s,
                )
            )
    return entries


def test_what_a_profiling_run_says() -> None:
    profile = profiles.measure(_walk({1: 0.4, 2: 0.25, 4: 0.16}, overhead_s=0.3))
    assert profile.step_s == {1: 0.4, 2: 0.25, 4: 0.16}
    assert profile.scaling == {1: 1.0, 2: 1.6, 4: 2.5}
    assert profile.overhead_s == pytest.approx(0.3)


def test_nothing_measured() -> None:
    assert profiles.measure([]) == profiles.Profile({}, 0.0)


def test_a_profile_is_found_for_exactly_its_recipe_and_script(tmp_path: Path) -> None:
    profile = profiles.Profile({1: 0.4, 2: 0.25}, 0.3)
    profiles.keep(tmp_path / "runs", _recipe(tmp_path), profile)
    assert profiles.find(tmp_path / "runs", _recipe(tmp_path)) == profile
    assert profiles.find(tmp_path / "runs", _recipe(tmp_path, lr=0.2)) is None
    assert profiles.find(tmp_path / "runs", _recipe(tmp_path, script="pass  # new\n")) is None
    assert profiles.find(tmp_path / "elsewhere", _recipe(tmp_path)) is None


def test_a_damaged_profile_is_none(tmp_path: Path) -> None:
    path = profiles.keep(tmp_path, _recipe(tmp_path), profiles.Profile({1: 0.4}, 0.3))
    path.write_text("{")
    assert profiles.find(tmp_path, _recipe(tmp_path)) is None


def test_the_search_starts_from_the_profile_and_learns_on() -> None:
    speed = Speed("auto", profiled={1: 1.0, 2: 1.6, 4: 2.286}, profiled_overhead_s=0.3)
    assert speed.s(2) == pytest.approx(1.6, rel=0.01)
    assert speed.overhead_s == 0.3
    for _ in range(20):
        speed.saw_resize(1, 1.0, 2, 1.0)
        speed.saw_overhead(0.1)
    assert speed.s(2) == pytest.approx(1.0)
    assert speed.overhead_s == 0.1
