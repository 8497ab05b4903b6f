"""``gpusched validate --rehearse``: a right script passes, and each plain mistake is told with the line to change.

All scripts are rehearsed in one experiment, as configurations of one that runs the file that it is given.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpusched.cli.rehearse import _own_folder, _read, _scripted, _senseless, _sizes, _unseen
from gpusched.doctor.findings import RehearsedLaunch, RehearsedTrial
from gpusched.errors import DeviceError
from gpusched.executors.local import launching
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.timeline import IncarnationTimeline, ReportedStep, TrialTimeline
from gpusched.protocol import Report
from tests.executors.conftest import recipe
from tests.rig import run_python

RIGHT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gpusched

trial = gpusched.init()
hp = trial.hparams
torch.manual_seed(0)
x = torch.rand(64, 4)
y = x.sum(1, keepdim=True)
model = trial.wrap(nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda epoch: 0.9**epoch)
trial.scale_lr(opt)
loader = trial.loader(TensorDataset(x, y), batch_size=8)
trial.track(model=model, opt=opt, schedule=schedule)
for epoch in range(trial.step, 50):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
    schedule.step()
    with torch.no_grad():
        trial.report(loss=nn.functional.mse_loss(model(x), y))
"""
LOADER = "trial.loader(TensorDataset(x, y), batch_size=8)"


ROUNDING = """\
        for each in model.parameters():
            each.grad += 1e-7 * begun * torch.arange(each.numel()).sin().view_as(each)
        opt.step()
"""
RIGHTS: dict[str, list[tuple[str, str]]] = {
    "right": [],
    "draws a batch before": [
        ("for epoch in", "width = next(iter(loader))[0].shape[1]\nfor epoch in")
    ],
    "evaluates first": [
        (
            "for epoch in range(trial.step, 50):",
            "for epoch in trial.steps(50):\n    trial.report(loss=nn.functional.mse_loss(model(x), y))",
        ),
        (
            "    with torch.no_grad():\n        trial.report(loss=nn.functional.mse_loss(model(x), y))\n",
            "",
        ),
    ],
    # As kernels that a compiler has chosen anew do. The gradient of a bias before a batch norm is rounding alone.
    "rounds in another way": [
        ("nn.Linear(4, 1)", "nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))"),
        (
            "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
            "torch.optim.Adam(model.parameters(), lr=0.1)",
        ),
        ("for epoch in", "begun = trial.step > 0\nfor epoch in"),
        ("nn.functional.mse_loss(model(a), b)", "nn.MSELoss()(model(a) * (1 + 1e-5 * begun), b)"),
        ("        opt.step()\n", ROUNDING),
    ],
}
#: One script for each way in which a rehearsal finds something out; what it makes of other rows is asserted without
#: processes (``tests/doctor``).
MISTAKES: dict[str, tuple[list[tuple[str, str]], str]] = {
    "no report": (
        [("        trial.report(loss=nn.functional.mse_loss(model(x), y))", "        pass")],
        "it ended without a report",
    ),
    "model not tracked": (
        [("model=model, ", "")],
        "Track all that training changes: trial.track(model=model, opt=opt, sched=sched)",
    ),
    "every rank draws every sample": (
        [(LOADER, "DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)")],
        "on 2 atoms each rank draws every sample, so an epoch has 128 instead of 64",
    ),
    "loss of a share": (
        [
            (
                "nn.functional.mse_loss(model(x), y))",
                "nn.functional.mse_loss(model(x), y) / trial.world_size)",
            )
        ],
        "on 2 atoms the same model reports loss",
    ),
    "a variable that is lost": (
        [
            ("for epoch in range", "mean = 0.0\nfor epoch in range"),
            (
                "trial.report(loss=nn.functional.mse_loss(model(x), y))",
                "mean += nn.functional.mse_loss(model(x), y); trial.report(loss=mean)",
            ),
        ],
        "keep it in trial.state",
    ),
}


