"""Deaths and survivors: the daemon, the warm server, a shim; and what a new daemon finds out."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpusched.core.commands import Launch, Save
from gpusched.core.events import CheckpointSaved, Event, Reported, TrialExited
from gpusched.devices.choose import CpuDevices
from gpusched.errors import InputError
from gpusched.executors.base import LiveTrial
from gpusched.executors.local import executor as local
from gpusched.processes.claim import read_claim
from gpusched.processes.identity import is_alive, start_time
from tests.executors.conftest import Lab, MakeLab, Rig, wait_for
from tests.executors.contract import report_of, reports_of, saved_steps, steps_of, the_exit
from tests.executors.test_trees import begin
from tests.rig import marked, wait_until


class Slots(CpuDevices):
    """CPU slots that note which a trial has: none of these may be readmitted."""

    def __init__(self) -> None:
        super().__init__(4)
        self.in_use: set[str] = set()

    def take(self, devices: Sequence[str]) -> None:
        self.in_use.update(devices)

    def drain(self, devices: Sequence[str]) -> None:
        self.in_use.difference_update(devices)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Not the shared one: its server is killed here."""
    lab = Lab(tmp_path_factory.mktemp("survival"), Slots())
    yield lab
    lab.clean()


def alive(lab: Lab, trial: int, last_seq: int = 0) -> LiveTrial:
    return LiveTrial(trial, 1, lab.rig.devices[:1], last_seq)


def reports(events: list[Event]) -> list[tuple[int, int]]:
    return [(event.seq, event.step) for event in events if isinstance(event, Reported)]


def test_a_killed_server_is_replaced_and_its_trials_live_on(lab: Lab, rig: Rig) -> None:
    trial = rig.begin(steps=10_000, pause_s=0.02)
    rig.watch(report_of(trial, 2))
    server = lab.executor.server._process.pid
    rig.launch(other := rig.new_trial(), steps=2)
    os.kill(server, signal.SIGKILL)  # with a launch in its ear, which is asked for again
    events = rig.run(other)
    assert steps_of(events, other) == [1, 2]
    assert the_exit(events, other).outcome == "finished"
    assert steps_of(events, trial), "it went on meanwhile"
    assert lab.executor.server._process.pid != server
    assert "the warm server ended (see warm.log); starting another" in lab.said
    rig.stop(trial)


def test_a_resumed_daemon_adopts_what_runs(lab: Lab, rig: Rig) -> None:
    trial = rig.begin(steps=10_000, pause_s=0.02)
    rig.watch(report_of(trial, 3))
    pids = lab.left_of(trial)
    lab.close()
    told = lab.paths.trial(trial).reports
    wait_until(lambda: told.read_bytes().count(b"\n") > 6)  # it trains on alone
    lab.devices = slots = Slots()
    # As GPUs on which a process of ours was seen.
    slots.in_use.update(("cpu:0", "cpu:1"))
    lab.executor = lab.build()
    events = list(lab.executor.reconcile([alive(lab, trial, last_seq=3)]))
    assert slots.in_use == {"cpu:0"}
    assert reports(events), "what it reported while nobody listened"
    assert [seq for seq, _ in reports(events)] == list(range(4, 4 + len(events)))
    events += lab.rig.watch(
        lambda event: isinstance(event, Reported) and event.seq > len(events) + 20
    )
    assert [seq for seq, _ in reports(events)] == list(range(4, 4 + len(reports(events))))
    assert lab.left_of(trial) == pids
    assert the_exit(lab.rig.stop(trial), trial).outcome == "killed"
    assert not slots.in_use


def test_a_resumed_daemon_learns_how_trials_ended(lab: Lab, rig: Rig) -> None:
    finished, failed = rig.new_trial(), rig.new_trial()
    rig.launch(finished, steps=40, pause_s=0.005)
    rig.launch(failed, steps=40, fails_at=30, pause_s=0.005)
    rig.watch(report_of(failed, 2))
    lab.close()
    for trial in (finished, failed):
        wait_for(lab.logs(trial) / "exit.json")
    lab.executor = lab.build()
    events = list(lab.executor.reconcile([alive(lab, finished), alive(lab, failed, last_seq=2)]))
    assert steps_of(events, finished) == list(range(1, 41))
    assert steps_of(events, failed) == list(range(3, 30))
    assert the_exit(events, finished).outcome == "finished"
    ending = the_exit(events, failed)
    assert ending.outcome == "failed"
    assert "ValueError: wrong on rank 0" in (ending.error or "")
    assert isinstance(events[-1], TrialExited)


