"""A script that does not use torch is started without it, until several ranks have to agree."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.core.commands import Launch, Yield
from tests.executors.conftest import Lab, wait_for
from tests.executors.contract import report_of, steps_of, the_exit

PLAIN = """\
import json, os, pathlib, sys, time
import gpusched
trial = gpusched.init()
trial.track()
seen = {"heavy": "".join(["to", "rch"]) in sys.modules, "argv0": sys.argv[0]}
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "GPUSCHED_ATOMS"]
seen["env"] = {name: os.environ.get(name) for name in names}
folder = pathlib.Path(os.environ["GPUSCHED_DIR"]) / f"seen-{trial.hparams.n}-{os.environ['RANK']}"
aside = folder.with_suffix(".tmp")
aside.write_text(json.dumps(seen))
aside.rename(folder)
for step in trial.steps():
    if trial.hparams.what == "raise":
        raise ValueError("no such thing")
    time.sleep(0.01)
    trial.report(score=step)
    if trial.hparams.what == "until 6" and trial.step == 6:
        break
"""


@pytest.fixture
def light(tmp_path: Path) -> Iterator[Lab]:
    (tmp_path / "plain.py").write_text(PLAIN)
    lab = Lab(tmp_path)
    (tmp_path / "worker.json").write_text(json.dumps({"metric": "score", "mode": "max", "seed": 0}))
    lab.recipe = dataclasses.replace(lab.recipe, script=tmp_path / "plain.py", metric="score")
    lab.rebuild()
    yield lab
    lab.clean()


def start(lab: Lab, trial: int, what: str, incarnation: int = 1, atoms: int = 1) -> None:
    hparams = {"what": what, "n": incarnation}
    lab.executor.execute(Launch(trial, incarnation, lab.rig.devices[:atoms], hparams))


def test_one_rank_runs_without_torch_and_several_with_it(light: Lab) -> None:
    start(light, 0, "endless")
    before = light.rig.watch(report_of(0, 3), hold=True)
    light.executor.execute(Yield(0, 1, save=True))
    light.executor.acknowledge(before[-1])
    ending = the_exit(light.rig.run(0), 0)
    assert (ending.outcome, ending.step, ending.saved_step) == ("yielded", 3, 3)
    seen = wait_for(light.folder / "seen-1-0")
    assert not seen["heavy"]
    assert seen["env"] == {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": "gpusched-0-1",
        "GPUSCHED_ATOMS": "1",
    }
    # Two ranks need a process group: the server imports torch for them, and what was saved goes on.
    start(light, 0, "until 6", incarnation=2, atoms=2)
    after = light.rig.run(0)
    assert (the_exit(after, 0).outcome, steps_of(after, 0)) == ("finished", [4, 5, 6])
    assert wait_for(light.folder / "seen-2-1")["heavy"]


def test_a_failure_is_the_scripts_own(light: Lab) -> None:
    start(light, 0, "raise")
    ending = the_exit(light.rig.run(0), 0)
    assert ending.outcome == "failed"
    assert "ValueError: no such thing" in (ending.error or "")


def test_it_can_be_killed(light: Lab) -> None:
    start(light, 0, "endless")
    light.rig.watch(report_of(0, 1))
    assert the_exit(light.rig.stop(0), 0).outcome == "killed"
