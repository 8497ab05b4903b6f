"""Resuming: what a daemon that takes over sets right beyond the replay. (With real processes: ``tests/torture``.)"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpusched.core.commands import Launch
from gpusched.core.decisions import NO_STEP_FITS, Start, Stop
from gpusched.core.events import DaemonResumed
from gpusched.daemon import resuming
from gpusched.devices.base import Device
from gpusched.errors import InputError
from gpusched.folder.paths import ExperimentPaths
from tests.core import stages
from tests.helpers import Script


def test_devices_that_went_bad_while_nobody_looked() -> None:
    script = stages.running()
    there = [Device("d0", "GPU 0", usable=False, why_not="Xid 79")]
    found = resuming.unusable(script.state, there)
    assert found == {"d0": "Xid 79", "d1": resuming.NOT_THERE}
    script.feed(DaemonResumed(at=9.0, epoch=2, unusable=found)).drop()
    slots = script.state.devices.slots
    assert {name: slots[name].reason for name in found} == found
    assert resuming.unusable(script.state, there) == {}, "said once"
    well = [Device(name, name) for name in slots]
    assert resuming.unusable(stages.running().state, well) == {}


def test_nothing_is_begun_on_what_a_resume_finds_gone() -> None:
    """Atoms were given away between one fact and the next."""
    script = Script(devices=3).wants(Start(1)).start().drop()
    script.wants(Start(1), Start(1), Start(1))
    script.feed(DaemonResumed(at=1.0, epoch=2, unusable={"d1": "gone", "d2": "gone"}))
    assert not any(isinstance(command, Launch) for command in script.take())


def test_a_search_without_time_for_a_step_needs_another_deadline(tmp_path: Path) -> None:
    """The search is over a little before its deadline, and would be over again at once."""
    script = stages.running()
    script.decides(Stop(0, NO_STEP_FITS)).report(0, 0.3).drop().exited(0, saved=1).drop()
    script.released("d0").drop()
    assert (script.state.stopping, script.state.time_left_s > 0) == (
        "no step would end before the deadline",
        True,
    )
    recipe = SimpleNamespace(policy_options={})
    assembled: Any = SimpleNamespace(
        experiment=script.experiment, paths=ExperimentPaths(tmp_path), recipe=recipe
    )
    checkpoint = assembled.paths.trial(0).checkpoint(1)
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").touch()
    for wish in ({}, {"max_trials": 9}):
        with pytest.raises(InputError, match=r"no time is left\. 'gpusched resume .* --deadline"):
            resuming.require_reopenable(assembled, wish)
    resuming.require_reopenable(assembled, {"add_s": 60.0})
