"""Atoms: what the core calls a device, made of one GPU, one MIG slice, a bundle of GPUs, or a share of one.

An atom's id is the UUIDs of its GPUs joined by ``+``; a share's is its GPU's with ``#`` and a number. Ids name the same
silicon after a restart, whatever else has changed, so an experiment that goes on finds its devices by its journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpusched.devices.base import Device, DeviceRemark, Quarantined, Readmitted
from gpusched.devices.gpu import Gpu
from gpusched.devices.machine import Machine, choose, listing, visible
from gpusched.devices.release import Verdict
from gpusched.devices.unit import Doing, Unit
from gpusched.errors import DeviceError

JOINT, SHARE = "+", "#"
PAUSE_MIN_S, PAUSE_MAX_S = 0.02, 0.25
"""Between two looks at a release: at first often, then more slowly."""


class Release(NamedTuple):
    """A release that is waited for. (The driver frees memory after a process is gone: reliability.md, F19.)"""

    since: float
    until: float

    def pause_s(self, now: float) -> float:
        """Return the time until the next look, which is not after the limit."""
        pause_s = min(PAUSE_MAX_S, PAUSE_MIN_S + (now - self.since) / 4)
        return min(pause_s, max(0.001, self.until - now))


@dataclass(slots=True, eq=False)
class Atom:
    """``missing``: UUIDs of GPUs that belong to it and are not there any more."""

    id: str
    label: str
    units: tuple[Unit, ...]
    island: int = 0
    missing: tuple[str, ...] = ()
    release: Release | None = None
    #: When a release began that was not complete within its limit.
    late_since: float | None = None
    #: Until when an answer is due to somebody who asks for it back.
    answer_due: float | None = None
    strangers: tuple[str, ...] = ()

    @property
    def is_held(self) -> bool:
        """A trial has the atom."""
        return any(unit.doing is Doing.HELD for unit in self.units)

    @property
    def is_sliced(self) -> bool:
        return any(unit.gpu.parent for unit in self.units)

    @property
    def order(self) -> int:
        """A sort key: free atoms first, then draining ones, then those in use."""
        order = (Doing.FREE, Doing.DRAINING, Doing.HELD)
        return max((order.index(unit.doing) for unit in self.units), default=0)

    def as_device(self) -> Device:
        """Describe the atom as the core's device."""
        why = self.why_not()
        is_one = len(self.units) == 1 and not self.missing
        alone = "a MIG slice, and a process sees one slice only" if self.is_sliced else ""
        if any(unit.neighbours for unit in self.units):
            alone = "a share of a GPU, and nccl takes one rank a GPU"
        return Device(
            self.id,
            self.label,
            self.island,
            usable=not why,
            why_not=f"{self.label}: {why}" if why and is_one else why,
            alone=alone,
        )

    def why_not(self) -> str:
        """Say why the atom may not be used; empty if it may."""
        reasons = [f"{uuid} is not there any more" for uuid in self.missing]
        for unit in self.units:
            if unit.out is not None:
                several = len(self.units) > 1
                reasons.append(
                    f"{unit.gpu.label}: {unit.out.reason}" if several else unit.out.reason
                )
        return "; ".join(reasons)

    def fault(self) -> Quarantined | None:
        """Return what went bad since the last call: broken, lost or, while it should be free, in use by others."""
        reasons = [f"{unit.gpu.label}: {why}" for unit in self.units if (why := unit.news())]
        if not reasons:
            return None
        out = [unit.out for unit in self.units if unit.out is not None]
        is_passing = not self.missing and all(one.passing for one in out)
        return Quarantined(self.id, "; ".join(reasons), is_passing)

    def why_not_released(self) -> str:
        """Say why a release is not complete; empty if it is."""
        return self.why_not() if self.missing else _why([u.released() for u in self.units])

    def end_release(self, now: float) -> str | Quarantined | None:
        """End the release that is waited for: the atom's id if it is complete, or that it is late; None: wait on."""
        release = self.release
        if release is None:
            return None
        why = self.why_not_released()
        if why and now < release.until:
            return None
        self.release = None
        if not why:
            return self.id
        self.late_since = release.since
        for unit in self.units:
            unit.is_given_up = True
        why = f"not released after {now - release.since:.0f} s: {why}"
        return Quarantined(self.id, why, passing=True)

    def why_not_readmitted(self) -> str:
        """Say why an atom that was asked back stays out of use, or as it is; empty if it need not."""
        if busy := self.why_not_asked_for():
            return busy
        leased = [unit.out.reason for unit in self.units if unit.out and unit.out.leased]
        if leased or self.missing:
            return leased[0] if leased else self.why_not()
        return _why([unit.can_readmit() for unit in self.units])

    def why_not_asked_for(self) -> str:
        """Say why nobody may ask for the atom: a trial has it, or its release is not confirmed; empty if one may."""
        if any(unit.out for unit in self.units):
            return ""
        return (
            "a trial is using it" if self.is_held else "it is being released" * bool(self.release)
        )

    def back_in_use(self, now: float) -> Iterator[DeviceRemark | Readmitted]:
        """Make an atom that can recover, or be readmitted, free again, and tell of that."""
        for unit in self.units:
            unit.back_in_use()
        if self.late_since is not None:
            took_s = now - self.late_since
            yield DeviceRemark(
                f"{self.label} was released {took_s:.0f} s after its trial had ended"
            )
        self.late_since = self.answer_due = None
        self.release = None  # or the next trial would be mistaken for an unreleased one
        yield Readmitted(self.id)

    def can_recover(self) -> bool:
        """Tell whether the atom is out of use, or late, for a reason that has passed."""
        is_out = self.late_since is not None or any(unit.out for unit in self.units)
        if not is_out or self.missing:
            return False
        clean = [unit.can_recover() for unit in self.units]  # all: they count clean seconds
        return all(clean)


