"""Repairs by a daemon that takes over, beyond the replay: rare cases, each left by a death at a bad instant.

* The experiment was over in the journal, but the last commands were not carried out: ``complete``.
* Devices have gone bad, or are gone, while no daemon looked: ``lost_devices``.
* After a salvage the journal knows less than happened. Process trees that it knows nothing of are ended, folders of
  trials that it knows nothing of are put aside, and numbers of incarnations are not used again: ``forget_the_unknown``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpusched.core.events import DeviceQuarantined
from gpusched.core.state import State
from gpusched.devices.base import Device
from gpusched.driver.assemble import Assembled
from gpusched.errors import GpuschedError
from gpusched.executors.best import keep_best
from gpusched.folder.files import sync, write_durably
from gpusched.folder.paths import ExperimentPaths
from gpusched.processes.claim import Hunt

#: How long process trees that nobody knows may take to die of SIGKILL.
HUNT_S = 30.0


def complete(assembled: Assembled) -> None:
    """Do what the last daemon of a finished experiment had decided and not done. Twice is as good as once."""
    state, paths = assembled.experiment.state, assembled.paths
    best = state.best
    if best is not None:
        keep_best(
            paths,
            best.trial,
            best.step,
            metric=assembled.recipe.metric,
            value=best.metric,
            atoms=best.atoms,
        )
    if not paths.final_view.is_file():
        write_durably(paths.final_view, json.dumps(assembled.view()).encode())


def lost_devices(
    state: State, inventory: Sequence[Device], now: float
) -> Iterator[DeviceQuarantined]:
    """List the devices that the journal takes for good and that cannot be used now, or are gone."""
    there = {device.id: device for device in inventory}
    for name, slot in state.devices.slots.items():
        if slot.state.value == "quarantined":
            continue
        device = there.get(name)
        if device is None:
            why = "it was not there any more when the daemon came back"
            yield DeviceQuarantined(at=now, device=name, reason=why)
        elif not device.usable:
            yield DeviceQuarantined(at=now, device=name, reason=device.why_not, passing=True)


@dataclass(slots=True)
class Unknown:
    """Things found on disk that a salvaged journal knows nothing of."""

    #: By trial, the highest number of an incarnation that was launched.
    launched: dict[int, int] = field(default_factory=dict)
    #: Trials whose folders were put aside.
    aside: list[int] = field(default_factory=list)
    killed: int = 0


def forget_the_unknown(state: State, paths: ExperimentPaths) -> Unknown:
    """End processes that the journal does not know, so that devices it takes for free are. Raises GpuschedError."""
    found = Unknown()
    for number in paths.trial_numbers:
        trial, trial_paths = state.trials.get(number), paths.trial(number)
        known = trial.incarnation if trial is not None else 0
        newer = [n for n in trial_paths.incarnations if n > known]
        for incarnation in newer:
            found.killed += _end(Hunt(paths, number, incarnation), number)
        if trial is None:
            _put_aside(trial_paths.root)
            found.aside.append(number)
        elif newer:
            found.launched[number] = newer[-1]
    return found


def _end(hunt: Hunt, trial: int) -> int:
    """Kill an incarnation until nothing of it is left; return the number of its processes."""
    killed, left = hunt.end(HUNT_S)
    if left:
        raise GpuschedError(
            f"{left} of trial {trial} cannot be killed; the journal knows nothing of them, so the "
            "experiment cannot go on beside them"
        )
    return killed


def _put_aside(folder: Path) -> None:
    """Rename the folder of an unknown trial: its number will be another trial's, whose files these are not."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.salvaged-{number}")).exists():
        number += 1
    folder.rename(aside)
    sync(folder.parent)
