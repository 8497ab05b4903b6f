"""Samplers with a memory: asked one ahead, never waited for, journaled; the example of docs/samplers.md; Optuna's."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gpusched import samplers
from gpusched.cli import validate
from gpusched.core.commands import Suggest
from gpusched.core.events import LimitsMoved, Suggested, UserAsked
from gpusched.core.trial import TrialRecord
from gpusched.driver.assemble import from_journal
from gpusched.driver.loop import Driver
from gpusched.driver.suggester import ChildSuggester
from gpusched.errors import InputError, RecipeError
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.log import Journal
from gpusched.recipe.load import load_recipe
from gpusched.recipe.recipe import Recipe
from gpusched.samplers import Seen
from gpusched.sim.setup import Setup, experiment, recipe
from gpusched.sim.study import simulate, start
from gpusched.space.space import parse_space
from scripts.kept import simulate_into
from tests.conftest import Install, with_libraries
from tests.helpers import children_of
from tests.rig import wait_until

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "samplers.md").read_text()
SECTION = PAGE.partition("## A sampler of your own\n")[2]
EXAMPLE = re.search(r"^```python\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)[1]
ONE = parse_space({"lr": {"loguniform": [1e-4, 1]}})
ODD = """
import time
import numpy as np
from gpusched.samplers import Sampler

class Slow(Sampler):
    def suggest(self, n, seen, random):
        time.sleep(600)

class Outside(Sampler):
    def suggest(self, n, seen, random):
        return {"lr": 5}

class Numbers(Sampler):
    def suggest(self, n, seen, random):
        return {"lr": np.float32(0.5), "width": np.float32(64), "layers": np.ceil(2.1)}

class Same(Sampler):
    def suggest(self, n, seen, random):
        return {"lr": 0.5, "opt": "sgd"}

class Short(Sampler):
    def suggest(self, n, seen, random):
        return {"lr": 1 / (n + 2)} if n < 6 else None

class Broken(Sampler):
    suggest = print
    def __init__(self, space):
        raise RuntimeError("no licence")

class Needy(Sampler):
    def __init__(self, space, *, licence):
        super().__init__(space)

    def suggest(self, n, seen, random):
        return {}
