"""All GPUs of the machine and who has them, for ``gpusched gpus``: looked at once, without an experiment or a lease."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpusched.devices import health
from gpusched.devices.atoms import Atom, make_unit
from gpusched.devices.base import Reading
from gpusched.devices.helper import ThisMachine, World
from gpusched.devices.holders import Processes, processes_here
from gpusched.devices.leases import lease_folder, lease_holder, state_home
from gpusched.devices.machine import Machine, find_machine
from gpusched.devices.opening import first_readings
from gpusched.devices.unit import Doing, Unit
from gpusched.errors import DeviceError

READING_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState(Reading):
    """A GPU or MIG slice, for people.

    ``place``: as ``--readmit`` takes it, ``3`` or ``3/1``. ``leased_by``: the experiment that has the lease, in words;
    ``experiment``: that experiment's folder, if known; ``busy``: why no other experiment could use the GPU now.
    """

    index: int
    place: str
    name: str
    numa_node: int | None
    island: int
    leased_by: str
    busy: str
    experiment: str

    def to_json(self) -> dict[str, Any]:
        told = asdict(self)
        del told["history"]
        return {"uuid": told.pop("device"), **told}


def gpu_states(
    environ: Mapping[str, str] | None = None,
    world: World | None = None,
    processes: Processes | None = None,
) -> tuple[list[GpuState], list[str]]:
    """Return every GPU of the machine, and remarks about them. Takes seconds at most; raises DeviceError."""
    world = world or ThisMachine()
    processes = processes or processes_here()
    machine = find_machine(processes, world, state_home(environ))
    try:
        units = [make_unit(machine, unit) for entry in machine.entries for unit in entry.units]
        first_readings(units, world, READING_TIMEOUT_S)
        return [_state(unit, machine, environ) for unit in units], machine.notes
    finally:
        machine.close()


def _state(unit: Unit, machine: Machine, environ: Mapping[str, str] | None) -> GpuState:
    verdict = unit.verdict()
    unit.examine()
    out = unit.out.reason if unit.out else ""
    gpu, lease = unit.gpu, None
    with contextlib.suppress(DeviceError):
        lease = lease_holder(lease_folder(environ), gpu.uuid)
    return GpuState(
        **asdict(read_atom(Atom(gpu.uuid, gpu.label, (unit,)))),
        index=gpu.index,
        place=gpu.label.removeprefix("GPU "),
        name=gpu.name,
        numa_node=gpu.numa_node,
        island=machine.islands.get(gpu.board, 0),
        leased_by=str(lease) if lease else "",
        busy=out or ("" if verdict.clean else verdict.why),
        experiment=lease.experiment if lease else "",
    )


def read_atom(atom: Atom) -> Reading:
    """Read an atom: a bundle shows its mean utilisation, summed memory and power, and its hottest GPU."""
    units = atom.units
    vitals = [unit.watch.vitals for unit in units]
    used = _all(unit.usage.memory_bytes if unit.usage else None for unit in units)
    total = _all(unit.gpu.memory_total_bytes for unit in units)
    whole = not atom.is_sliced  # NVML gives no load of a slice, only its board's
    loads = _all(v.utilisation if v and whole else None for v in vitals)
    heats = _all(v.temperature_c if v else None for v in vitals)
    powers = _all(v.power_w if v else None for v in vitals)
    name = units[0].gpu.name if units else ""
    return Reading(
        device=atom.id,
        label=f"{atom.label} {name}".strip(),
        utilisation=None if not loads else sum(loads) / len(loads),
        memory_used_bytes=None if not used else int(sum(used)),
        memory_total_bytes=None if not total else int(sum(total)),
        temperature_c=None if not heats else max(heats),
        power_w=None if not powers else sum(powers),
        holders=tuple(holder for unit in units for holder in _holders(unit)),
        notes=tuple(_notes(atom)),
        history=_history(units) if whole else (),
    )


def _all(figures: Iterable[float | int | None]) -> list[float]:
    """Return the figures if every one is known, else none of them."""
    listed = list(figures)
    return [f for f in listed if f is not None] if None not in listed else []


def _history(units: Sequence[Unit]) -> tuple[float | None, ...]:
    """Return an atom's mean load, as far back as all of its GPUs were read."""
    histories = [list(unit.watch.loads) for unit in units]
    length = min(map(len, histories), default=0)
    recent = [history[len(history) - length :] for history in histories]
    means = [_all(loads) for loads in zip(*recent, strict=True)]
    return tuple(sum(loads) / len(loads) if loads else None for loads in means)


def _holders(unit: Unit) -> list[str]:
    listed = unit.usage.compute if unit.usage else ()
    return [str(replace(unit.watch.who(p.pid), memory_bytes=p.memory_bytes)) for p in listed]


def _notes(atom: Atom) -> list[str]:
    notes = [why] if (why := atom.why_not()) else []
    for unit in atom.units:
        said = list(health.notes(unit.watch.vitals)) if unit.watch.vitals else []
        if unit.doing is Doing.DRAINING and unit.held_by and unit.out is None:
            said.append(f"not released yet: {unit.held_by}")
        if unit.doing is Doing.HELD:
            said += [f"shared with {holder}" for holder in unit.strangers.values()]
        several = len(atom.units) > 1
        notes += [f"{unit.gpu.label}: {note}" if several else note for note in said]
    return notes
