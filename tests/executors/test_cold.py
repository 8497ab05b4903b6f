"""``launch: cold``: torchrun itself, in a process of its own; slow, so few."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.processes.claim import read_claim
from gpusched.processes.identity import send_signal
from tests.executors.conftest import Lab, MakeLab, wait_for
from tests.executors.contract import the_exit
from tests.executors.test_ranks import play, train_on_loopback
from tests.executors.test_trees import begin


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("cold"), launch="cold")
    yield lab
    lab.clean()


def test_two_ranks_that_yield_listening_on_loopback_alone(lab: Lab) -> None:
    trial, ending = train_on_loopback(lab, 2)
    assert ending.outcome == "finished"
    words = Path(f"{lab.logs(trial)}/shim.log").read_text()
    assert "rendezvous is used" not in words, "ours was registered"


def test_a_script_runs_as_under_torchrun(lab: Lab) -> None:
    trial, ending = play(lab, "inspect_rank", names=["GPUSCHED_RANKS", "GPUSCHED_CODES"])
    assert ending.outcome == "finished"
    seen = wait_for(lab.trial_folder(trial) / "seen-0")
    assert seen["env"]["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    assert (seen["env"]["GPUSCHED_RANKS"], seen["env"]["GPUSCHED_CODES"]) == (None, None)
    assert (seen["cwd"], seen["stdin"], len(seen["cpus"])) == (str(lab.folder), "", 1)
    assert "torch" not in (lab.folder / "warm.log").read_text()
    assert (lab.logs(trial) / "rank-0.out").read_text() == "to stdout\n"


@pytest.mark.slow
def test_an_error_and_its_exit_code(lab: Lab) -> None:
    trial, ending = play(lab, "no_such_scenario")
    assert ending.outcome == "failed"
    head, _, rest = ending.error.partition("\n")
    assert head.startswith("rank 0: KeyError: scenarios.py:")
    assert head.endswith("'no_such_scenario'")
    assert rest.startswith("Traceback")
    assert wait_for(lab.logs(trial) / "exit.json")["codes"] == {"0": 1}


def test_a_killed_torchrun_is_no_fault_of_its_trial(lab: Lab) -> None:
    """Found by the torture: the trial failed, and its story said nothing of a signal."""
    trial = begin(lab, "stubborn")
    wait_for(lab.trial_folder(trial) / "ready-0")
    claim = read_claim(lab.paths.trial(trial).shim(1))
    (torchrun,) = claim.ranks
    assert send_signal(torchrun, signal.SIGKILL)
    ending = the_exit(lab.rig.run(trial), trial)
    assert ending.outcome == "lost"
    assert "torchrun was killed by SIGKILL" in (ending.error or "")
    assert lab.left_of(trial) == []


def test_another_interpreter_finds_gpusched_and_nothing_else_of_ours(
    tmp_path: Path, own_lab: MakeLab
) -> None:
    """A virtual environment without torch: its torchrun cannot start, and its word for it is shown."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    folder = tmp_path / "experiment"
    (folder / ".python").mkdir(parents=True)
    (folder / ".python/gpusched").symlink_to(tmp_path / "gone")  # an installation before a resume
    ending = own_lab(folder, launch="cold", python=str(python)).end_of(1)
    assert ending.outcome == "failed"
    assert ending.error == (
        "torchrun ended with code 1: ModuleNotFoundError: No module named 'torch'"
    )
    probe = "import gpusched, sys; print(gpusched.__file__); import numpy"
    said = subprocess.run(
        [python, "-c", probe],
        env={"PYTHONPATH": str(folder / ".python")},
        capture_output=True,
        text=True,
    )
    assert said.stdout.strip().endswith("gpusched/__init__.py")
    assert "No module named 'numpy'" in said.stderr
