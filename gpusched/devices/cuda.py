"""NVIDIA GPUs as devices: leased, watched through NVML, given out by UUID, and taken back only when proven empty.

``CudaDevices`` judges the readings of ``watch.py``; nothing here waits for a driver once ``open`` has returned. A
*device* is an atom: one GPU, one MIG slice, a bundle of ``gpus_per_atom`` GPUs, or one of ``atoms_per_gpu`` shares of a
GPU. Ranks are one a GPU.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from gpusched.devices.atoms import Atom, Release, find_atoms
from gpusched.devices.base import (
    Device,
    DeviceRemark,
    Examined,
    Host,
    Placement,
    Quarantined,
    Reading,
    ReadmitRefused,
    Released,
    Strangers,
)
from gpusched.devices.gpus import read_atom
from gpusched.devices.health import is_unknown
from gpusched.devices.helper import ThisMachine, World
from gpusched.devices.holders import Processes, processes_here
from gpusched.devices.leases import Leases, lease_folder, state_home
from gpusched.devices.machine import find_machine
from gpusched.devices.opening import Opening
from gpusched.devices.placing import place
from gpusched.devices.unit import Doing, Unit
from gpusched.devices.watch import Watch
from gpusched.devices.witness import EXAMINE_PATIENCE_S, CallWitness, Examination
from gpusched.errors import DeviceError

LOOK_EVERY_S = 1.0
ANSWER_S = 0.05
QUICK_ANSWER_S = 0.005
"""Time that a helper has to answer before the answer is looked for; one that comes later is found at the next look."""
LEASE_RETRY_S = 5.0
READMIT_EVERY_S = 0.1
READMIT_PATIENCE_S = 4.0
"""Time a requested device may take to prove that it is clean and well."""


class CudaDevices:
    """The GPUs of one experiment. See ``base.Devices`` for the requests."""

    kind: Literal["cpu", "cuda"] = "cuda"

    def __init__(
        self,
        spec: str = "cuda",
        gpus_per_atom: int = 1,
        gpu_ids: str = "uuid",
        *,
        atoms_per_gpu: int = 1,
        experiment: Path | None = None,
        known: Sequence[str] | None = None,
        environ: Mapping[str, str] = os.environ,
        world: World | None = None,
        processes: Processes | None = None,
        call_witness: CallWitness | None = None,
    ) -> None:
        """Find the GPUs that ``spec`` (``auto``, ``cuda``, ``cuda:0,2``, UUIDs) names within CUDA_VISIBLE_DEVICES.

        ``experiment``: its folder; processes whose GPUSCHED_DIR is that folder are ours. ``known``: the device ids of
        an experiment that goes on, which then replace ``spec``; those that are gone are listed as unusable.
        ``call_witness``: has CUDA tried before the first launch, and when a trial fails at once. May take seconds, and
        at most about two minutes with a driver that hangs. Raises DeviceError.
        """
        self._world = world or ThisMachine()
        self._now = self._world.now
        self._processes = processes or processes_here(experiment)
        self._gpu_ids = gpu_ids
        self._call_witness = call_witness
        self._machine = find_machine(self._processes, self._world, state_home(environ))
        try:
            sizes = (gpus_per_atom, atoms_per_gpu, gpu_ids)
            atoms = find_atoms(self._machine, spec, known, *sizes, environ)
            owner = str(experiment or f"of pid {os.getpid()}")
            self._leases = Leases(lease_folder(environ), owner)
        except DeviceError:
            self._machine.close()
            raise
        self._atoms = {atom.id: atom for atom in atoms}
        self._units = [unit for atom in atoms for unit in atom.units]
        self._units_of_watch: dict[Watch, list[Unit]] = {}
        for unit in self._units:
            self._units_of_watch.setdefault(unit.watch, []).append(unit)
        self._leases_due = self._now() + LEASE_RETRY_S
        self._examinations: list[Examination] = []
        self._said: set[str] = set()
        self._planned_at = math.inf
        self._is_quick = False
        self._closed = False
        self._host: Host

    # ---------------------------------------------------------------- opening

    def open(self, host: Host) -> tuple[Device, ...]:
        """Take the leases, learn the idle baselines, list the devices. Raises DeviceError where none can be used now.

        Waits for a first reading of each GPU (a fraction of a second, 30 s at most) and for the witness.
        """
        self._host = host
        for note in self._machine.notes:
            self._say(note)
        self._take_leases(self._units, patient=True)
        for watch in self._machine.watches.values():
            if watch not in self._units_of_watch:
                watch.close()
        Opening(self._units, self._processes, self._world, self._say, self._call_witness).run()
        self._keep_baselines()
        devices = tuple(atom.as_device() for atom in self._atoms.values())
        if not any(device.usable for device in devices):
            reasons = "\n".join(f"  {device.why_not}" for device in devices)
            raise DeviceError(f"no GPU can be used now:\n{reasons}")
        for unit in self._units:
            if unit.out is not None:
                unit.out.is_told = True  # with the list
        self._plan(LOOK_EVERY_S)
        return devices

    # ---------------------------------------------------------------- leases

    def _take_leases(self, units: Sequence[Unit], *, patient: bool = False) -> None:
        """Take the leases of these; a unit whose lease another experiment has is out of use."""
        for unit in units:
            try:
                holder = self._leases.take(unit.gpu.uuid, patient=patient)
                problem = f"leased by {holder}" if holder else ""
            except DeviceError as error:
                problem = str(error)
            if problem:
                unit.take_out(problem, passing=True, leased=True)
            elif unit.out is not None and unit.out.leased:
                unit.take_out("was leased by another experiment", passing=True)

    # ---------------------------------------------------------------- requests

    def place(self, devices: Sequence[str]) -> Placement:
        """Return environment and cores of each rank, one rank a GPU."""
        return place(self._units_of(devices), self._machine, self._gpu_ids)

    def take(self, devices: Sequence[str]) -> None:
        for unit in self._units_of(devices):
            unit.hold()
        self._tell_strangers()

    def drain(self, devices: Sequence[str]) -> None:
        for unit in self._units_of(devices):
            if unit.doing is Doing.HELD:
                unit.drain()

    def confirm_release(self, devices: Sequence[str], limit_s: float) -> None:
        now = self._now()
        for atom in [self._atom(name) for name in devices]:
            if atom.release is None:
                atom.release = Release(now, now + limit_s)
                for unit in atom.units:
                    unit.drain()
        self._turn()

    def readmit(self, device: str) -> None:
        atom = self._atom(device)
        if busy := atom.why_not_asked_for():
            self._host.emit(ReadmitRefused(device, busy))
        elif atom.answer_due is None:
            atom.answer_due = self._now() + READMIT_PATIENCE_S
            self._hear()  # errors from before the request
            for unit in atom.units:
                unit.ask_back()
            self._turn()

    def let_go(self, device: str) -> None:
        boards = {unit.watch for unit in self._atom(device).units}
        for unit in self._units:
            is_used = unit.doing is Doing.HELD and (unit.out is None or unit.out.passing)
            if unit.watch in boards and is_used:
                raise DeviceError(f"{unit.gpu.label} cannot be let go: a trial is using it")
        for watch in boards:
            watch.let_go("let go on request, so that it can be reset")
        self._turn()

    def keep_out(self, device: str, reason: str) -> None:
        for unit in self._atom(device).units:
            unit.keep_out(reason)

    def examine(self, devices: Sequence[str]) -> None:
        units = tuple(self._units_of(devices))
        until = self._now() + EXAMINE_PATIENCE_S
        self._examinations.append(Examination(tuple(devices), units, until, self._call_witness))
        for unit in units:
            unit.inquire()
        self._turn()

    def readings(self) -> tuple[Reading, ...]:
        return tuple(read_atom(atom) for atom in self._atoms.values())

    def close(self) -> None:
        """Give the leases back and end the helpers."""
        self._closed = True
        for examination in self._examinations:
            examination.close()
        self._machine.close()
        self._keep_baselines()
        self._leases.close()

    # ---------------------------------------------------------------- the loop

    def _plan(self, delay_s: float) -> None:
        """Have a turn in ``delay_s`` seconds at the latest."""
        at = self._now() + delay_s
        if at < self._planned_at:
            self._planned_at = at
            self._host.after(delay_s, partial(self._planned_turn, at))

    def _planned_turn(self, at: float) -> None:
        if at == self._planned_at:  # or an earlier one has been planned since
            self._planned_at = math.inf
            self._turn()

    def _turn(self) -> None:
        """Take the answers of the helpers, tell what follows from them, ask anew, and plan the next turn."""
        if self._closed:
            return
        was_asked = self._hear()
        self._tell_examinations()  # first: a trial that failed is told why, not killed for its GPU
        self._tell_faults()
        self._tell_releases()
        self._tell_recoveries()
        self._tell_readmissions()
        self._tell_strangers()
        for unit in self._units:
            unit.learn()
        self._is_quick = was_asked and not self._is_quick  # else GPUs that take turns asked each
        self._plan(self._pause_s())

    def _pause_s(self) -> float:
        """Return the time until the next turn: short while somebody waits for a helper's answer."""
        atoms = self._atoms.values()
        releases = [atom.release for atom in atoms if atom.release is not None]
        if self._is_quick:
            return QUICK_ANSWER_S if releases else ANSWER_S
        pauses = [LOOK_EVERY_S - ANSWER_S]
        pauses += [release.pause_s(self._now()) for release in releases]
        if any(atom.answer_due is not None for atom in atoms):
            pauses.append(READMIT_EVERY_S)
        if self._examinations or any(unit.xids for unit in self._units):
            pauses.append(ANSWER_S)
        return min(pauses)

    def _tell_faults(self) -> None:
        """Tell of devices that went bad.

        The free ones first, then those that drain: who has to leave another one must not be sent there.
        """
        atoms = sorted(self._atoms.values(), key=lambda atom: atom.order)
        for atom, fault in [(atom, atom.fault()) for atom in atoms]:
            if fault is not None:
                atom.release = None
                self._host.emit(fault)

    def _tell_releases(self) -> None:
        """Tell of devices that are free again, and of those that should be by now."""
        now = self._now()
        ended = [atom.end_release(now) for atom in self._atoms.values()]
        for fault in ended:
            if isinstance(fault, Quarantined):
                self._host.emit(fault)
        if released := tuple(name for name in ended if isinstance(name, str)):
            self._host.emit(Released(released))

    def _tell_recoveries(self) -> None:
        """Tell of devices whose reason has passed (a stranger left, memory came back), proven clean."""
        now = self._now()
        if now >= self._leases_due:
            self._leases_due = now + LEASE_RETRY_S
            self._take_leases([unit for unit in self._units if unit.out and unit.out.leased])
        for atom in [atom for atom in self._atoms.values() if atom.can_recover()]:
            self._back_in_use(atom)

    def _tell_readmissions(self) -> None:
        """Answer those who ask for a device: when it is proven clean and well, or when time is over."""
        for atom in [atom for atom in self._atoms.values() if atom.answer_due is not None]:
            self._take_leases(atom.units)
            why = atom.why_not_readmitted()
            if not why:
                self._back_in_use(atom)
            elif atom.answer_due is not None and self._now() >= atom.answer_due:
                atom.answer_due = None
                self._host.emit(ReadmitRefused(atom.id, why))

    def _back_in_use(self, atom: Atom) -> None:
        for event in [*atom.back_in_use(self._now())]:
            self._host.emit(event)

    def _tell_examinations(self) -> None:
        for examination in list(self._examinations):
            if (fault := examination.fault(self._now())) is not None:
                self._examinations.remove(examination)
                self._host.emit(Examined(examination.devices, fault))

    def _tell_strangers(self) -> None:
        for atom in self._atoms.values():
            who = tuple(str(one) for unit in atom.units for one in unit.strangers.values())
            if who != atom.strangers:
                atom.strangers = who
                self._host.emit(Strangers(atom.id, who))

    # ---------------------------------------------------------------- inside

    def _units_of(self, devices: Sequence[str]) -> list[Unit]:
        return [unit for name in devices for unit in self._atom(name).units]

    def _atom(self, name: str) -> Atom:
        atom = self._atoms.get(name)
        if atom is None:
            raise DeviceError(f"device {name} is not part of this experiment")
        return atom

    def _keep_baselines(self) -> None:
        """Write the baselines to disk. Losing one only means learning it again."""
        for unit in self._units:
            if unit.baseline is not None:
                with contextlib.suppress(OSError):
                    self._machine.baselines.write(unit.gpu, unit.baseline)

    def _hear(self) -> bool:
        """Take what the helpers have answered, and ask them again where that is due; whether one was asked."""
        was_asked = False
        for watch, units in self._units_of_watch.items():
            draining = [unit for unit in units if unit.doing is Doing.DRAINING]
            was_asked |= watch.turn({unit.gpu.uuid: unit.ceiling_bytes() for unit in draining})
            for number in watch.take_xids():
                if is_unknown(number):
                    what = "see NVIDIA's XID catalogue; noted, nothing follows from it"
                    self._say(f"{watch.gpu.label}: XID {number}: {what}")
                for unit in units:
                    unit.xid(number)
            if watch.deaf:
                why = f"{watch.gpu.label}: no GPU error events ({watch.deaf})"
                self._say(f"{why}: faults are found by polling alone")
        return was_asked

    def _say(self, note: str) -> None:
        """Emit a remark, once."""
        if note not in self._said:
            self._said.add(note)
            self._host.emit(DeviceRemark(note))
