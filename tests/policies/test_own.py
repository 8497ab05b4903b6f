"""A policy of a user's own: the example of docs/policies.md in a file, in a recipe, simulated (live: tests/e2e)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpusched import policies
from gpusched.cli import main
from gpusched.core.decisions import Policy
from gpusched.errors import InputError, RecipeError
from gpusched.recipe.load import load_recipe
from tests.conftest import Install
from tests.policies.hand import Hand
from tests.recipe.conftest import GOOD

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "policies.md").read_text()
SECTION = PAGE.partition("## A policy of your own\n")[2].partition("\n## ")[0]
EXAMPLE = re.search(r"^```python\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(EXAMPLE)
    (tmp_path / "train.py").write_text("print('trained')\n")
    return tmp_path


def load(folder: Path, written: str, **flags: str):
    (folder / "recipe.yaml").write_text(f"{GOOD}policy: {written}\n")
    return load_recipe(folder / "recipe.yaml", [], **flags)


def test_a_recipe_names_it_with_a_path_relative_to_itself(folder: Path) -> None:
    recipe = load(folder, "{name: mine.py:Median, patience: 3, R: 9}")
    assert recipe.policy_name == f"{folder}/mine.py:Median"
    assert recipe.policy_options == {"R": 9, "patience": 3}
    again = type(recipe).from_resolved(json.loads(json.dumps(recipe.resolved())))
    assert policies.make(again.policy_name, again.policy_options).options.patience == 3


def test_the_command_lines_path_is_relative_to_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    recipe = load(folder, "{name: asha, R: 9, eta: 3}", policy="../mine.py:Median")
    assert recipe.policy_name == f"{folder}/mine.py:Median"
    assert recipe.policy_options == {"R": 9, "patience": 5}


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("{name: mine.py:Median, patience: 0}", "patience: must be at least 1 step, not 0"),
        ("{name: mine.py:Median, pace: 2}", "pace: unknown option of "),
        ("mine.py:Mean", "mine.py has no class Mean; it has MedianOptions, Median"),
        ("mine.py:MedianOptions", "is not a subclass of gpusched.core.decisions.Policy"),
        (
            "half.py:Half",
            "half.py:Half does not define on_capacity and on_report, which Policy asks for",
        ),
        ("theirs.py:Median", "theirs.py: no such file"),
        ("broken.py:Median", "broken.py:2: cannot be imported: ZeroDivisionError"),
        ("program.py:Median", "program.py:1: cannot be imported: SystemExit: 2"),
        ("typo.py:Median", "typo.py:1: cannot be imported: SyntaxError"),
        ("raises.py:Median", "raises.py:16: problems failed: TypeError: '<' not supported"),
        ("medial", "unknown policy 'medial'"),
    ],
)
def test_what_is_wrong_is_said_with_the_recipes_line(
    folder: Path, policy: str, message: str
) -> None:
    (folder / "broken.py").write_text("import math\n1 / 0\n")
    (folder / "program.py").write_text("raise SystemExit(2)\n")
    (folder / "typo.py").write_text("class Median(:\n")
    # Without R in the recipe it is None here.
    (folder / "raises.py").write_text(EXAMPLE.replace("patience < 1", "patience < self.R"))
    half = "from gpusched.policies import Policy\nclass Half(Policy):\n    on_reports = print\n"
    (folder / "half.py").write_text(half)
    with pytest.raises(RecipeError) as caught:
        load(folder, policy)
    (line,) = caught.value.problems
    assert line.startswith(f"{folder}/recipe.yaml:5: policy")
    assert message in line


def test_it_is_simulated(folder: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    arguments = ["--policy", "fifo,mine.py:Median", "--set", "R=20", "--seeds", "1", "--jobs", "1"]
    code = main(["simulate", *arguments, "--deadline", "20", "--json"])
    said = capsys.readouterr()
    assert (code, said.err) == (0, "")
    fifo, median = map(json.loads, said.out.splitlines())
    assert {"atoms", "deadline", "scaling", "delay", "seed", "best", "steps"} <= fifo.keys()
    assert median["policy"] == "Median"
    assert median["trials"] > fifo["trials"], "poor trials made room"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def on_capacity(self, view): return None", "Mine: on_capacity returned None, not a list of decisions"),
        ("def on_capacity(self, view): return Start(1)", "returned Start(atoms=1, reason='', tag=None), not a list"),
        ("def on_capacity(self, view): return ['go']", "returned 'go', which is no decision, as Start(1, 'why') is"),
        ("def on_capacity(self, view): return [Start(0)]", "atoms must be a whole number, 1 or more"),
        ("def on_capacity(self, view): yield 1 / 0", "mine.py:4: on_capacity failed: ZeroDivisionError"),
        ("def on_capacity(self): return []", "on_capacity failed: TypeError: Mine.on_capacity() takes 1 positional"),
        ("def on_report(self, view, trial): return [Stop(77)]", "trial 77 does not exist; so far: trials 0 to 3"),
        ("def on_report(self, view, trial): return [Stop(trial)]", "name a trial by its trial.id"),
        ("def problems(self, rules, atoms): yield 1 / 0", "mine.py:4: problems failed: ZeroDivisionError"),
        ("def __init__(self): pass", "Mine: __init__(options) failed: TypeError: Mine.__init__() takes 1 positional"),
        ("def __init__(self, options): 1 / 0", "mine.py:4: __init__(options) failed: ZeroDivisionError"),
        ("options_type = dict", "options_type of {name} is not a dataclass; derive it from gpusched.policies.Options"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_with_what_to_do(tmp_path: Path, body: str, message: str) -> None:
    head = "from gpusched.policies import Policy, Start, Stop\n\nclass Mine(Policy):\n"
    report = "    def on_report(self, view, trial): return []\n"
    capacity = "    def on_capacity(self, view): return [Start()] if view.can_draw else []\n"
    methods = [m for m in (report, capacity) if m.split("(")[0].split()[1] not in body]
    (tmp_path / "mine.py").write_text(head + f"    {body}\n" + "".join(methods))
    name = f"{tmp_path}/mine.py:Mine"

    def search() -> None:
        hand = Hand(name, atoms=4)
        list(hand.policy.problems(hand.rules, 4))
        hand.report(0, 0.5)

    with pytest.raises(InputError) as caught:
        search()
    assert message.format(name=name) in str(caught.value)


def test_an_entry_point_of_a_package_is_a_policy(install: Install) -> None:
    install("policies", "median = extra:Median", EXAMPLE)
    assert policies.all_names() == (*policies.names(), "median")
    assert issubclass(policies.policy_type("median"), Policy)
    install("policies", "gone = no_such_module:X", "")
    with pytest.raises(InputError, match=r"entry point gone .* ModuleNotFoundError"):
        policies.policy_type("gone")
