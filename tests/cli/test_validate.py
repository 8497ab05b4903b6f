"""``gpusched validate``: the command as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpusched.cli import main

GOOD = """\
script: train.py
args: [--fast]
deadline: 90s
metric: accuracy
space:
  opt: {choice: [sgd, adam]}
  lr: 0.1
  momentum: {const: 0.9, when: {opt: sgd}}
policy: {name: asha, R: 27}
max_atoms: 2
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("import gpusched\n\nraise SystemExit('was run')\n")
    (tmp_path / "good.yaml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    return Path("good.yaml")


def test_a_good_recipe_is_summed_up(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(recipe)]) == 0
    text = capsys.readouterr().out
    folder = Path.cwd()
    assert text.splitlines() == [
        "good.yaml is good. A search would run:",
        "  name      good",
        f"  script    {folder}/train.py --fast",
        "  metric    accuracy, more is better",
        "  deadline  1 min 30 s",
        "  policy    asha  R=27",
        "  devices   auto",
        "  atoms     1 for a trial",
        "  rate      base x atoms for SGD, base x sqrt(atoms) for Adam and its like (lr_scaling: auto)",
        "  space     opt       one of 'sgd', 'adam'",
        "            lr        0.1",
        "            momentum  0.9, if opt is 'sgd'",
        "  trials    2 configurations",
        *text.splitlines()[13:],
    ]
    assert sorted(line[12:] for line in text.splitlines()[13:]) == [
        "opt=adam lr=0.1",
        "opt=sgd lr=0.1 momentum=0.9",
    ]


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        (["max_trials=1"], "1 configuration"),
        (["max_trials=20"], "2 configurations"),
        (["max_trials=20", "space.lr={uniform: [0, 1]}"], "20 configurations"),
        (["space.lr={uniform: [0, 1]}"], "any number"),
    ],
)
def test_the_fewest_that_space_and_limit_allow_are_named(
    changes: list[str], most: str, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [word for change in changes for word in ("--set", change)]
    assert main(["validate", str(recipe), *overrides]) == 0
    assert f"  trials    {most}" in capsys.readouterr().out.splitlines()


def test_as_json(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--seed=3", "--deadline=80s", "--devices=cpu:2", "--set=policy.R=9"]
    assert main(["validate", str(recipe), "--json", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["configurations"], len(found["first"])) == (True, 2, 2)
    assert found["resolved"]["policy"]["R"] == 9
    assert [found["resolved"][key] for key in ("seed", "deadline", "devices")] == [3, 80, "cpu:2"]


def test_all_problems_and_exit_code_2(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.write_text(GOOD + "mod: max\nseed: x\n")
    assert main(["validate", str(recipe), "--deadline", "0"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "gpusched: 3 problems in the recipe:",
        "good.yaml:11: mod: unknown key; did you mean mode?",
        "good.yaml:12: seed: should be a whole number, not 'x'",
        "--deadline 0: must be more than 0 seconds, not 0",
    ]


def test_a_missing_recipe(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "god.yaml"]) == 2
    assert capsys.readouterr().err == "gpusched: god.yaml: no such file; did you mean good.yaml?\n"
    assert main(["validate", "god.yaml", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_the_policy_is_asked(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["validate", str(recipe), "--policy", "seer", "--set", "policy.B=0.001"]
    assert main(small) == 2
    assert "no plan fits 64 atoms, 1.5 min and 0.001 atom-minutes" in capsys.readouterr().err
    assert main([*small, "--json"]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem.startswith("policy.B: no plan fits")


def test_oddities_are_mentioned(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = "import gpusched; model = torch.load(path); torch.save(model, path)"
    for text, private, told in (
        ("import gpusched", False, ""),
        ("import ray", False, "train.py does not mention gpusched"),
        (own, False, "one begins with what another has saved"),
        (own, True, ""),
        ("import gpusched; os.environ['MASTER_PORT'] = '12355'", False, "sets MASTER_PORT, where"),
        (f"{own}; path = trial.folder / 'last.pt'", False, ""),
    ):
        Path("train.py").write_text(text)
        assert main(["validate", str(recipe), *["--set", "cwd=private"] * private]) == 0
        said = capsys.readouterr().err
        assert (told in said, "note: " in said) == (True, bool(told))
