"""Scripts as people have them, ported as ``docs/coming-from.md`` says, and rehearsed: a pause, two ranks, one again.

``scripts/`` has them; a line that the port changes or adds ends with ``# <-`` and is counted in the page's table.
"""

from __future__ import annotations

import io
import json
import re
import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.test_rehearse import RUNNER
from tests.integrations.test_libraries import run

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
PAGE = (ROOT / "docs" / "research" / "scripts.md").read_text()

PORTS: dict[str, tuple[str, list[int], list[int]]] = {
    "ddp.py": ("torch's DDP example, with its snapshot", [1, 2], [1, 1, 2, 1]),
    "gpt.py": ("nanoGPT", [1, 2], [1, 1, 2, 1]),
    "options.py": ("argparse and TensorBoard", [1, 2], [1, 1, 2, 1]),
    "sk.py": ("scikit-learn", [1], [1, 1]),
    "reinforce.py": ("REINFORCE on gymnasium", [1], [1, 1]),
    "lit.py": ("Lightning 2.6", [], []),
    "hf.py": ("transformers 5.23", [], []),
    "accel.py": ("Accelerate 1.15", [], []),
}
"""By file: the page's name for the port, sizes of its recipe, and the way of its rehearsal (others: test_libraries)."""

pytestmark = pytest.mark.integrations


@pytest.fixture(scope="module", params=[[1, 2], [1]], ids=["1 and 2 atoms", "1 atom"])
def rehearsed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The rehearsals of all ports whose recipe has these sizes, in one experiment."""
    folder = tmp_path_factory.mktemp("ports")
    (folder / "play.py").write_text(RUNNER)
    names = [name for name, (_, sizes, _) in PORTS.items() if sizes == request.param]
    if not (find_spec("gymnasium") and find_spec("tensorboard")):
        pytest.skip("gymnasium or tensorboard is not installed here")
    recipe = {
        "script": "play.py",
        "args": ["--lr=${lr}"],
        "cwd": "private",
        "batch": "global",
        "metric": "loss",
        "mode": "min",
        "deadline": "1m",
        "policy": {"name": "asha", "R": 27},
        "devices": "cpu:1",
        "sizes": request.param,
        "space": {"lr": 0.1, "file": {"choice": [str(SCRIPTS / name) for name in names]}},
        "sampler": "grid",
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    words = [
        "validate",
        "recipe.yaml",
        "--rehearse",
        "--limit=100s",
        "--configurations=9",
        "--json",
    ]
    done = run(folder, words)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)["rehearsals"]
    by_name = {Path(one["hparams"]["file"]).name: one for one in found}
    assert by_name.keys() == set(names)
    return by_name


def test_a_port_trains_as_if_left_alone(rehearsed: dict[str, Any]) -> None:
    for name, seen in rehearsed.items():
        assert (name, seen["findings"], seen["sizes"]) == (name, [], PORTS[name][2])
        for told in seen["reports"]:
            if told["atoms"] == 1 and 2 not in [one["atoms"] for one in seen["reports"]]:
                assert told["metrics"] == told["alone"]["metrics"]
    if "ddp.py" in rehearsed:  # the global batch is fixed: two ranks train as one does
        for told in rehearsed["ddp.py"]["reports"]:
            if told["step"] <= 4:  # from the first growth on the parameters are held
                assert told["metrics"] == pytest.approx(told["alone"]["metrics"], rel=1e-4)
            assert told["rate"] == told["alone"]["rate"]


@pytest.mark.parametrize("name", PORTS)
def test_the_page_counts_the_lines_that_a_port_changes(name: str) -> None:
    changed = (SCRIPTS / name).read_text().count("# <-")
    row = re.search(rf"^\| {re.escape(PORTS[name][0])} \| (\d+)", PAGE, re.MULTILINE)
    assert row, f"no row for {PORTS[name][0]}"
    assert int(row[1]) == changed


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of recipes, on the path."""
    monkeypatch.syspath_prepend(str(ROOT / "recipes"))
    return ROOT / "recipes"


def test_a_restored_lander_goes_on_as_if_it_had_not_stopped(recipes: Path) -> None:
    pytest.importorskip("Box2D")
    landers = runpy.run_path(str(recipes / "lunarlander.py"))["Landers"]
    world, later = landers(2, seed=1), landers(2, seed=1)
    actions = torch.randint(0, 4, (400, 2), generator=torch.Generator().manual_seed(0))
    for action in actions[:250]:
        world.step(action)
    saved = io.BytesIO()
    torch.save(world.state_dict(), saved)
    for action in actions[250:]:
        world.step(action)
    saved.seek(0)
    later.load_state_dict(torch.load(saved, weights_only=True))
    for action in actions[250:]:
        later.step(action)
    assert torch.equal(world.seen(), later.seen())
    assert torch.equal(world.recent, later.recent)
    assert world.finished == later.finished > 4
    assert world.recent[:3].max() < 0, "who fires at random crashes"


def test_the_carts_of_our_recipe_move_as_gymnasium_has_them(recipes: Path) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    moved = runpy.run_path(str(recipes / "cartpole.py"))["moved"]
    world = gymnasium.make("CartPole-v1").unwrapped
    compared = 0
    for episode in range(10):
        world.reset(seed=episode)
        state, ended = torch.tensor(world.state).reshape(1, 4), False
        while not ended and compared < 2000:
            upright = float(state[0, 2] + 0.3 * state[0, 3]) > 0
            action = int(upright if episode % 2 else compared * 7 % 3 == 0)
            _, _, ended, *_ = world.step(action)
            state = moved(state, torch.tensor([action]))
            assert state[0].tolist() == pytest.approx(world.state, rel=1e-12, abs=1e-12)
            compared += 1
    assert compared > 500
