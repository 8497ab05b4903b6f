"""The script, the interpreter and modules: what can be said about them without running anything."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from gpusched.recipe import checks
from tests.recipe.conftest import GOOD, Load, Problems


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a = 1\nb = (\n", "line 2: '(' was never closed"),
        ("#!/bin/sh\necho hello\n", "line 2: invalid syntax"),
        ("x = '\0'\n", "null bytes"),
        ("x = " + "-" * 100_000 + "1\n", "is not Python: "),
        ("# coding: nonsense\n", "unknown encoding"),
    ],
    ids=["open", "shell", "nul", "minus", "coding"],
)
def test_a_script_that_does_not_compile(
    source: str, message: str, folder: Path, problems: Problems
) -> None:
    (folder / "train.py").write_text(source)
    [found] = problems()
    assert found.startswith("digits.yaml:1: script: train.py is not Python: ")
    assert message in found


@pytest.mark.parametrize(
    ("source", "more"),
    [
        ("x = '\\d'\nraise SystemExit('was run')\n", ""),  # an odd escape, and not run
        ("", ""),
        ("print 'python 2'\n", f"launch: cold\npython: {sys.executable}\n"),
    ],
)
def test_a_script_that_is_good(source: str, more: str, folder: Path, load: Load) -> None:
    (folder / "train.py").write_text(source)
    assert load(whole=GOOD + more).script == folder / "train.py"


def test_a_script_that_is_named_from_where_a_person_stands(
    folder: Path, problems: Problems, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "other.py").write_text("")
    monkeypatch.chdir(folder / "src")
    (found,) = problems(whole=GOOD.replace("train.py", "other.py"))
    assert found.endswith(
        "no such file: other.py; paths begin at the recipe's folder, and from there it is src/other.py"
    )


def test_another_interpreter_keeps_its_link(
    folder: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A venv's python is a link; following it would leave the venv."""
    (folder / "python9").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(folder))
    for named in ("./python9", "python9"):
        assert load(f"launch: cold\npython: {named}\n").python == folder / "python9"


def test_a_home_folder_is_understood(
    folder: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", os.fspath(folder))
    assert load(whole=GOOD.replace("train.py", "~/train.py")).script == folder / "train.py"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("n_trials: 3\n", "n_trials: unknown key; here it is max_trials"),
        ("direction: minimize\n", "direction: unknown key; here it is mode: max or min"),
        ("epochs: 3\n", "epochs: unknown key; here it is policy: {R: ..}"),
        ("search: {lr: 1}\n", "search: unknown key; here it is space"),
        ("policy: {min_steps: 1}\n", "unknown option of hypersched; here it is r"),
        ("policy: {max_steps: 9}\n", "unknown option of hypersched; here it is R"),
        ("policy: {reduction_factor: 4}\n", "unknown option of hypersched; here it is eta"),
        ("method: bayes\n", "method: unknown key; here it is sampler or policy"),
        ("policy: ASHAScheduler\n", "unknown policy 'ASHAScheduler'; did you mean asha?"),
        ("args: ['${lrr}']\n", "args[0]: ${lrr}: the space has no such key; did you mean lr?"),
        ("args: ['x${hparams}']\n", "args[0]: ${hparams}: the space has no such key"),
        ("args: [${lr}]\n", "put what has ${..} in quotes"),
        (
            "args:\n- --lr ${lr}\n",
            "args[0]: '--lr ${lr}' is one argument, blank included; write --lr=..",
        ),
        ("env: {A: 'x-${trial.id}'}\n", "env.A: ${trial.id} stands for a value in args alone"),
        ("try_first: [{lr: 0.1}, {lr: 7}]\n", "try_first[1].lr: 7 is outside the space"),
    ],
)
def test_what_people_bring_along_from_elsewhere(problems: Problems, more: str, told: str) -> None:
    assert told in problems(more)[0]


def test_an_option_of_the_script_is_not_left_without_its_value(problems: Problems) -> None:
    more = "m: {uniform: [0, 1], when: {opt: sgd}}, f: {const: --fast, when: {opt: sgd}}"
    args = "args: [--opt, '${opt}', --s.m, '${m}', --fast, '--x=${m}', --more, '${f}']\n"
    (told,) = problems(args, f"space={{opt: {{choice: [sgd, adam]}}, {more}}}")
    assert told.endswith("--s.m is not; write one argument, '--s.m=${m}'")


def test_a_key_under_another_name_is_not_missing_as_well(problems: Problems) -> None:
    lines = problems(whole="metrik: a\nprogram: train.py\ntimeout: 5m\nparameters: {x: 1}\n")
    assert [line.partition(": ")[0][-1] for line in lines] == ["1", "2", "3", "4"]
    (line,) = problems(whole=GOOD.replace("accuracy", "{name: loss, goal: minimize}"))
    assert "write metric: 'loss', and beside it mode" in line


def test_a_loss_is_not_searched_for_its_most_unasked(load: Load, problems: Problems) -> None:
    worse = GOOD.replace("accuracy", "val_loss")
    assert (
        "metric: val_loss looks like a loss, but mode is max: add mode: min"
        in problems(whole=worse)[0]
    )
    assert load(whole=worse + "mode: max\n").mode == "max"
    (wrong,) = problems(whole=worse + "mode: minimize\n")
    assert "mode: should be max or min, not 'minimize'" in wrong


@pytest.mark.parametrize(
    ("metric", "better"),
    [("valLoss", "min"), ("val/NRMSE", "min"), ("loss/acc", "max"), ("bits", None)],
)
def test_what_a_metrics_name_says(metric: str, better: str | None) -> None:
    assert checks.better_mode(metric) == better


def test_a_module_names_its_file_as_the_script(
    folder: Path, load: Load, problems: Problems
) -> None:
    for file in ("pkg/train.py", "pkg/__main__.py", "src/laid/train.py", "src/src/far/train.py"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("")
    homes = {"pkg.train": folder, "pkg": folder, "json.tool": Path(json.__file__).parents[1]}
    for named, home in {
        **homes,
        "laid.train": folder / "src",
        "far.train": folder / "src/src",
    }.items():
        module = "pkg.__main__" if named == "pkg" else named
        found = load("", "cwd=src", whole=GOOD.replace("script: train.py", f"module: {named}"))
        assert (found.script, found.module) == (home / f"{module.replace('.', '/')}.py", module)
    (both,) = problems("module: pkg.train\n")
    assert "script names what is run as well" in both