@pytest.mark.parametrize("known", [0, 1, 2])
def test_a_resumed_daemon_learns_of_newer_checkpoints(lab: Lab, rig: Rig, known: int) -> None:
    """Of each: the best model may be in an older one."""
    trial = rig.begin(steps=10_000, pause_s=0.02)
    saved: list[int] = []
    while len(saved) < 2:
        events = rig.watch(lambda event: isinstance(event, Reported), hold=True)
        lab.executor.execute(Save(trial, 1))
        lab.executor.acknowledge(reports_of(events, trial)[-1])
        saved += saved_steps(rig.watch(lambda event: isinstance(event, CheckpointSaved)), trial)
    lab.close()
    lab.executor = lab.build()
    live = replace(alive(lab, trial, last_seq=1), saved_step=[0, *saved][known])
    assert saved_steps(lab.executor.reconcile([live]), trial) == saved[known:]
    assert the_exit(lab.rig.stop(trial), trial).outcome == "killed"


@pytest.mark.parametrize(
    ("is_of_this_boot", "why"), [(True, "its shim died"), (False, "the machine was restarted")]
)
def test_a_resumed_daemon_finds_a_tree_without_a_shim(
    lab: Lab, is_of_this_boot: bool, why: str
) -> None:
    trial = begin(lab, "orphans", count=4, stay=True)
    wait_for(lab.trial_folder(trial) / "ready")
    shim, server = lab.paths.trial(trial).shim(1), lab.executor.server._process.pid
    claim = read_claim(shim)
    lab.close()
    for pid in (server, claim.shim.pid):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: start_time(claim.shim.pid) is None)
    assert lab.left_of(trial), "nobody is there to end them"
    if not is_of_this_boot:
        shim.write_text(shim.read_text().replace(claim.boot_id, "of another boot"))
    lab.executor = lab.build()
    events = list(lab.executor.reconcile([alive(lab, trial)])) or lab.rig.run(trial)
    ending = the_exit(events, trial)
    assert ending.outcome == "lost"
    assert ending.error.startswith(why)
    wait_until(lambda: lab.left_of(trial) == [])


def test_a_launch_that_never_happened_is_lost_and_cannot_happen_later(lab: Lab, rig: Rig) -> None:
    trial = rig.new_trial()
    (logs := lab.logs(trial)).mkdir(parents=True)
    (ending,) = lab.executor.reconcile([alive(lab, trial)])
    assert (ending.outcome, ending.error) == ("lost", "it had not begun when the daemon ended")
    rig.launch(trial, scenario="finish")  # a late shim of that launch
    ending = the_exit(rig.run(trial), trial)
    assert (ending.outcome, ending.error) == ("lost", "its shim died (exit code 75)")
    assert not (logs / "rank-0.out").exists()


def test_a_trial_whose_shim_died_after_the_last_word_has_yielded(lab: Lab) -> None:
    trial = begin(lab, "linger_after_last_word")
    wait_for(lab.logs(trial) / "last-word.json")
    claim = read_claim(lab.paths.trial(trial).shim(1))
    os.kill(claim.shim.pid, signal.SIGKILL)
    ending = the_exit(lab.rig.run(trial), trial)
    assert (ending.outcome, ending.saved_step) == ("yielded", 4)
    assert lab.left_of(trial) == []


def test_hello_of_an_old_incarnation_is_refused(rig: Rig) -> None:
    frame = {"kind": "report", "i": 2, "n": 1, "k": 1, "m": {"accuracy": 1.0}}
    trial = rig.begin(incarnation=2, scenario="speak_nonsense", frames=[frame])  # it says 1
    assert reports(rig.run(trial)) == []


def test_servers_end_with_their_last_shim_when_the_daemon_has_gone(lab: Lab) -> None:
    trial = begin(lab, "graceful")
    wait_for(lab.trial_folder(trial) / "ready-0")
    claim = read_claim(lab.paths.trial(trial).shim(1))
    lab.close()
    assert is_alive(claim.shim)
    os.kill(
        claim.shim.pid, signal.SIGTERM
    )  # a shim that is told to go ends its trial in good order
    wait_for(lab.trial_folder(trial) / "tidied")
    wait_until(lambda: marked(lab.folder) == [])
    lab.executor = lab.build()


@pytest.mark.parametrize(
    ("module", "text", "said"),
    [
        ("torch", "raise ImportError('this torch is broken')", "this torch is broken"),
        (
            "taints",
            "import torch\ntorch.cuda._initialized = True\n",
            "trials cannot be started: importing taints of `preload` initialises CUDA",
        ),
    ],
)
def test_a_server_that_cannot_serve_says_why(
    tmp_path: Path, own_lab: MakeLab, module: str, text: str, said: str
) -> None:
    (tmp_path / f"{module}.py").write_text(text)
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    lab = own_lab(preload=("taints",), env={"PYTHONPATH": path})
    with pytest.raises(InputError, match=said):
        wait_until(lambda: lab.executor.poll(lab.executor.now() + 1) is None)
    # A node of a cluster tells no more than that.
    assert module != "torch" or any(said in text for text in lab.said)


