"""``gpusched run`` before its search starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpusched.cli.run import may_go_on
from gpusched.daemon.start import make_experiment, start_daemon
from gpusched.driver.clock import Beginning
from gpusched.errors import InputError
from gpusched.recipe.load import load_recipe

RECIPE = "script: train.py\nmetric: m\ndeadline: 1m\nspace: {lr: {uniform: [0, 1]}}\n"


@pytest.mark.parametrize(
    ("ending", "time_left_s", "max_trials", "told"),
    [
        ("deadline", 0.0, 4, "can go on: 'gpusched resume {} --deadline +20m'"),
        ("deadline", 0.7, 4, "can go on: 'gpusched resume {} --deadline +20m'"),
        ("nothing left to run", 30.0, 4, "can go on: 'gpusched resume {} --max-trials 8'"),
        ("nothing left to run", 30.0, None, "is over (nothing left to run); this command"),
        ("stopped by the user", 30.0, 4, "can go on: 'gpusched resume {}'"),
        (
            "trial 3 reached the target 0.9",
            0.0,
            4,
            "can go on: 'gpusched resume {} --target none --deadline +20m'",
        ),
    ],
)
def test_the_search_before_can_go_on_by_another_of_the_limits_that_ended_it(
    tmp_path: Path, ending: str, time_left_s: float, max_trials: int | None, told: str
) -> None:
    source = tmp_path / "search.yaml"
    source.write_text(RECIPE + (f"max_trials: {max_trials}\n" if max_trials else ""))
    (tmp_path / "train.py").touch()
    runs = tmp_path / "runs"
    paths = make_experiment(runs, load_recipe(source), Beginning.now(), source)
    paths.journal.touch()
    final = {"ending": ending, "time_left_s": time_left_s, "trial_counts": {"stopped": 4}}
    paths.final_view.write_text(json.dumps(final))
    remark = may_go_on(runs, source)
    assert told.format(paths.root.name) in remark
    assert remark.endswith("this command starts another search")
    paths.resolved.write_text("{")
    assert may_go_on(runs, source).endswith("this command starts another search")


@pytest.mark.parametrize("runs", ["/proc/none", "search.yaml"])
def test_a_folder_that_takes_no_experiment_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("search.yaml").write_text(RECIPE)
    Path("train.py").touch()
    said = rf"^{runs}: an experiment cannot be written here \(.*'--dir' names another folder"
    with pytest.raises(InputError, match=said):
        make_experiment(Path(runs), load_recipe(Path("search.yaml")), Beginning.now())


def test_nothing_goes_on_without_its_script(tmp_path: Path) -> None:
    """Else each trial fails at its next launch, and is over for good."""
    source, script = tmp_path / "search.yaml", tmp_path / "train.py"
    source.write_text(RECIPE)
    script.touch()
    recipe = load_recipe(source)
    paths = make_experiment(tmp_path / "runs", recipe, Beginning.now(), source)
    script.rename(tmp_path / "moved.py")
    with pytest.raises(InputError, match=r"the script .*train\.py is not there any more: put it"):
        start_daemon(paths, resume=True)
    with pytest.raises(InputError, match=r"the script .*train\.py is not there any more: put it"):
        make_experiment(tmp_path / "runs", recipe, Beginning.now())
    paths.resolved.write_text(json.dumps({"script": "simulated:synthetic"}))
    with pytest.raises(
        InputError, match="was simulated has no script: 'gpusched simulate' runs it"
    ):
        start_daemon(paths, resume=True)
    assert not paths.log.exists(), "no daemon was started"
