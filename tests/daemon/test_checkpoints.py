"""Checkpoints of an experiment: which may be removed, and which never."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpusched.core.commands import KeepBest
from gpusched.core.decisions import NO_STEP_FITS, Start, Stop
from gpusched.daemon import storage
from gpusched.daemon.storage import Needs, Storage
from gpusched.executors.best import keep_best
from gpusched.folder.files import Room, private_folder
from gpusched.folder.lock import write_fence
from gpusched.folder.paths import HELD, ExperimentPaths
from gpusched.processes.claim import Claim, make_claim
from gpusched.processes.identity import Identity, start_time
from gpusched.protocol import encode
from gpusched.worker.checkpoint import CheckpointStore
from tests.counting import calls_of
from tests.helpers import Script


@pytest.fixture
def paths(tmp_path: Path) -> ExperimentPaths:
    return ExperimentPaths(tmp_path)


def save(paths: ExperimentPaths, trial: int, *steps: int) -> None:
    store = CheckpointStore(paths.trial(trial).checkpoints, keep=len(steps))
    for step in steps:
        store.write(step, {"state.pt": memoryview(bytes(1000))}, {})


def script(*ends: str) -> Script:
    """A trial for each: "paused", "stopped", or "running"; trial 0 has the best metric, at step 1."""
    made = Script(devices=len(ends)).wants(*(Start(1) for _ in ends)).start().drop()
    for trial, end in enumerate(ends):
        made.report(trial, 0.9 - 0.1 * trial).drop().saved(trial, 1).drop()
        if end == "stopped":
            made.asked("stop_trial", trial).drop()
        elif end == "paused":
            made.asked("pause", trial).drop()
        if end != "running":
            made.exited(trial, "yielded", saved=1).drop()
    assert [made.trial(n).state.value for n in range(len(ends))] == list(ends)
    return made


def names(found: list[Path]) -> list[str]:
    return [f"{entry.parents[1].name}/{entry.name}" for entry in found]


def keep(paths: ExperimentPaths) -> None:
    (paths.trial(0).root / "hparams.json").write_text("{}")
    assert keep_best(paths, KeepBest(0, 1, 0.9, 1), "a")


def test_a_paused_trial_keeps_its_newest_two(paths: ExperimentPaths) -> None:
    save(paths, 0, 1)
    keep(paths)
    save(paths, 1, 1, 2, 3, 12)
    (paths.trial(1).checkpoints / "step-00000099").mkdir()
    state = script("stopped", "paused").state
    assert names(storage.unneeded(paths, Needs.of(state))) == [
        "0000/step-00000001",
        *("0001/step-00000001", "0001/step-00000002", "0001/step-00000099"),
    ]
    assert names(storage.unneeded(paths, Needs.of(state), is_low=True)) == [
        "0000/step-00000001",
        *(f"0001/step-000000{step}" for step in ("01", "02", "03", "99")),
    ], "one where the disk is low"


def test_a_trial_that_is_cut_for_want_of_time_keeps_its_checkpoint_until_the_search_is_over(
    paths: ExperimentPaths,
) -> None:
    """A disk that was low took it, and with a later deadline the trial began again."""
    save(paths, 1, 1)
    made = script("running", "running")
    made.decides(Stop(1, NO_STEP_FITS)).report(1, 0.8).drop().exited(1, saved=1).drop()
    assert made.trial(1).is_final
    assert storage.unneeded(paths, Needs.of(made.state), is_low=True) == []
    made.asked("stop").drop().exited(0, saved=1).drop()
    assert made.state.finished
    assert names(storage.unneeded(paths, Needs.of(made.state))) == ["0001/step-00000001"]


def test_the_best_models_checkpoint_stays_until_best_holds_it(paths: ExperimentPaths) -> None:
    save(paths, 0, 1)
    state = script("stopped", "paused").state
    assert storage.unneeded(paths, Needs.of(state)) == []
    keep(paths)
    victims = storage.unneeded(paths, Needs.of(state))
    assert names(victims) == ["0000/step-00000001"]
    assert storage.remove(victims)[0] == 1
    assert (paths.best / "checkpoint" / "state.pt").stat().st_size == 1000
    assert list(paths.trial(0).checkpoints.iterdir()) == []


def test_a_trial_that_lives_without_a_daemon_is_left_alone(paths: ExperimentPaths) -> None:
    save(paths, 0, 1)
    keep(paths)
    logs = private_folder(paths.trial(0).logs(1))
    shim = paths.trial(0).shim(1)
    assert make_claim(shim, Identity(os.getpid(), start_time(os.getpid()) or 0))
    (paths.trial(0).checkpoints / ".staged-00000002").mkdir()
    state = script("stopped").state
    assert storage.unneeded(paths, Needs.of(state)) == []
    (logs / "exit.json").write_text("{}")
    assert len(storage.unneeded(paths, Needs.of(state))) == 2


def test_a_trial_on_another_node_is_left_alone_until_it_is_fenced(paths: ExperimentPaths) -> None:
    """On a shared disk that was low a checkpoint was removed while its node was writing it."""
    save(paths, 0, 1)
    keep(paths)
    trial = paths.trial(0)
    private_folder(trial.logs(1))
    trial.shim(1).write_bytes(encode(Claim(Identity(7, 7), "another machine's boot")))
    write_fence(trial.fence, 0)
    (trial.checkpoints / ".staged-00000002").mkdir()
    needs = Needs.of(script("running").state)
    assert storage.unneeded(paths, needs) == []
    write_fence(trial.fence, 1)
    assert names(storage.unneeded(paths, needs)) == ["0000/.staged-00000002"]


def test_one_that_was_being_replaced_counts(paths: ExperimentPaths) -> None:
    """A crash between the two renames: the worker puts it back, so it is what a resume needs; as is a held copy."""
    save(paths, 1, 5)
    folder = paths.trial(1).checkpoints
    (folder / f"{HELD}00000006").mkdir()
    (folder / "step-00000005").rename(folder / ".replaced-step-00000005")
    state = script("running", "paused").state
    assert storage.unneeded(paths, Needs.of(state)) == []
    found = CheckpointStore(folder).newest()
    assert found.step == 5


def test_a_checkpoint_that_a_quota_refuses_has_others_removed(paths: ExperimentPaths) -> None:
    """``statvfs`` knows of no quota: the checkpoints of trials that are over stayed, and none could be saved."""
    save(paths, 1, 1)
    state = script("running", "stopped").state
    disk = Storage(paths)
    disk._room, disk._beside = lambda _: Room(1 << 40, 1), lambda work: work()
    for kept, is_low in ((1, False), (0, False), (0, True)):
        found = [disk.look(disk.next_at, state) for _ in range(2)]
        assert (paths.trial(1).newest_checkpoint(), found[1] is not None) == (kept, is_low)
        disk.refused()


def test_what_cannot_be_removed_stays_and_the_rest_goes(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(paths, 0, 1, 2)
    folder = paths.trial(0).checkpoints

    def refuse(trash: Path, ignore_errors: bool = False) -> None:
        if trash.name.endswith("1") and not ignore_errors:
            raise PermissionError(1, "no")

    with monkeypatch.context() as disk:
        disk.setattr(storage.shutil, "rmtree", refuse)
        assert storage.remove(sorted(folder.iterdir()))[0] == 1
    assert storage.remove(sorted(folder.iterdir()))[0] == 2, "trash of a crash goes, too"
    assert list(folder.iterdir()) == []


def test_every_moment_of_a_removal_leaves_what_is_needed(paths: ExperimentPaths) -> None:
    """A crash anywhere in it: what is left is found, and still not what a resume needs."""
    save(paths, 1, 1, 2, 3)
    state = script("running", "paused").state
    (victim,) = storage.unneeded(paths, Needs.of(state))
    victim.rename(victim.with_name(f".trash-{victim.name}"))
    (left,) = storage.unneeded(paths, Needs.of(state))
    (left / "manifest.json").unlink()
    storage.remove(storage.unneeded(paths, Needs.of(state)))
    found = CheckpointStore(paths.trial(1).checkpoints).newest()
    assert found.step == 3
    assert json.loads((found.folder / "manifest.json").read_text())["step"] == 3


def test_of_many_trials_the_cost_grows_with_their_number(paths: ExperimentPaths) -> None:
    state = script("stopped").state
    calls = {}
    for number in range(300):
        private_folder(paths.trial(number).checkpoints)
        if number + 1 in (30, 300):
            calls[number + 1] = calls_of(lambda: storage.unneeded(paths, Needs.of(state)))
    assert calls[300] < 12 * calls[30]