def _why(verdicts: Sequence[Verdict]) -> str:
    return "; ".join(verdict.why for verdict in verdicts if not verdict.clean)


def make_atom(
    machine: Machine, gpus: Sequence[Gpu], missing: Sequence[str] = (), name: str = ""
) -> Atom:
    """Make an atom of these GPUs; ``missing``: UUIDs of its GPUs that are gone."""
    places = JOINT.join(gpu.label.removeprefix("GPU ") for gpu in gpus)
    return Atom(
        id=name or JOINT.join(gpu.uuid for gpu in gpus),
        label=f"GPU {places or '?'}",
        units=tuple(make_unit(machine, gpu) for gpu in gpus),
        island=machine.islands.get(gpus[0].board, 0) if gpus else 0,
        missing=tuple(missing),
    )


def make_unit(machine: Machine, gpu: Gpu, share: int = 0) -> Unit:
    return Unit(gpu, machine.watches[gpu.board], machine.baselines.read(gpu), share)


def make_shares(machine: Machine, gpu: Gpu, count: int) -> list[Atom]:
    """Make a GPU several atoms."""
    units = [make_unit(machine, gpu, share) for share in range(count)]
    for unit in units:
        unit.neighbours = tuple(other for other in units if other is not unit)
    island = machine.islands.get(gpu.board, 0)
    return [
        Atom(f"{gpu.uuid}{SHARE}{n}", f"{gpu.label} {SHARE}{n}", (unit,), island)
        for n, unit in enumerate(units, 1)
    ]


def find_atoms(
    machine: Machine,
    spec: str,
    known: Sequence[str] | None,
    gpus_per_atom: int,
    atoms_per_gpu: int,
    gpu_ids: str,
    environ: Mapping[str, str],
) -> list[Atom]:
    """Return the atoms that ``spec`` names, or those of an experiment that goes on (``known``). Raises DeviceError."""
    if known is not None:
        atoms = known_atoms(machine, known)
    else:
        atoms, notes = chosen_atoms(machine, spec, gpus_per_atom, atoms_per_gpu, environ)
        machine.notes += notes
    check_mig(atoms, gpus_per_atom, gpu_ids)
    return atoms