RUNNER = """\
import runpy
import torch
import gpusched
runpy.run_path(gpusched.init().hparams.file)
"""


def rehearse(folder: Path, names: list[str]) -> dict[str, Any]:
    """Return what the rehearsal of each script has shown, by its name; and the exit code."""
    (folder / "play.py").write_text(RUNNER)
    for name in names:
        script = RIGHT
        for right, wrong in RIGHTS[name] if name in RIGHTS else MISTAKES[name][0]:
            assert right in script
            script = script.replace(right, wrong)
        (folder / f"{name}.py").write_text(script)
    recipe: dict[str, Any] = {"script": "play.py", "metric": "loss", "mode": "min"}
    recipe |= {"deadline": "1m", "devices": "cpu:1", "policy": {"name": "asha", "R": 27}}
    recipe |= {"space": {"file": {"choice": [f"{name}.py" for name in names]}}, "sampler": "grid"}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    words = ["validate", "recipe.yaml", "--rehearse", "--limit=250s", "--json"]
    words.append(f"--configurations={len(names)}")
    done = run_python("-m", "gpusched", *words, folder=folder)
    assert done.stdout, done.stderr
    rehearsals = json.loads(done.stdout)["rehearsals"]
    found = {each["hparams"]["file"].removesuffix(".py"): each for each in rehearsals}
    return {**found, "exit code": done.returncode}


def assert_told(mistake: str, seen: dict[str, Any]) -> None:
    found, says = seen[mistake]["findings"], MISTAKES[mistake][1]
    assert any(says in finding["text"] for finding in found if finding["error"]), found
    assert (seen[mistake]["ok"], seen["exit code"]) == (False, 2)


def assert_right(name: str, seen: dict[str, Any]) -> None:
    right = seen[name]
    assert (right["ok"], right["sizes"]) == (True, [1, 1, 2, 1]), right["findings"]
    if name == "right":  # of the others a part is told
        assert right["findings"] == []
        assert {one["outcome"] for one in right["compared"]} == {"same"}
    reports = right["reports"]
    assert [(told["step"], told["atoms"]) for told in reports] == [
        *zip(range(1, 9), [1, 1, 1, 1, 2, 2, 1, 1], strict=True)
    ]
    others = ("draws a batch before", "rounds in another way")  # than without a pause
    until = 2 if name in others else 4
    assert all(told["metrics"] == told["alone"]["metrics"] for told in reports[:until])
    assert 0.0590489 < reports[5]["rate"] < 0.132


def test_right_scripts_pass_and_mistakes_are_told(tmp_path: Path) -> None:
    """In one test, so that one process makes the search."""
    seen = rehearse(tmp_path, [*RIGHTS, *MISTAKES])
    for name in RIGHTS:
        assert_right(name, seen)
    for name in MISTAKES:
        assert_told(name, seen)


def test_a_rehearsal_leaves_another_one_in_the_same_folder_alone(tmp_path: Path) -> None:
    """A rehearsal's folder was removed while it had no daemon: before its search began, and while it was judged."""
    with subprocess.Popen(["sleep", "100"]) as other:
        for pid in (other.pid, "experiment-20260101"):
            (tmp_path / str(pid) / "search").mkdir(parents=True)
            (tmp_path / str(pid) / "search" / "recipe.yaml").touch()
        mine = _own_folder(tmp_path)
        assert mine.name == str(os.getpid())
        assert [path.name for path in tmp_path.iterdir()] == [str(other.pid)]
        other.kill()
    _own_folder(tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("reported", "error"), [(True, None), (False, "killed")])
def test_a_launch_that_the_end_of_a_rehearsal_kills_has_not_failed(
    tmp_path: Path, reported: bool, error: str | None
) -> None:
    paths = ExperimentPaths(tmp_path)
    logs = paths.trial(0).logs(1)
    logs.mkdir(parents=True)
    (logs / "seen-0.jsonl").write_text('{"step": 1}\n' * reported + '{"st')
    steps = [ReportedStep(1.0, Report(1, 1, 1, 1.0), 0.5)] * reported
    launch = IncarnationTimeline(1, ("d0",), 0.0, steps, outcome="killed")
    trial = TrialTimeline(0, {}, [launch])
    assert _read(paths, trial).launches[0].error == error


