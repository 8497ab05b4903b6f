"""s(a) and To from a journal, kept under a hash that changes with what changes the speed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpusched.cli import main
from gpusched.core.decisions import Command, Launch
from gpusched.core.events import Event, TimerFired
from gpusched.core.speed import Speed
from gpusched.driver import profiles
from gpusched.journal.rows import Entry
from gpusched.journal.timeline import timeline
from gpusched.recipe.load import load_recipe
from gpusched.recipe.recipe import Recipe
from tests.events import reported


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
                reported(
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
    profile = profiles.measure(timeline(_walk({1: 0.4, 2: 0.25, 4: 0.16}, overhead_s=0.3)))
    assert profile.step_s == {1: 0.4, 2: 0.25, 4: 0.16}
    assert profile.scaling == {1: 1.0, 2: 1.6, 4: 2.5}
    assert profile.overhead_s == pytest.approx(0.3)


def test_nothing_measured() -> None:
    assert profiles.measure(timeline([])) == profiles.Measured({}, 0.0)


def test_a_profile_is_found_for_exactly_its_recipe_and_script(tmp_path: Path) -> None:
    profile = profiles.Measured({1: 0.4, 2: 0.25}, 0.3)
    profiles.keep(tmp_path / "runs", _recipe(tmp_path), profile)
    assert profiles.find(tmp_path / "runs", _recipe(tmp_path)) == profile
    assert profiles.find(tmp_path / "runs", _recipe(tmp_path, lr=0.2)) is None
    assert profiles.find(tmp_path / "runs", _recipe(tmp_path, script="pass  # new\n")) is None
    for change in ({"python": Path("/opt/old/bin/python")}, {"atoms_per_gpu": 2}):
        other = replace(_recipe(tmp_path), **change)
        assert profiles.find(tmp_path / "runs", other) is None, change
    assert profiles.find(tmp_path / "elsewhere", _recipe(tmp_path)) is None


def test_a_damaged_profile_is_none(tmp_path: Path) -> None:
    path = profiles.keep(tmp_path, _recipe(tmp_path), profiles.Measured({1: 0.4}, 0.3))
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


@pytest.mark.parametrize(("quantum_s", "is_said"), [(3.4, True), (3.5, False)])
def test_a_profile_tells_hermes_before_it_starts_that_quanta_are_stretched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quantum_s: float, is_said: bool
) -> None:
    recipe, runs = _recipe(tmp_path), tmp_path / "runs"
    profiles.keep(runs, recipe, profiles.Measured({1: 0.4}, 3.5))
    ask = ["validate", str(tmp_path / "t.yaml"), "--policy", "hermes", "--dir", str(runs)]
    assert main([*ask, "--set", f"policy.quantum_s={quantum_s}"]) == 0
    said = capsys.readouterr()
    assert (
        "3.4 is shorter than the 3.5 s it takes to save a trial" in said.out + said.err
    ) == is_said
