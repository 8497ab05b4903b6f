"""All GPUs of the machine and who has them, for ``gpusched gpus``: looked at once, without an experiment or a lease."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpusched.devices.atoms import Maker
from gpusched.devices.base import Reading
from gpusched.devices.baseline import BaselineFile
from gpusched.devices.clock import Clock, MachineClock
from gpusched.devices.holders import Processes, in_initial_pid_namespace
from gpusched.devices.leases import LeaseHolder, lease_folder, lease_holder, state_home
from gpusched.devices.machine import Machine, find_machine
from gpusched.devices.reading import read_atom
from gpusched.devices.unit import Unit
from gpusched.errors import DeviceError
from gpusched.processes.identity import boot_id

READING_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU or MIG slice.

    ``place``: as ``--readmit`` takes it, ``3`` or ``3/1``. ``leased_by``: the experiment that has it, in words;
    ``experiment``: its folder, if known; ``busy``: why nobody else could use it now.
    """

    uuid: str
    index: int
    place: str
    name: str
    reading: Reading
    numa_node: int | None
    island: int
    leased_by: str
    busy: str
    experiment: str = ""

    def to_json(self) -> dict[str, Any]:
        reading = self.reading
        return {
            "uuid": self.uuid,
            "index": self.index,
            "place": self.place,
            "name": self.name,
            "label": reading.label,
            "utilisation": reading.utilisation,
            "memory_used_bytes": reading.memory_used_bytes,
            "memory_total_bytes": reading.memory_total_bytes,
            "temperature_c": reading.temperature_c,
            "power_w": reading.power_w,
            "holders": list(reading.holders),
            "notes": list(reading.notes),
            "numa_node": self.numa_node,
            "island": self.island,
            "leased_by": self.leased_by,
            "experiment": self.experiment,
            "busy": self.busy,
        }


def gpu_states(
    environ: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    processes: Processes | None = None,
) -> tuple[list[GpuState], list[str]]:
    """Every GPU of the machine, and what must be said about them. Takes seconds at most; raises DeviceError."""
    clock = clock or MachineClock()
    if processes is None:
        processes = Processes()
        processes.visible = in_initial_pid_namespace()
    machine = find_machine(processes, clock)
    try:
        maker = Maker(machine, clock, BaselineFile(state_home(environ), machine.driver, boot_id()))
        units = [maker.unit(unit) for entry in machine.entries for unit in entry.units]
        _read(units, clock)
        return [_state(unit, machine, maker, environ) for unit in units], machine.notes
    finally:
        machine.close()


def _read(units: list[Unit], clock: Clock) -> None:
    for watch in {id(unit.watch): unit.watch for unit in units}.values():
        watch.begin(tuple(unit.gpu for unit in units if unit.watch is watch))
    deadline = clock.now() + READING_TIMEOUT_S
    for unit in units:
        while unit.watch.lost is None and clock.now() < deadline:
            unit.watch.news.clear()
            if unit.usage is not None and unit.watch.vitals is not None:
                break
            clock.wait(unit.watch.news, deadline - clock.now())


def _state(
    unit: Unit, machine: Machine, maker: Maker, environ: Mapping[str, str] | None
) -> GpuState:
    verdict = unit.verdict()
    unit.examine()
    out = unit.out.reason if unit.out else ""
    lease = _lease(unit.gpu.uuid, environ)
    return GpuState(
        uuid=unit.gpu.uuid,
        index=unit.gpu.index,
        place=unit.gpu.label.removeprefix("GPU "),
        name=unit.gpu.name,
        reading=read_atom(maker.of_unit(unit)),
        numa_node=unit.gpu.numa_node,
        island=machine.islands.get(unit.gpu.board, 0),
        leased_by=str(lease) if lease else "",
        busy=out or ("" if verdict.clean else verdict.why),
        experiment=lease.experiment if lease else "",
    )


def _lease(uuid: str, environ: Mapping[str, str] | None) -> LeaseHolder | None:
    try:
        return lease_holder(lease_folder(environ), uuid)
    except DeviceError:
        return None