def test_a_module_that_cannot_be_preloaded_is_said_and_does_no_harm(
    tmp_path: Path, own_lab: MakeLab
) -> None:
    (tmp_path / "script.py").write_text(
        "import sys, pathlib, os, bad\n"
        "pathlib.Path(os.environ['GPUSCHED_DIR'], 'seen').write_text('1' if 'wanted' in sys.modules else '0')\n"
    )
    (tmp_path / "wanted.py").write_text("")
    (tmp_path / "bad.py").write_text("import os\nif 'GPUSCHED_TRIAL' not in os.environ: 1 / 0")
    lab = own_lab(preload=("bad", "wanted"), script=tmp_path / "script.py")
    assert lab.end_of(1).outcome == "finished"
    said = [text for text in lab.said if "CPU slots share" not in text]
    assert said == ["preload: bad is not preloaded: ZeroDivisionError: division by zero"]
    assert (tmp_path / "seen").read_text() == "1"


def test_a_launch_that_waits_for_imports_is_given_up_at_once(
    tmp_path: Path, own_lab: MakeLab
) -> None:
    """A deadline does not wait for the ``preload``."""
    (tmp_path / "script.py").write_text(
        "import os, pathlib\npathlib.Path('ran-' + os.environ['GPUSCHED_INCARNATION']).touch()\n"
    )
    importing, may_end = tmp_path / "importing", tmp_path / "may-end"
    (tmp_path / "endless.py").write_text(
        f"import pathlib, time\npathlib.Path({str(importing)!r}).touch()\n"
        f"while not pathlib.Path({str(may_end)!r}).exists():\n    time.sleep(0.01)\n"
    )
    lab = own_lab(preload=("endless",), script=tmp_path / "script.py")
    executor, rig = lab.executor, lab.rig
    executor.execute(Launch(0, 1, rig.devices[:1], {}))
    wait_until(lambda: not executor.poll(executor.now()) and importing.exists())
    assert the_exit(rig.stop(0), 0).outcome == "killed"
    executor.execute(Launch(0, 2, rig.devices[:1], {}))
    may_end.touch()
    assert the_exit(rig.run(0), 0).outcome == "finished"
    assert [path.name for path in tmp_path.glob("ran-*")] == ["ran-2"]


@pytest.mark.parametrize("who", ["shim", "ranks"])
def test_a_limit_of_processes_is_waited_for_and_no_fault_of_a_trial(
    tmp_path: Path, own_lab: MakeLab, who: str
) -> None:
    """The four relaunches of a trial were used up within a second."""
    limit = tmp_path / "limit"
    limit.touch()
    (tmp_path / "script.py").touch()
    (tmp_path / "limited.py").write_text(
        f"import os, pathlib\nserver, fork, limit = os.getpid(), os.fork, pathlib.Path({str(limit)!r})\n"
        f"def limited():\n    if limit.exists() and (os.getpid() == server) is {who == 'shim'}:\n"
        "        raise BlockingIOError(11, 'Resource temporarily unavailable')\n    return fork()\n"
        "os.fork = limited\n"
    )
    lab = own_lab(preload=("limited",), script=tmp_path / "script.py")
    began_at = lab.executor.now()
    ending = lab.end_of(1)
    assert (ending.outcome, ending.unbegun) == ("lost", True)
    assert "limit of processes" in (ending.error or "")
    assert ending.at >= began_at + local.LOST_LAUNCH_S
    limit.unlink()
    assert lab.end_of(2).outcome == "finished"


def test_a_launch_whose_folder_cannot_be_made_is_no_fault_of_its_trial(lab: Lab) -> None:
    """A quota that was used up failed every trial within a second."""
    trial = lab.rig.new_trial()
    lab.paths.trials.mkdir(exist_ok=True)
    lab.trial_folder(trial).touch()
    lab.rig.launch(trial)
    ending = the_exit(lab.rig.run(trial), trial)
    assert (ending.outcome, ending.unbegun) == ("lost", True)
    assert "could not be launched: [Errno 20] Not a directory" in (ending.error or "")


@pytest.mark.parametrize(
    ("text", "told"), [(None, "No such file"), ("def (", "script.py is not Python: line 1")]
)
def test_a_script_that_is_being_edited_fails_no_trial(
    tmp_path: Path, own_lab: MakeLab, text: str | None, told: str
) -> None:
    """Trials that were to continue while an editor, or git, had another file there were over for good."""
    script = tmp_path / "script.py"
    if text is not None:
        script.write_text(text)
    lab = own_lab(script=script)
    ending = lab.end_of(1)
    assert (ending.outcome, ending.unbegun) == ("lost", True)
    assert told in (ending.error or "")
    script.write_text("")
    assert lab.end_of(2).outcome == "finished"