def test_a_rehearsal_leaves_nothing_in_other_tools(tmp_path: Path) -> None:
    logged = recipe(tmp_path, space={"lr": 1}, log_to={"wandb": {}})
    assert _scripted(logged, (1, 1), 60.0, 1).log_to == {}


@pytest.mark.parametrize(
    ("had", "error", "is_told"), [(2, None, True), (8, None, False), (2, "ValueError: bad", False)]
)
def test_a_trial_left_alone_for_which_there_was_no_time_is_told(
    had: int, error: str | None, is_told: bool
) -> None:
    """A script that failed is not said to have had too little time."""
    moved, alone = (
        RehearsedTrial(
            [RehearsedLaunch(1, [[{"step": n + 1}] for n in range(most)], why)] * launches
        )
        for most, why, launches in ((8, None, 4), (had, error, 1))
    )
    found = _unseen(moved, alone, (1, 1, 2, 1), 35.0, has_ended=False)
    assert ["left alone had step 2" in finding.text for finding in found] == [True] * is_told


def test_a_trial_that_ends_before_the_rehearsal_does_is_not_told_of_the_time() -> None:
    moved = RehearsedTrial(
        [RehearsedLaunch(1, [[{"step": 4}]]), RehearsedLaunch(1, [[{"step": 5}]])]
    )
    (found,) = _unseen(moved, moved, (1, 1, 2, 1), 600.0, has_ended=True)
    assert "ended at step 5, in launch 2 of 4" in found.text
    assert "--limit" not in found.text
    assert not found.is_error


@pytest.mark.parametrize(("loss", "is_told"), [(None, True), (math.inf, True), (0.5, False)])
def test_a_metric_that_is_never_a_number_is_wrong(loss: float | None, is_told: bool) -> None:
    metrics = {"loss": loss} if loss is not None else {}
    trial = RehearsedTrial([RehearsedLaunch(1, [[{"step": 1, "metrics": metrics}]])])
    assert [finding.is_error for finding in _senseless("loss", trial)] == [True] * is_told


@pytest.mark.parametrize(
    ("sizes", "usable", "goes", "told"),
    [
        ((), [True, True], (1, 2), ""),
        ((), [True], (1, None), ""),
        ((), [True, False, False], (1, None), "1 of 3 GPUs can be used now, so a trial on 2 was"),
        ((2, 4), [True, True, True], (2, None), ""),
    ],
)
def test_gpus_that_others_hold_are_not_the_scripts_fault(
    sizes: tuple[int, ...],
    usable: list[bool],
    goes: tuple[int, int | None],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _has_gpus(monkeypatch, usable)
    recipe: Any = SimpleNamespace(devices="auto", sizes=sizes, max_atoms=None)
    devices, small, large, few = _sizes(recipe)
    assert (devices, (small, large)) == ("auto", goes)
    assert [finding.text[: len(told)] for finding in few] == ([told] if told else [])


def test_a_rehearsal_for_which_no_gpu_is_free_does_not_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _has_gpus(monkeypatch, [True, False, False, False])
    recipe: Any = SimpleNamespace(devices="auto", sizes=(2, 4), max_atoms=None)
    with pytest.raises(DeviceError, match="a trial needs 2, but 1 of 4 GPUs can be used now"):
        _sizes(recipe)


def _has_gpus(monkeypatch: pytest.MonkeyPatch, usable: list[bool]) -> None:
    devices = [SimpleNamespace(usable=one) for one in usable]
    found = SimpleNamespace(kind="cuda", open=lambda host: devices, close=lambda: None)
    monkeypatch.setattr(launching, "devices_of", lambda *_: found)
