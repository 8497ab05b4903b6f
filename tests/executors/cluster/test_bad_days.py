"""Nodes that die, sleep, or lose their line: what is kept, and what writes no more."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpusched.core.commands import Launch
from gpusched.core.events import CheckpointSaved, Event, QuarantineChanged, Reported, TrialExited
from gpusched.executors.base import LiveTrial
from gpusched.executors.cluster import node
from gpusched.executors.cluster.bootstrap import LocalBootstrap, NodeOffer
from gpusched.folder.reports import ReportLog
from gpusched.processes.claim import incarnations_left, read_claim
from gpusched.processes.identity import mark_of
from gpusched.protocol import Report
from tests.devices.boxed import GPUS, make_gpus
from tests.executors.cluster.bed import TRAIN, Bed, train
from tests.executors.contract import exit_of, report_of, steps_of, the_exit
from tests.rig import by_incarnation, wait_until

SLOW = train(10_000, pause_s=0.02)
ON_A_GPU = """\
import os, pathlib, torch
pathlib.Path(os.environ["GPU_BOX"], os.environ["CUDA_VISIBLE_DEVICES"], str(os.getpid())).touch()
torch.backends.cuda.is_built = lambda: False  # the GPUs are scripted
"""


PATIENT_S = 10.0
"""A machine that runs many tests starts a node's process late."""


@pytest.fixture
def bed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bed]:
    bed = Bed(tmp_path, lost_s=6.0 if "lost" in request.node.name else PATIENT_S)
    yield bed
    bed.close()


def start(bed: Bed, *devices: str) -> list[int]:
    """Launch an endless trial on each of these, and wait for its first report."""
    trials = []
    for device in devices:
        trial = bed.rig.new_trial()
        bed.rig.executor.execute(Launch(trial, 1, (device,), SLOW))
        trials.append(trial)
    for trial in trials:
        if not steps_of(bed.rig.seen, trial):
            bed.rig.watch(lambda event, trial=trial: _of(event, Reported, trial))
    return trials


def _of(event: Event, kind: type, trial: int) -> bool:
    return isinstance(event, kind) and getattr(event, "trial", None) == trial


def train_to(bed: Bed, trial: int, step: int) -> None:
    """Until this step of a trial has been reported; others may be further by then."""
    if step not in steps_of(bed.rig.seen, trial):
        bed.rig.watch(report_of(trial, step))


def reports_of(bed: Bed, trial: int) -> list[tuple[int, int]]:
    return [(e.incarnation, e.step) for e in bed.rig.seen if _of(e, Reported, trial)]


def test_a_node_s_process_is_killed_and_its_trials_are_adopted(bed: Bed) -> None:
    here, there = start(bed, "node0/cpu:0", "node1/cpu:0")
    bed.signal(bed.node_pids("node0"), signal.SIGKILL)
    last = reports_of(bed, here)[-1][1]
    train_to(bed, here, last + 20)
    steps = [step for _, step in reports_of(bed, here)]
    assert steps == list(range(1, len(steps) + 1)), "each once"
    train_to(bed, here, len(steps) + 5)
    assert not [event for event in bed.rig.seen if isinstance(event, TrialExited)]
    for trial in (here, there):
        assert the_exit(bed.rig.stop(trial), trial).outcome == "killed"


def test_a_node_whose_gpus_all_train_keeps_them_when_its_line_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node took its own trials for strangers, could use no GPU, and was given up with all of them."""
    for variable, value in make_gpus(tmp_path).items():
        monkeypatch.setenv(variable, value)
    way = LocalBootstrap([NodeOffer("node0", "cuda")], tmp_path)
    monkeypatch.setattr("tests.executors.cluster.bed.bootstrap_for", lambda *_: way)
    ends = TrialExited | QuarantineChanged
    with closing(Bed(tmp_path)) as bed:
        (tmp_path / "train.py").write_text(ON_A_GPU + TRAIN)
        for trial in start(bed, *(f"node0/{gpu}" for gpu in GPUS)):
            bed.cut("node0")
            goal = report_of(trial, reports_of(bed, trial)[-1][1] + 20)
            bed.rig.watch(lambda event, goal=goal: isinstance(event, ends) or goal(event))
            assert not [event for event in bed.rig.seen if isinstance(event, ends)], bed.said


def test_a_node_that_can_start_no_trial_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its torch was broken: trials were begun there again and again, to the end of the search."""
    (other := tmp_path / "other").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(other))
    with closing(Bed(tmp_path, "local:1x2", PATIENT_S)) as bed:
        (trial,) = start(bed, "node0/cpu:0")
        (other / "torch.py").write_text("raise ImportError('of another machine')")
        bed.signal(by_incarnation(bed.home("node0"))[-1, -1], signal.SIGKILL)
        assert the_exit(bed.rig.run(trial), trial).error == "node node0 was lost"
        (told,) = [said for said in bed.said if "is given up: it has not joined" in said]
        assert "trials cannot be started: ImportError: of another machine" in told


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("MemoryError('no room')", "out of the machine's memory on 1 atom"),
        ("OSError(28, 'No space left on device')", "a disk is to blame, not the trial"),
    ],
)
def test_the_machine_is_to_blame_on_a_node_as_on_one_machine(
    bed: Bed, error: str, told: str
) -> None:
    """A node knew of no report that it had told, so the trial had failed; the daemon made no room on a full disk."""
    (bed.paths.root / "train.py").write_text(TRAIN.replace('ValueError("wrong")', error))
    trial = bed.rig.begin(steps=10, fails_at=5)
    ending = the_exit(bed.rig.run(trial), trial)
    assert ending.outcome == "lost"
    assert ending.error.startswith(told)
    assert ("the disk refused" in bed.said) == ("disk" in told)