def chosen_atoms(
    machine: Machine,
    spec: str,
    gpus_per_atom: int,
    atoms_per_gpu: int,
    environ: Mapping[str, str],
) -> tuple[list[Atom], list[str]]:
    """Return the atoms that a recipe's ``devices:`` names, and remarks on that choice. Raises DeviceError."""
    variable = environ.get("CUDA_VISIBLE_DEVICES")
    pool, notes = visible(machine.entries, variable)
    if not pool:
        raise DeviceError(
            f"CUDA_VISIBLE_DEVICES={variable} leaves no GPU. The GPUs are:\n{listing(machine.entries)}"
        )
    gpus = choose(pool, spec, variable)
    cards = sorted({gpu.name for gpu in gpus})
    if len(cards) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        notes.append(
            f"the cards differ ({', '.join(cards)}): in a shell CUDA numbers them by speed unless "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID is set; gpusched and its trials number them as nvidia-smi does"
        )
    if not gpus:
        raise DeviceError(
            f"devices: {spec}: MIG is on and has no slices. Create some (`sudo nvidia-smi mig -cgi 9,9 -C`; "
            f"`nvidia-smi mig -lgip` lists the kinds), or switch MIG off (`sudo nvidia-smi -mig 0`)"
        )
    near = sorted(
        gpus,
        key=lambda g: (
            machine.islands.get(g.board, 0),
            -1 if g.numa_node is None else g.numa_node,
            g.pci_bus_id.lower(),
            g.index,
            g.slice or 0,
        ),
    )
    if atoms_per_gpu > 1:
        return [atom for gpu in near for atom in make_shares(machine, gpu, atoms_per_gpu)], notes
    bundles, left = bundle(near, machine.islands, gpus_per_atom)
    if not bundles:
        raise DeviceError(
            f"gpus_per_atom: {gpus_per_atom}: devices: {spec} names only {len(gpus)}:\n{listing(pool)}"
        )
    if left:
        names = ", ".join(gpu.label for gpu in left)
        notes.append(
            f"{names} left over: an atom is {gpus_per_atom} GPUs, and {len(gpus)} are named"
        )
    return [make_atom(machine, gpus) for gpus in bundles], notes


def known_atoms(machine: Machine, ids: Sequence[str]) -> list[Atom]:
    """Return the atoms of an experiment that goes on, in the journal's order, with the GPUs that are left of each."""
    units = {unit.uuid: unit for entry in machine.entries for unit in entry.units}
    counts = Counter(name.partition(SHARE)[0] for name in ids)
    shares = {
        atom.id: atom
        for uuid, count in counts.items()
        if count > 1 and uuid in units
        for atom in make_shares(machine, units[uuid], count)
    }
    atoms = []
    for name in ids:
        if name in shares:
            atoms.append(shares[name])
            continue
        uuids = name.partition(SHARE)[0].split(JOINT)
        here = [units[uuid] for uuid in uuids if uuid in units]
        missing = [uuid for uuid in uuids if uuid not in units]
        atoms.append(make_atom(machine, here, missing, name))
    return atoms


def check_mig(atoms: Sequence[Atom], gpus_per_atom: int, gpu_ids: str) -> None:
    """Raise DeviceError for what cannot be done with MIG slices."""
    slices = [unit.gpu.label for atom in atoms for unit in atom.units if unit.gpu.parent]
    if not slices:
        return
    if any(unit.neighbours for atom in atoms for unit in atom.units):
        raise DeviceError(f"atoms_per_gpu: {slices[0]} is a share of a GPU already; set it to 1")
    if gpus_per_atom > 1:
        raise DeviceError(
            f"gpus_per_atom: {gpus_per_atom}: {slices[0]} is a MIG slice, and a process sees one slice only. "
            f"Set gpus_per_atom: 1, or switch MIG off (`sudo nvidia-smi -mig 0`)"
        )
    if gpu_ids == "index":
        raise DeviceError(
            f"gpu_ids: index: {slices[0]} is a MIG slice, which has no index. Set gpu_ids: uuid"
        )


def bundle(
    gpus: Sequence[Gpu], island: Mapping[str, int], size: int
) -> tuple[list[tuple[Gpu, ...]], list[Gpu]]:
    """Make atoms of ``size`` GPUs: within an island and a NUMA node, then within an island, then from what is left.

    Also returns the GPUs that no atom needs. The order of ``gpus`` is kept within each step.
    """
    left = list(gpus)
    atoms: list[tuple[Gpu, ...]] = []
    keys: tuple[Callable[[Gpu], object], ...] = (
        lambda g: (island.get(g.board), g.numa_node),
        lambda g: island.get(g.board),
        lambda g: None,
    )
    for key in keys:
        for value in dict.fromkeys(map(key, left)):
            group = [gpu for gpu in left if key(gpu) == value]
            while len(group) >= size:
                atoms.append(tuple(group[:size]))
                left = [gpu for gpu in left if gpu not in group[:size]]
                group = group[size:]
    return atoms, left
