"""s(a) and To from a journal, kept under a hash that changes with what changes the speed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpusched.cli import main
from gpusched.core.decisions import Command, Launch, Yield
from gpusched.core.events import Event, Reported, TimerFired, TrialExited
from gpusched.core.speed import Speed
from gpusched.daemon import start as launchpad
from gpusched.driver import profiles
from gpusched.driver.clock import Beginning
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.log import Entry, Journal
from gpusched.journal.timeline import timeline
from gpusched.recipe.load import load_recipe
from gpusched.recipe.recipe import Recipe


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
    profile = profiles.measure(timeline(_walk({1: 0.4, 2: 0.25, 4: 0.16}, overhead_s=0.3)))
    assert profile.step_s == {1: 0.4, 2: 0.25, 4: 0.16}
    assert profile.scaling == {1: 1.0, 2: 1.6, 4: 2.5}
    assert profile.overhead_s == pytest.approx(0.3)


def test_nothing_measured() -> None:
    assert profiles.measure(timeline([])) == profiles.Profile({}, 0.0)


def test_a_profile_is_found_for_exactly_its_recipe_and_script(tmp_path: Path) -> None:
    profile = profiles.Profile({1: 0.4, 2: 0.25}, 0.3)
    profiles.keep(tmp_path / "runs", _recipe(tmp_path), profile)
    assert profiles.find(tmp_path / "runs", _recipe(tmp_path)) == profile
    assert profiles.find(tmp_path / "runs", _recipe(tmp_path, lr=0.2)) is None
    assert profiles.find(tmp_path / "runs", _recipe(tmp_path, script="pass  # new\n")) is None
    other = replace(_recipe(tmp_path), python=Path("/opt/old/bin/python"))
    assert profiles.find(tmp_path / "runs", other) is None
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


# ---------------------------------------------------------------- what a hand-over takes, for hermes


def _report(at: float, trial: int, incarnation: int, seq: int) -> Reported:
    one = {"trial": trial, "incarnation": incarnation, "seq": seq, "step": seq}
    return Reported(at=at, metric=0.0, step_time_s=1.0, **one)


def _two_take_turns() -> list[Entry]:
    """Leaving takes 0.5 s, the first launch of a trial 9 s, and 3 s the launch of one that has run before."""
    one = ("cpu:0",)
    told: list[tuple[Event, list[Command]]] = [
        (TimerFired(at=0.0, timer="x"), [Launch(0, 1, one, {})]),
        (_report(10.0, 0, 1, 1), [Yield(0, 1, True)]),
        (
            TrialExited(at=10.5, trial=0, incarnation=1, outcome="yielded"),
            [Launch(1, 1, one, {})],
        ),
        (_report(20.5, 1, 1, 1), [Yield(1, 1, True)]),
        (
            TrialExited(at=21.0, trial=1, incarnation=1, outcome="yielded"),
            [Launch(0, 2, one, {})],
        ),
        (_report(25.0, 0, 2, 2), []),
    ]
    return [Entry(n, event, commands) for n, (event, commands) in enumerate(told, 1)]


def test_a_handover_is_what_it_takes_to_leave_and_to_load_the_next() -> None:
    assert profiles.measure_handover(timeline(_two_take_turns())) == pytest.approx(0.5 + 3.0)
    assert profiles.measure_handover(timeline(_two_take_turns()[:-1])) is None


def _finished_run(runs: Path, recipe: Recipe) -> ExperimentPaths:
    paths = launchpad.make_experiment(runs, recipe, Beginning.now())
    journal = Journal.create(paths.journal, {})
    for entry in _two_take_turns():
        journal.append(entry.event, entry.commands)
    journal.close()
    paths.final_view.write_text("{}")
    return paths


def test_a_handover_is_known_from_an_earlier_run_of_the_same_recipe(tmp_path: Path) -> None:
    recipe, runs = _recipe(tmp_path), tmp_path / "runs"
    assert profiles.handover_s(runs, recipe) is None
    paths = _finished_run(runs, recipe)
    assert profiles.handover_s(runs, recipe) == pytest.approx(3.5)
    assert profiles.handover_s(runs, _recipe(tmp_path, lr=0.2)) is None
    later = paths.recipe.stat().st_mtime + 1
    os.utime(recipe.script, (later, later))
    assert profiles.handover_s(runs, recipe) is None, "the script has changed since"
    profiles.keep(runs, recipe, profiles.Profile({1: 0.4}, 0.3))
    assert profiles.handover_s(runs, recipe) == 0.3, "a profile is the better source"
    paths.final_view.unlink()


def test_an_earlier_run_that_is_damaged_or_goes_on_tells_nothing(tmp_path: Path) -> None:
    recipe, runs = _recipe(tmp_path), tmp_path / "runs"
    paths = _finished_run(runs, recipe)
    journal = paths.journal.read_bytes()
    paths.journal.write_bytes(journal[: len(journal) // 2])
    assert profiles.handover_s(runs, recipe) is None
    paths.journal.write_bytes(journal)
    paths.final_view.unlink()
    assert profiles.handover_s(runs, recipe) is None


@pytest.mark.parametrize("command", ["validate", "run"])
@pytest.mark.parametrize("source", ["profile", "run"])
def test_hermes_is_refused_with_a_quantum_shorter_than_a_handover(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, source: str
) -> None:
    recipe, runs = _recipe(tmp_path), tmp_path / "runs"
    if source == "run":
        _finished_run(runs, recipe)
    else:
        profiles.keep(runs, recipe, profiles.Profile({1: 0.4}, 3.5))
    before = sorted(runs.iterdir())
    ask = [command, str(tmp_path / "t.yaml"), "--policy", "hermes", "--dir", str(runs)]
    assert main([*ask, "--set", "policy.quantum_s=3.4"]) == 2
    assert capsys.readouterr().err == (
        "gpusched: policy.quantum_s: 3.4 s is shorter than the 3.5 s that it takes to save a trial and load the next "
        "(as measured or given); set it to 3.5 or more\n"
    )
    assert sorted(runs.iterdir()) == before, "nothing was begun"
    assert main(["validate", *ask[1:], "--set", "policy.quantum_s=3.5"]) == 0