def test_a_node_that_slept_and_was_lost_writes_nothing_after_its_fence(bed: Bed) -> None:
    """The trial continues elsewhere, who is on the other node never notices, and its devices are used again."""
    trial, there = start(bed, "node0/cpu:0", "node1/cpu:1")
    asleep = bed.all_pids("node0")
    bed.signal(asleep, signal.SIGSTOP)
    events = bed.rig.watch(exit_of(trial))
    kinds = [type(e) for e in events if not isinstance(e, Reported | CheckpointSaved)]
    assert kinds[-3:] == [QuarantineChanged, QuarantineChanged, TrialExited], "devices first"
    bed.rig.executor.execute(Launch(trial, 2, ("node1/cpu:0",), SLOW))
    bed.rig.watch(lambda event: _of(event, Reported, trial) and event.incarnation == 2)
    lines = len(bed.lines(trial))
    bed.signal(asleep, signal.SIGCONT)
    back: set[str] = set()
    bed.rig.watch(
        lambda event: (
            isinstance(event, QuarantineChanged)
            and (back.add(event.device) or back == {"node0/cpu:0", "node0/cpu:1"})
        )
    )
    start(bed, "node0/cpu:0")
    last = reports_of(bed, trial)[-1][1]
    train_to(bed, trial, last + 20)
    assert {number for number, _ in bed.lines(trial)[lines:]} == {2}
    numbers = [number for number, _ in bed.lines(trial)]
    assert numbers == sorted(numbers), "no line of the first launch after one of the second"
    assert not read_claim(bed.paths.trial(trial).shim(1)).is_alive
    reports = [event for event in bed.rig.seen if _of(event, Reported, trial)]
    assert [event.seq for event in reports] == list(range(1, len(reports) + 1))
    assert {number for number, _ in reports_of(bed, there)} == {1}


def test_a_daemon_is_killed_and_another_adopts_the_trials_of_all_nodes(bed: Bed) -> None:
    here, there = start(bed, "node0/cpu:0", "node1/cpu:1")
    live = [
        LiveTrial(trial, 1, (device,), reports_of(bed, trial)[-1][1])
        for trial, device in ((here, "node0/cpu:0"), (there, "node1/cpu:1"))
    ]
    gone = replace(live[0], trial=bed.rig.new_trial(), incarnation=3)
    bed.crash()
    logs = {bed.paths.trial(one.trial).reports: one.last_seq for one in live}
    wait_until(lambda: all(log.read_bytes().count(b"\n") > seq + 5 for log, seq in logs.items()))
    events = bed.resume(*live, gone)
    for event in events:
        if isinstance(event, Reported):
            bed.executor.acknowledge(event)
    bed.rig.seen += events
    assert the_exit(events, gone.trial).unbegun
    for one in live:
        known = one.last_seq
        train_to(bed, one.trial, known + 30)
        steps = steps_of(bed.rig.seen, one.trial)
        assert steps == list(range(known + 1, len(steps) + known + 1)), "none is missed"


def test_a_daemon_that_takes_over_late_reads_all_reports(bed: Bed) -> None:
    """More than one frame, and more than the backlog of a client, can hold."""
    (trial,) = start(bed, "node0/cpu:0")
    live = LiveTrial(trial, 1, ("node0/cpu:0",), reports_of(bed, trial)[-1][1])
    bed.crash()
    for number in (
        signal.SIGSTOP,
        signal.SIGKILL,
    ):  # all at once: else a shim may tell of its rank's death
        bed.signal(bed.all_pids("node0"), number)
    log = ReportLog(bed.paths.trial(trial).reports, 1)
    metrics = {"accuracy": 0.5, **{f"another metric {number}": 0.5 for number in range(400)}}
    while log.last_seq < 1000:
        log.append(Report(1, 0, log.last_seq + 1, metrics=metrics))
    assert bed.paths.trial(trial).reports.stat().st_size > 8 << 20
    events = bed.resume(live)
    seqs = [event.seq for event in events if _of(event, Reported, trial)]
    assert seqs == list(range(live.last_seq + 1, 1001))
    assert bed.node("node0").state == "up", bed.said
    assert the_exit(events, trial).outcome == "lost"


def test_the_end_gives_everything_back(bed: Bed) -> None:
    """No process, no folder on a node's own disk; nodes that had no line just then hear of the end as well."""
    start(bed, "node0/cpu:0")
    bed.rig.stop(0)
    homes = [bed.home(node) for node in ("node0", "node1")]
    bed.cut("node1")
    bed.executor.close()
    wait_until(lambda: not bed.node_pids())
    wait_until(lambda: not any(home.exists() for home in homes))
    assert not [pid for node in ("node0", "node1") for pid in bed.all_pids(node)]


@pytest.mark.parametrize("lives_s", [0.3, 30.0])
def test_a_node_leaves_no_folder_behind_a_shim_that_is_about_to_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives_s: float
) -> None:
    """A shim on a slow disk was still syncing its last file when the search ended; a trial that lives on has it all."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "own"))
    monkeypatch.setattr(node, "LEAVING_S", 30.0 if lives_s < 1 else 0.2)
    member = node.NodeProcess(tmp_path / "shared", "node0", "cpu:1")
    marked = {"GPUSCHED_MARK": mark_of(member.paths.root, 0, 1)}
    with subprocess.Popen(["sleep", str(lives_s)], env={**os.environ, **marked}) as shim:
        # The kernel closes the pipe that Popen waits for before it has put the environment in its place.
        wait_until(lambda: shim.poll() == 0 or incarnations_left(member.paths.root), "its mark")
        member.is_over = True
        member.run()
        assert member.paths.root.exists() == (lives_s > 1)
        assert (shim.poll() is None) == (lives_s > 1)
        shim.kill()
