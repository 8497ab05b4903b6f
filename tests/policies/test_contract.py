"""Every registered policy passes the contract (``contract.py``). A new policy is picked up from the registry."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpusched import policies
from gpusched.core.commands import Launch
from gpusched.core.transitions import LAST_SAVE_S
from tests.events import reported
from tests.policies.contract import LONGEST_EXIT_S, VARIANTS, Played, play
from tests.policies.hand import Hand

CASES = [
    pytest.param(name, options, id=f"{name}-{place}")
    for name in policies.names()
    for place, options in enumerate(VARIANTS.get(name, [{}]))
]
SEEDS = range(5)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_random_experiments_keep_every_invariant_and_replay(
    name: str, options: Mapping[str, Any]
) -> None:
    reported = 0
    for seed in SEEDS:
        played = play(name, options, seed)
        assert played.again() == played.commands, f"seed {seed}: replay differs"
        _check_ending(played, seed)
        launches = [one for told in played.commands for one in told if isinstance(one, Launch)]
        sizes = {len(launch.devices) for launch in launches}
        assert sizes <= {1} or name not in policies.OF_ONE_SIZE
        reported += sum(trial.seq for trial in played.experiment.state.trials.values())
    assert reported > 20, "next to nothing was trained"


def _check_ending(played: Played, seed: int) -> None:
    state = played.experiment.state
    assert state.finished, f"seed {seed}"
    last_save_s = max(
        LAST_SAVE_S, 2 * state.longest_save_s
    )  # of a trial that has reported the best
    grace_s = state.rules.last_call_s + last_save_s + LONGEST_EXIT_S
    assert state.now <= state.rules.deadline_s + grace_s + 1e-6
    for trial in state.trials.values():
        assert trial.is_final, f"seed {seed}: trial {trial.id} is {trial.state.value}"
        sentences = played.policy.explain(state, state.trials[trial.id])
        assert all(isinstance(sentence, str) and sentence for sentence in sentences)
    assert all(isinstance(note, str) and note for note in played.policy.notes(state))


def test_nothing_depends_on_the_order_of_sets() -> None:
    """The same runs in processes that hash text differently."""
    program = "from tests.policies.test_contract import digests; print(*digests(), sep='\\n')"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    first, second = (process.communicate()[0].splitlines() for process in running)
    assert [process.returncode for process in running] == [0, 0]
    # Other tests of this process may have registered policies that those processes do not know.
    assert {line.split()[0] for line in first} <= set(policies.names())
    assert len(first) > 8
    assert first == second


def digests() -> Iterator[str]:
    """For each policy: what an experiment came to, as a short text."""
    for name in policies.names():
        options = VARIANTS.get(name, [{}])[0]
        text = repr(play(name, options, seed=100).commands)
        yield f"{name} {hashlib.sha256(text.encode()).hexdigest()}"


# ---------------------------------------------------------------- the class and its options


# ---------------------------------------------------------------- options

BOUNDS = {"metric_min": 0.0, "metric_max": 1.0}
REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("fifo", {"R": 0}, "R"),
    ("asha", {"eta": 1.0}, "eta"),
    ("asha", {"r": 0}, "r"),
    ("asha", {"r": 10, "R": 5}, "r"),
    ("hypersched", {"cooldown": -1}, "cooldown"),
    ("bandit", {"b": 0}, "b"),
    ("bandit", {"eps": -0.1}, "eps"),
    ("earlyterm", {}, "metric_min"),
    ("earlyterm", {"metric_min": 0.0}, "metric_max"),
    ("earlyterm", {"metric_min": 0.0, "metric_max": 0.0}, "metric_max"),
    ("earlyterm", {**BOUNDS, "delta": 0.0}, "delta"),
    ("earlyterm", {**BOUNDS, "delta": 1.5}, "delta"),
    ("earlyterm", {**BOUNDS, "R": 9, "b": 9}, "b"),
    ("pop", {**BOUNDS, "b": 0}, "b"),
    ("seer", {"B": -1.0}, "B"),
    ("seer", {"t_min": 0.0}, "t_min"),
    ("seer", {"nu": 1.0}, "nu"),
    ("hermes", {"quantum_s": 0.0}, "quantum_s"),
    ("hermes", {"trials_per_device": 0}, "trials_per_device"),
    ("hermes", {"milestones": (0.9, 0.5)}, "milestones"),
    ("hermes", {"milestones": (0.5, 1.0)}, "milestones"),
)


@pytest.mark.parametrize(("name", "options", "named"), REFUSED)
def test_options_that_make_no_sense_are_named(
    name: str, options: dict[str, Any], named: str
) -> None:
    made = policies.options_type(name)(**options)
    assert [option for option, _ in made.problems()] == [named]


# ---------------------------------------------------------------- docs/policies.md names every policy and option


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "policies.md").read_text()


def section(name: str) -> str:
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"no section for {name}"
    return found[1]


@pytest.mark.parametrize("name", policies.names())
def test_every_option_is_explained(name: str) -> None:
    text = section(name) + "`R`"  # which is every policy's, and explained above them
    for option in dataclasses.fields(policies.options_type(name)):
        assert f"`{option.name}`" in text, f"{name}: {option.name}"


@pytest.mark.parametrize("name", policies.names())
def test_defaults_of_single_options_are_true(name: str) -> None:
    options = policies.options_type(name)()
    pairs = re.findall(r"`(\w+)`(?:\]\([^)]*\))? = ([\w.]*\w)", section(name))
    for names, given in re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", section(name), re.MULTILINE):
        keys, values = re.findall(r"`(\w+)`", names), given.replace("`", "").split(",")
        pairs += zip(keys, values, strict=True) if len(keys) == len(values) else ()
    for key, text in pairs:
        true = getattr(options, key, None)
        if isinstance(true, int | float):
            assert float(text) == true, key
        elif isinstance(true, str):
            assert text.strip() == true, key


@pytest.mark.parametrize("policy", ["hypersched", "asha", "foresight", "fifo"])
def test_the_length_of_the_scripts_loop_is_R_where_the_recipe_says_nothing(policy: str) -> None:
    hand = Hand(policy, atoms=1)
    for trial, length in ((0, 200), (0, 300)):  # also of a trial with a longer loop
        known = hand.trial(trial)
        about = {"incarnation": known.incarnation, "seq": known.seq + 1, "step": known.step + 1}
        event = reported(at=hand.now + 1.0, trial=trial, metric=0.5, step_time_s=1.0, **about)
        event.report.length = length
        hand.feed(event)
        assert length == hand.policy.options.R


@pytest.mark.parametrize(("length", "is_told"), [(3, True), (4, False)])
@pytest.mark.parametrize("policy", ["bandit", "earlyterm", "pop"])
def test_trials_that_end_before_they_are_judged_are_told_of(
    policy: str, length: int, is_told: bool
) -> None:
    """A fine-tuning of three epochs was never judged, with b = 10 as with 30, and nothing was said."""
    bounds = {} if policy == "bandit" else BOUNDS
    hand = Hand(policy, {"b": 3, "R": length, **bounds}, atoms=1)
    hand.report(0, 0.5)
    assert ("no trial is judged: each ends at step 3" in hand.notes) == is_told


@pytest.mark.parametrize("policy", ["earlyterm", "pop"])
def test_a_metric_beyond_its_bounds_is_told_of(policy: str) -> None:
    """An accuracy in percent, with bounds of 0 and 1: all trials were at the upper one, and nothing was said."""
    hand = Hand(policy, {"R": 9, "b": 3, **BOUNDS}, atoms=1)
    for metric, is_beyond in ((0.3, False), (97.3, True)):
        hand.report(0, metric)
        assert ("97.300 lies beyond metric_min = 0 or metric_max = 1" in hand.notes) == is_beyond
