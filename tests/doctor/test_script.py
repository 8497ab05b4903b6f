"""What a script's text alone shows: each remark with its line, and none for scripts that are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusched.doctor.script import remarks

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
LOOP = """\
import gpusched
trial = gpusched.init()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
trial.scale_lr(opt)
trial.track(model=model, opt=opt)
for epoch in trial.steps():
    loss.backward()
    trial.report(loss=loss)
"""
AS_TAUGHT = (
    "trial.scale_lr(opt)\ntrial.track(model=model, opt=opt)\nfor epoch in trial.steps():",
    "for epoch in trial.steps(60, model=model, opt=opt):",
)


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        (
            "    trial.report(",
            "    if trial.rank == 0: trial.report(",
            "train.py:8: trial.report(...) under",
        ),
        (
            "    trial.report(",
            "    if not rank: trial.report(",
            "train.py:8: trial.report(...) under",
        ),
        (
            "    trial.report(",
            "    if accelerator.is_main_process: trial.report(",
            "hangs until rank 0 gives up",
        ),
        ("gpusched", "ray", "train.py does not mention gpusched"),
        ("trial.scale_lr(opt)\n", "", "does not call trial.scale_lr(opt)"),
        (AS_TAUGHT[0], AS_TAUGHT[1], "does not call trial.scale_lr(opt)"),
    ],
)
def test_a_mistake_is_remarked_with_its_line(
    right: str, wrong: str, says: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOP.replace(right, wrong))
    (found,) = remarks(script, scales=True)
    assert says in found


@pytest.mark.parametrize(
    ("change", "scales"),
    [
        (("", ""), True),
        (("trial.scale_lr(opt)\n", ""), False),
        (("trial.scale_lr(opt)\n", "batch = trial.local_batch(256)\n"), True),
        (
            (
                "    trial.report(loss=loss)\n",
                "    if trial.rank == 0: trial.report(1)\n    else: trial.report(1)\n",
            ),
            True,
        ),
        (("loss.backward()", "this is no Python"), True),
    ],
)
def test_a_right_script_has_no_remark(
    change: tuple[str, str], scales: bool, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOP.replace(*change))
    assert list(remarks(script, scales=scales)) == []


@pytest.mark.parametrize(
    "recipe",
    sorted(path.with_suffix(".py") for path in RECIPES.glob("*.yaml")),
    ids=lambda path: path.name,
)
def test_our_own_recipes_have_none(recipe: Path) -> None:
    has_one_size = "sizes: [1]" in recipe.with_suffix(".yaml").read_text()
    assert list(remarks(recipe, scales=not has_one_size)) == []


def test_what_cannot_be_read_has_none(tmp_path: Path) -> None:
    assert list(remarks(tmp_path / "absent.py", scales=True)) == []