"""
RECIPE = """\
script: train.py
deadline: 10m
metric: loss
mode: min
space: {lr: {loguniform: [1e-4, 1]}, opt: {choice: [sgd, adam]}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(EXAMPLE)
    (tmp_path / "odd.py").write_text(ODD)
    (tmp_path / "train.py").write_text("print('trained')\n")
    return tmp_path


def load(folder: Path, sampler: str, more: str = "") -> Recipe:
    (folder / "recipe.yaml").write_text(f"{RECIPE}sampler: {sampler}\n{more}")
    return load_recipe(folder / "recipe.yaml")


def setup(folder: Path, sampler: str, **more: Any) -> Setup:
    file = folder / "workload.py"
    file.write_text(
        'SPACE = {"lr": {"loguniform": [1e-4, 1]}, "opt": {"choice": ["sgd", "adam"]}}\n'
        "def train(hp, step):\n    return step * hp['lr'] / 100\n"
    )
    return Setup(
        policy="fifo",
        options={"R": 4},
        workload=f"{file}:train",
        atoms=2,
        deadline_s=60.0,
        sampler=sampler if ".py" not in sampler else f"{folder}/{sampler}",
        **more,
    )


# ------------------------------------------------------------ in a recipe


def test_the_example_is_short_and_a_recipe_names_it(folder: Path) -> None:
    assert len(EXAMPLE.splitlines()) <= 40
    recipe = load(folder, "{name: mine.py:NearTheBest, chance: 0.5}")
    assert recipe.sampler_name == f"{folder}/mine.py:NearTheBest"
    assert recipe.sampler_options == {"startup": 8, "chance": 0.5}
    through_json = json.loads(json.dumps(recipe.resolved()))
    assert Recipe.from_resolved(through_json) == recipe
    assert recipe.configurations().size is None


@pytest.mark.parametrize(
    ("sampler", "more", "told"),
    [
        ("TPESampler", "", "unknown sampler 'TPESampler'; did you mean tpe?"),
        ("{name: mine.py:NearTheBest, chanc: 1}", "", "unknown option; there are chance"),
        ("{name: mine.py:NearTheBest, startup: -1}", "", "sampler: must be at least 0, not -1"),
        ("odd.py:Needy", "", "sampler.licence: is needed"),
        ("odd.py:Broken", "", "odd.py:29: __init__(space) failed: RuntimeError: no licence"),
        ("{name: random, startup: 3}", "", "sampler.startup: random has no options"),
        ("[tpe]", "", "sampler: should be one of random, grid"),
    ],
)
def test_what_a_recipe_may_not_say(folder: Path, sampler: str, more: str, told: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(folder, sampler, more)
    (problem,) = caught.value.problems
    assert told in problem


# ------------------------------------------------------------ a search


def suggested(file: Path) -> list[Suggested]:
    journal = Journal.open(file)
    try:
        return [e.event for e in journal.entries() if isinstance(e.event, Suggested)]
    finally:
        journal.close()


def test_a_search_with_a_sampler_of_ones_own_learns_and_replays(folder: Path) -> None:
    options = {"startup": 8, "chance": 0.1}
    of = setup(folder, "mine.py:NearTheBest", sampler_options=options)
    result, root = simulate_into(folder / "runs", of)
    paths = ExperimentPaths(root)
    trials = from_journal(paths).experiment.state.trials
    answers = suggested(paths.journal)
    assert result.trials == len(trials) > 20
    assert [answer.by for answer in answers[:8]] == ["random"] * 8
    assert Counter(answer.by for answer in answers)["NearTheBest"] > 8
    assert [dict(trial.hparams) for trial in trials.values()] == [
        answer.hparams for answer in answers[: len(trials)]
    ]
    assert len(trials) <= len(answers) <= len(trials) + 1, "one ahead, and no more"
    plain = simulate(setup(folder, "random"))
    assert (result.best or 0) >= (plain.best or 0)
    again, _ = simulate_into(folder / "again", of)
    assert again.history == result.history, "the same questions get the same answers"


def test_a_sampler_may_end_the_sequence(folder: Path) -> None:
    result, root = simulate_into(folder / "runs", setup(folder, "odd.py:Short"))
    assert result.trials == 6
    assert suggested(ExperimentPaths(root).journal)[-1].hparams is None


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("def suggest(self, n, seen, random): return 'lr=1'", "Mine: suggest returned 'lr=1', not a map from"),
        ("def suggest(self, n): return {}", "suggest failed: TypeError: Mine.suggest() takes 2 positional"),
        ("def suggest(self, n, seen, random): return {'lr': 1 / 0}", "mine.py:4: suggest failed: ZeroDivisionError"),
        ("def __init__(self): pass\n    def suggest(self, *_): pass", "Mine: __init__(space) failed: TypeError"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_sampler_is_said_with_its_place(
    tmp_path: Path, body: str, told: str
) -> None:
    head = "from gpusched.samplers import Sampler\n\nclass Mine(Sampler):\n"
    (tmp_path / "mine.py").write_text(f"{head}    {body}\n")
    question = {"n": 0, "seed": 0, "seen": []}
    with pytest.raises(InputError, match=re.escape(told)):
        samplers.answer(samplers.make(f"{tmp_path}/mine.py:Mine", ONE, {}), question)


def test_numbers_of_numpy_are_numbers_and_whole_where_the_space_has_them_so(folder: Path) -> None:
    space = parse_space(
        {"lr": {"uniform": [0, 1]}, "width": {"choice": [32, 64]}, "layers": {"int": [1, 8]}}
    )
    made = samplers.make(f"{folder}/odd.py:Numbers", space, {})
    found = samplers.answer(made, {"n": 0, "seed": 0, "seen": []})
    assert json.dumps(found["hparams"], sort_keys=True) == '{"layers": 3, "lr": 0.5, "width": 64}'


@pytest.mark.parametrize(
    ("sampler", "told"),
    [
        ("odd.py:Outside", "Outside failed"),
        ("odd.py:Same", "Same suggested one that was tried before"),
    ],
)
def test_what_is_no_suggestion_is_drawn_and_said(folder: Path, sampler: str, told: str) -> None:
    """A simulation, which told nobody, compared random search."""
    recipe = load(folder, sampler)
    suggester = ChildSuggester(recipe, {0: TrialRecord(0, {"lr": 0.5, "opt": "sgd"})})
    found = ask(suggester, 1)
    suggester.close()
    assert (found.by, found.why) == ("random", told)
    assert found.hparams == recipe.configurations().sample(1)
    if suggester.complaints:
        with pytest.raises(InputError, match=re.escape(suggester.complaints[0])):
            simulate(setup(folder, sampler))


def test_a_value_whose_parent_is_drawn_is_dropped_where_its_condition_does_not_hold() -> None:
    """The documentation's example leaves out any key of the best: without `opt` it was refused."""

    class Momentum(samplers.Sampler):
        def suggest(self, n: int, seen: object, random: object) -> dict[str, float]:
            return {"momentum": 0.5}

    momentum = {"uniform": [0, 1], "when": {"opt": "sgd"}}
    space = parse_space({"opt": {"choice": ["sgd", "adam"]}, "momentum": momentum})
    drawn = [
        samplers.answer(Momentum(space), {"n": n, "seed": 0, "seen": []})["hparams"]
        for n in range(20)
    ]
    assert {(one["opt"], one.get("momentum")) for one in drawn} == {("sgd", 0.5), ("adam", None)}


# ------------------------------------------------------------ after an earlier search

TELLING = """
from gpusched.samplers import Sampler

class Telling(Sampler):
    startup = 8

    def suggest(self, n, seen, random):
        best = max(seen, key=lambda trial: trial.score)
        assert [trial.trial for trial in seen] == list(range(-len(seen), 0)), seen
        return {"lr": best.hparams["lr"] * 1.01, "opt": best.hparams["opt"]}
"""


@pytest.fixture
def earlier(folder: Path) -> Path:
    """A search of the same space, for a loss; its best trial has the smallest lr."""
    of = setup(folder, "random", max_trials=12)
    file = folder / "workload.py"
    file.write_text(f"METRIC, MODE = 'loss', 'min'\n{file.read_text()}")
    return simulate_into(folder / "runs", of)[1]


def test_after_an_earlier_search_its_best_are_tried_first(folder: Path, earlier: Path) -> None:
    trials = from_journal(ExperimentPaths(earlier)).experiment.state.trials.values()
    best = [dict(trial.hparams) for trial in sorted(trials, key=lambda trial: trial.hparams["lr"])]
    recipe = load(folder, "random", f"after: {earlier}\ntry_first: [{{opt: adam}}]\n")
    shutil.rmtree(earlier)
    again = Recipe.from_resolved(json.loads(json.dumps(recipe.resolved())))
    assert again == recipe
    drawn = [again.configurations().sample(n) for n in range(30)]
    assert drawn[1:4] == best[:3]
    assert not [hparams for hparams in drawn[4:] if hparams in best], "tried again"
    assert {one["state"] for one in recipe.after} == {"completed"}
    assert "  after     12 trials of another search, as many as fit" in validate.lines(recipe)


def test_a_sampler_that_learns_has_seen_the_earlier_search(folder: Path, earlier: Path) -> None:
    (folder / "telling.py").write_text(TELLING)
    recipe = load(folder, "telling.py:Telling", f"after: {earlier}\n")
    suggester = ChildSuggester(recipe, {})
    found = ask(suggester, 0)
    suggester.close()
    assert found.by == "Telling"
    assert found.hparams["lr"] == recipe.after[0]["hparams"]["lr"] * 1.01
    named = recipe.after[0]["hparams"]
    recipe = load(
        folder, "telling.py:Telling", f"after: {earlier}\ntry_first: [{json.dumps(named)}]\n"
    )
    assert ask(ChildSuggester(recipe, {}), 0).hparams == named, "though it was tried before"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("after: runs", "runs is not a search's folder (it has no journal.db)"),
        ("after: {earlier}\nmode: max", "searched for min loss, not for max loss"),
        ("after: {earlier}\nspace: {lr: {uniform: [2, 3]}}", "none of 12 trials of"),
        (
            "after: {earlier}\nspace: {lr: {uniform: [0, 1]}, opt: {choice: [sgd, adam]}, wd: 1}",
            "(in trial 0 wd is missing)",
        ),
        ("after: [7]", "after[0]: should be a map of keys"),
    ],
)
def test_what_cannot_come_after(folder: Path, earlier: Path, more: str, told: str) -> None:
    text = more.replace("{earlier}", str(earlier))
    keys = [line.partition(":")[0] for line in text.splitlines()]
    kept = [line for line in RECIPE.splitlines() if line.partition(":")[0] not in keys]
    (folder / "recipe.yaml").write_text("\n".join([*kept, text, ""]))
    with pytest.raises(RecipeError) as caught:
        load_recipe(folder / "recipe.yaml")
    assert told in caught.value.problems[0]


@pytest.mark.parametrize("is_over", [False, True])
def test_more_trials_and_time_repeat_no_question(folder: Path, is_over: bool) -> None:
    """A resume asks again, and the moved limits do: the process was asked twice, each answer was its neighbour's."""
    of = setup(folder, "mine.py:NearTheBest", sampler_options={"startup": 2}, max_trials=9)
    made, executor = recipe(of), of.machine()
    search = experiment(made)
    suggester = ChildSuggester(made, search.state.trials, is_patient=True)
    driver = Driver(search, executor, suggester=suggester, check=True)
    start(driver, executor)
    state = driver.experiment.state
    while state.configurations.asked_for != 5:
        driver.turn()
    asked: list[Any] = []
    process = suggester._process
    ask = process.ask
    process.ask = lambda question: (asked.append(question["n"]), ask(question))
    driver.resume(epoch=2)
    if is_over:
        driver.handle([UserAsked(at=executor.now(), verb="cancel")])
        while not driver.experiment.state.finished:
            driver.turn()
    limits = {"deadline_s": state.rules.deadline_s + 5.0, "max_trials": 12}
    if is_over:
        driver.reopen(LimitsMoved(at=executor.now(), checkpoints={}, **limits))
    else:
        driver.handle([LimitsMoved(at=executor.now(), **limits)])
    driver.run()
    suggester.close()
    assert len(asked) == len(set(asked)), "none twice"
    assert is_over or 5 not in asked, "the process has that question already"
    assert len(state.trials) == 12
    assert not suggester.complaints


# ------------------------------------------------------------ the process


def ask(suggester: ChildSuggester, n: int) -> Suggested:
    """Ask and wait, as the daemon's loop does."""
    suggester.execute(Suggest(n))
    (event,) = wait_until(lambda: suggester.poll(7.0))
    assert suggester.asked_for is None, "nothing is expected now"
    assert isinstance(event, Suggested)
    assert (event.at, event.n) == (7.0, n)
    return event


def test_a_sampler_that_takes_too_long_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpusched.driver.suggester.LIMIT_S", 0.3)
    recipe = load(folder, "odd.py:Slow")
    suggester = ChildSuggester(recipe, {})
    event = ask(suggester, 3)
    assert (event.by, event.why) == ("random", "Slow was too late")
    assert event.hparams == recipe.configurations().sample(3)
    assert "did not answer in 0.3 s" in suggester.complaints[0]
    assert not children_of("gpusched.driver.suggester")
    assert ask(suggester, 4).by == "random"


def test_a_process_that_dies_is_replaced_and_in_the_end_given_up(folder: Path) -> None:
    suggester = ChildSuggester(load(folder, "odd.py:Slow"), {})
    for n in range(3):
        suggester.execute(Suggest(n))
        assert not suggester.poll(0.0)
        (process,) = children_of("gpusched.driver.suggester")
        os.kill(process.pid, signal.SIGKILL)
        found = wait_until(lambda: suggester.poll(0.0))
        assert [(e.by, e.why) for e in found if isinstance(e, Suggested)] == [
            ("random", "Slow failed")
        ]
        assert "status -9" in suggester.complaints[n]
    event = ask(suggester, 3)
    assert (event.by, event.why) == ("random", "the process of Slow died too often")
    assert not children_of("gpusched.driver.suggester")


def test_an_entry_point_of_a_package_is_a_sampler(folder: Path, install: Install) -> None:
    install("samplers", "near = extra:NearTheBest", EXAMPLE)
    recipe = load(folder, "near")
    assert recipe.sampler_options == {"startup": 8}
    suggester = ChildSuggester(recipe, {})
    assert ask(suggester, 8).by == "near"
    suggester.close()


# ------------------------------------------------------------ Optuna

integrations, _, needs_optuna = OPTUNA = with_libraries("optuna")
SPACE = {
    "lr": {"loguniform": [1e-4, 1]},
    "width": {"logint": [8, 512]},
    "drop": {"uniform": [0, 0.5], "q": 0.05},
    "opt": {"choice": ["sgd", "adam"]},
    "momentum": {"uniform": [0, 0.9], "when": {"opt": "sgd"}},
    "layers": {"const": [1, 2]},
}


def score(hparams: Mapping[str, Any]) -> float:
    """Best at lr 0.1, width 64 and adam."""
    import math

    off = abs(math.log10(hparams["lr"]) + 1) + abs(math.log2(hparams["width"]) - 6)
    return -off - (hparams["opt"] == "sgd")


@pytest.mark.parametrize(
    "name",
    ["mine.py:NearTheBest", pytest.param("tpe", marks=OPTUNA)],
)
def test_a_sampler_stays_in_the_space_repeats_and_learns(folder: Path, name: str) -> None:
    space = parse_space(SPACE)
    sampler = samplers.make(name if name == "tpe" else f"{folder}/{name}", space, {})
    seen: list[Seen] = []
    for n in range(30):
        values = space.draw(1, str(n), {}) if n < 10 else None
        if values is None:
            question = {"n": n, "seed": 3, "seen": [vars_of(trial) for trial in seen]}
            values = samplers.answer(sampler, question)["hparams"]
            assert isinstance(values, dict)
            if n == 10:
                assert samplers.answer(sampler, question)["hparams"] == values
        assert ("momentum" in values) == (values["opt"] == "sgd")
        state = ("completed", "stopped", "running")[n % 3]
        seen.append(Seen(trial=n, hparams=values, state=state, curve=[(1, score(values))]))
    drawn = sum(score(trial.hparams) for trial in seen[:10]) / 10
    learnt = sum(score(trial.hparams) for trial in seen[20:]) / 10
    assert learnt > drawn


@integrations
@needs_optuna
def test_a_failed_trial_counts_as_the_worst_however_far_it_came() -> None:
    """Optuna ranks pruned trials by step: one out of memory at step 100 outranked all that were paused at 40."""
    space = parse_space({"lr": {"uniform": [0, 1]}})
    seen = [
        Seen(trial=n, hparams={"lr": 0.8 + 0.01 * n}, state="failed", curve=[(100, 0.99)])
        for n in range(10)
    ]
    seen += [
        Seen(trial=n, hparams={"lr": 0.01 * n}, state="paused", curve=[(40, 0.5 + 0.01 * n)])
        for n in range(10, 20)
    ]
    question = {"n": 20, "seen": [vars_of(trial) for trial in seen]}
    sampler = samplers.load("tpe")(space)
    answers = [samplers.answer(sampler, {**question, "seed": seed}) for seed in range(8)]
    assert sum(answer["hparams"]["lr"] for answer in answers) / 8 < 0.6
    few = {"n": 4, "seed": 0, "seen": question["seen"][8:12]}
    blind = samplers.load("tpe")(space, n_startup_trials=99)
    assert samplers.answer(sampler, few) != samplers.answer(blind, few)


@integrations
@needs_optuna
def test_what_a_person_tried_outside_the_space_ends_no_sampler() -> None:
    """After ``try opt=lion --outside`` every configuration was random."""
    space = parse_space({"opt": {"choice": ["sgd", "adam"]}, "lr": {"loguniform": [1e-4, 1.0]}})
    tried = {"opt": "lion", "lr": -1.0}
    new = [{"trial": 0, "hparams": tried, "state": "completed", "curve": [(1, 0.5)]}]
    found = samplers.answer(samplers.make("tpe", space, {}), {"n": 1, "seed": 0, "seen": new})
    assert dict(found["hparams"])["opt"] in ("sgd", "adam")


@integrations
@needs_optuna
def test_a_sampler_of_optuna_s_takes_its_own_arguments(folder: Path) -> None:
    recipe = load(folder, "{name: tpe, n_ei_candidates: 3}")
    assert recipe.sampler_options == {"startup": 10, "n_ei_candidates": 3}
    for wrong, told in (
        ("n_ei: 3", "argument 'n_ei'"),
        ("multivariate: false", "can only be enabled when"),
    ):
        with pytest.raises(RecipeError, match=told):
            load(folder, f"{{name: tpe, {wrong}}}")


def vars_of(trial: Seen) -> dict[str, object]:
    about = {name: getattr(trial, name) for name in Seen.__dataclass_fields__}
    return json.loads(json.dumps(about))


@pytest.mark.skipif(find_spec("optuna") is not None, reason="Optuna is installed")
def test_without_optuna_a_recipe_says_what_to_install(folder: Path) -> None:
    with pytest.raises(RecipeError, match=r"tpe needs Optuna; install it with: pip install"):
        load(folder, "tpe")
