"""Loading a recipe: what comes out, overrides, and the resolved form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpusched.errors import DamagedState, InputError
from gpusched.recipe.load import load_recipe
from gpusched.recipe.recipe import Recipe
from tests.recipe.conftest import GOOD, Load, Problems
from tests.rig import run_python

EVERYTHING = """\
name: all-of-it
script: train.py
args: [--data, ~/d, a~/b, 3, 0.5, --more, --a b]
cwd: .
deadline: 1h30m
metric: val/loss
mode: min
space:
  opt: {choice: [sgd, adam]}
  lr: {loguniform: [1e-4, 1]}
  momentum: {uniform: [0, 0.99], q: 0.01, when: {opt: sgd}}
  words: {const: ["no", "1e-4", "~", "0o7", "é😀\\u2028"]}
policy: {name: asha, r: 2, R: 64, eta: 3}
devices: cpu:4
max_atoms: 4
sizes: [1, 2, 4]
batch: global
lr_scaling: sqrt
scaling: {1: 1, 2: 1.9, 4: 3.5}
launch: warm
preload: [json.decoder, train]
env: {TOKENS: 5, NAME: "yes"}
seed: 7
max_trials: 40
max_failures: 2
hang_limit: 90
target: 0.98
"""


def test_a_trial_on_a_share_of_a_gpu_has_one_atom(load: Load) -> None:
    assert load("atoms_per_gpu: 4\n").max_atoms == 1


def test_the_least_recipe_has_every_default(load: Load, folder: Path) -> None:
    recipe = load()
    assert recipe == Recipe(
        name="digits",
        script=folder / "train.py",
        cwd=folder,
        deadline_s=600.0,
        metric="accuracy",
        space={"lr": {"loguniform": [1e-4, 1]}},
        policy_options=recipe.policy_options,
    )
    assert recipe.policy_options["R"] is None


def test_every_key_is_read(load: Load) -> None:
    recipe = load(whole=EVERYTHING)
    assert recipe.args == ("--data", f"{Path.home()}/d", "a~/b", "3", "0.5", "--more", "--a b")
    assert recipe.deadline_s == 5400.0
    assert recipe.policy_options == {"r": 2, "R": 64, "eta": 3.0}
    assert recipe.scaling == {1: 1.0, 2: 1.9, 4: 3.5}
    assert recipe.lr_power == 0.5
    assert recipe.env == {"TOKENS": "5", "NAME": "yes"}
    assert recipe.hang_limit_s == 90.0


@pytest.mark.parametrize("text", [GOOD, EVERYTHING], ids=["least", "everything"])
def test_the_resolved_recipe_loads_back_as_an_equal_one(
    text: str, load: Load, tmp_path_factory: pytest.TempPathFactory
) -> None:
    recipe = load(whole=text)
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "resolved.json"
    elsewhere.write_text(json.dumps(recipe.resolved(), ensure_ascii=False, indent=1))
    assert load_recipe(elsewhere) == recipe
    through_json = json.loads(json.dumps(recipe.resolved()))
    assert Recipe.from_resolved(through_json) == recipe


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.pop("seed"),
        lambda data: data.update(policy=3),
        lambda data: data.update(new_key=1),
        lambda data: data.update(scaling={"x": 1}),
        lambda data: data.update(script=5),
    ],
)
def test_a_damaged_resolved_recipe_is_said_to_be(damage: object, load: Load) -> None:
    data = load().resolved()
    assert callable(damage)
    damage(data)
    with pytest.raises(DamagedState, match="damaged or of another version"):
        Recipe.from_resolved(data)


def test_worker_settings_are_the_contract(load: Load) -> None:
    assert load(whole=EVERYTHING).worker_settings(8) == {
        "metric": "val/loss",
        "seed": 7,
        "batch": "global",
        "lr_power": 0.5,
        "max_steps": 64,
        "is_resized": False,  # asha resizes no trial
        "passed": [],
    }
    for key, is_resized in (("seed=1", True), ("policy=fifo", False), ("sizes=[4]", False)):
        assert load("", key).worker_settings(8)["is_resized"] == is_resized


# ------------------------------------------------------------ overrides


def test_overrides_are_yaml_values(load: Load) -> None:
    recipe = load("", "policy.R=27", "space.lr=0.5", "sizes=[1, 2]", "lr_scaling=sqrt", "mode=min")
    assert (recipe.policy_name, recipe.policy_options["R"]) == ("hypersched", 27)
    assert recipe.space == {"lr": 0.5}
    assert (recipe.sizes, recipe.lr_power, recipe.mode) == ((1, 2), 0.5, "min")


def test_an_override_reaches_into_a_shorthand_and_may_mend_a_key(load: Load) -> None:
    recipe = load("policy: asha\nseed: x\n", "policy.R=27", "seed=3")
    assert (recipe.policy_name, recipe.policy_options["R"], recipe.seed) == ("asha", 27, 3)


def test_problems_of_overrides_name_the_override(problems: Problems) -> None:
    wrong = ("deadlin=5", "policy.eta=1", "space.lr.loguniform=[0, 1]", "seed", "a..b=1")
    assert problems("", *wrong, "script.x=1", "sizes=[1") == [
        "--set seed: write --set key=value, as in --set policy.R=27",
        "--set a..b=1: write --set key=value, as in --set policy.R=27",
        "--set script.x=1: script.x: script is not a map of keys; set script as a whole",
        "--set sizes=[1: sizes: not YAML: expected ',' or ']', but got '<stream end>'",
        "--set deadlin=5: deadlin: unknown key; did you mean deadline?",
        "--set space.lr.loguniform=[0, 1]: space.lr: the bounds of loguniform must be above 0, not 0",
        "--set policy.eta=1: policy.eta: must be more than 1, not 1; 4 is the usual choice",
    ]
    (switch,) = problems("", "space.amp=no")
    assert switch.startswith("--set space.amp=no: space.amp: no is text; write true or false")


def test_problems_of_flags_name_the_flag(problems: Problems) -> None:
    assert problems("", deadline="0", devices="gpu", policy="ahsa", seed="x") == [
        "--deadline 0: must be more than 0 seconds, not 0",
        "--devices gpu: 'gpu' is not auto, cpu, cpu:4, cuda, cuda:0,2 or GPU UUIDs; did you mean cuda?",
        "--seed x: should be a whole number, not 'x'",
        "--policy ahsa: unknown policy 'ahsa'; did you mean asha?",
    ]


def test_another_policy_keeps_the_options_it_knows(load: Load) -> None:
    recipe = load("policy: {name: hypersched, r: 3, R: 27, cooldown: 1}\n", policy="asha")
    assert recipe.policy_name == "asha"
    assert (recipe.policy_options["r"], recipe.policy_options["R"]) == (3, 27)


# ------------------------------------------------------------ files


def test_a_script_and_a_folder_are_relative_to_the_recipe(
    load: Load, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "data").mkdir()
    monkeypatch.chdir("/")
    recipe = load("cwd: data\n")
    assert (recipe.script, recipe.cwd) == (folder / "train.py", folder / "data")
    monkeypatch.chdir(folder)
    assert load_recipe(Path("digits.yaml")).script == folder / "train.py"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digit.yaml", "no such file; did you mean"),
        ("digits", "digits.yaml?"),
        ("train.py", "is a Python script; give the recipe"),
        ("nowhere/x.yaml", "no such file"),
        (".", "is a folder; name the recipe inside it"),
        ("latin1.yaml", ":2: not UTF-8 text (byte 6)"),
        ("n\0l.yaml", "cannot be read"),
        ("x" * 300, "cannot be read: File name too long"),
        ("train.py/x.yaml", "cannot be read: Not a directory"),
    ],
)
def test_what_is_no_recipe_file(name: str, message: str, load: Load, folder: Path) -> None:
    load()
    (folder / "latin1.yaml").write_bytes(b"# ok\na\xe9: 1\n")
    with pytest.raises(InputError) as caught:
        load_recipe(folder / name)
    assert message in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_the_first_key(folder: Path, load: Load) -> None:
    assert load(whole="\ufeff" + GOOD).metric == "accuracy"


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("my recipe", "my-recipe"),
        ("_x_", "x"),
        ("réc ö", "r-c"),
        ("字", "search"),
        ("a" * 80, "a" * 64),
    ],
)
def test_the_name_is_made_from_the_file_name(stem: str, name: str, folder: Path) -> None:
    file = folder / f"{stem}.yaml"
    file.write_text(GOOD)
    assert load_recipe(file).name == name


# ------------------------------------------------------------ what it costs


def test_the_resolved_recipe_needs_no_yaml(load: Load) -> None:
    program = (
        "import json, sys\n"
        "from gpusched.recipe.recipe import Recipe\n"
        "recipe = Recipe.from_resolved(json.load(sys.stdin))\n"
        "recipe.configurations().sample(0)\n"
        "heavy = {'ruamel', 'ruamel.yaml', 'torch', 'numpy'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    done = run_python("-c", program, told=json.dumps(load().resolved()))
    assert done.returncode == 0, done.stderr
