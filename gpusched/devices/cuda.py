"""NVIDIA GPUs as devices: leased, watched through NVML, given out by UUID, and taken back only when proven empty.

``CudaDevices`` answers the executor's questions from readings that the threads of ``watch.py`` leave behind; nothing
here waits for a driver once ``inventory`` has returned. A *device* is an atom: one GPU, one MIG slice, or a bundle of
``gpus_per_atom`` GPUs whose id is their UUIDs joined by ``+``. Ranks are one a GPU.

"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from gpusched.devices.atoms import Atom, Maker, check_mig, chosen_atoms, known_atoms
from gpusched.devices.base import Device, Fault, Placement, Reading, Release
from gpusched.devices.baseline import BaselineFile, boot_id
from gpusched.devices.clock import Clock, MachineClock
from gpusched.devices.holders import Processes, in_initial_pid_namespace
from gpusched.devices.leases import Leases, lease_folder, state_home
from gpusched.devices.machine import Machine, find_machine
from gpusched.devices.opening import Opening, StartContext
from gpusched.devices.placing import GpuIds, place
from gpusched.devices.reading import read_atom
from gpusched.devices.release import Verdict
from gpusched.devices.unit import Out, Unit
from gpusched.devices.xid import XidWatch
from gpusched.errors import DeviceError

LEASE_RETRY_S = 5.0


class CudaDevices:
    """See the module. Made by ``from_spec``; ``inventory`` takes the leases and must come first."""

    kind: Literal["cpu", "cuda"] = "cuda"

    def __init__(
        self,
        machine: Machine,
        atoms: Sequence[Atom],
        *,
        leases: Leases,
        baselines: BaselineFile,
        processes: Processes,
        clock: Clock,
        gpu_ids: GpuIds = "uuid",
        start_context: StartContext | None = None,
    ) -> None:
        self.notes: list[str] = list(machine.notes)
        self._machine = machine
        self._atoms = {atom.id: atom for atom in atoms}
        self._leases = leases
        self._baselines = baselines
        self._processes = processes
        self._clock = clock
        self._gpu_ids = gpu_ids
        self._start_context = start_context
        self._units = {unit.gpu.uuid: unit for atom in atoms for unit in atom.units}
        self._xids: XidWatch | None = None
        self._ready = False
        self._leases_tried_at = clock.now()
        self._said: set[str] = set()
        self._missed: set[str] = set()

    @classmethod
    def from_spec(
        cls,
        spec: str = "cuda",
        gpus_per_atom: int = 1,
        gpu_ids: str = "uuid",
        state_dir: Path | None = None,
        *,
        experiment: Path | None = None,
        known: Sequence[str] | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        processes: Processes | None = None,
        start_context: StartContext | None = None,
    ) -> CudaDevices:
        """The GPUs that ``spec`` (``auto``, ``cuda``, ``cuda:0,2``, UUIDs) names within CUDA_VISIBLE_DEVICES.

        ``experiment``: its folder; processes whose GPUSCHED_DIR is that folder are ours. ``known``: the device ids of
        an experiment that goes on, which then replace ``spec``; those that are gone are listed as unusable.
        ``state_dir``: where baselines are kept (default: the user's state folder). May take seconds, and at most
        about two minutes with a driver that hangs. Raises DeviceError.
        """
        if gpus_per_atom < 1:
            raise DeviceError(f"gpus_per_atom: {gpus_per_atom}: must be at least 1")
        if gpu_ids not in ("uuid", "index"):
            raise DeviceError(f"gpu_ids: {gpu_ids}: must be uuid or index")
        environ = os.environ if environ is None else environ
        clock = clock or MachineClock()
        if processes is None:
            processes = Processes(experiment)
            processes.visible = in_initial_pid_namespace()
        machine = find_machine(processes, clock)
        try:
            baselines = BaselineFile(state_dir or state_home(environ), machine.driver, boot_id())
            maker = Maker(machine, clock, baselines)
            if known is not None:
                atoms = known_atoms(maker, known)
            else:
                atoms, notes = chosen_atoms(maker, spec, gpus_per_atom, environ)
                machine.notes += notes
            check_mig(atoms, gpus_per_atom, gpu_ids)
            leases = Leases(lease_folder(environ), str(experiment or f"of pid {os.getpid()}"))
        except DeviceError:
            machine.close()
            raise
        return cls(
            machine,
            atoms,
            leases=leases,
            baselines=baselines,
            processes=processes,
            clock=clock,
            gpu_ids="index" if gpu_ids == "index" else "uuid",
            start_context=start_context,
        )

    # ---------------------------------------------------------------- what there is

    def inventory(self) -> tuple[Device, ...]:
        """The devices of this experiment, with their leases taken and their idle baselines learnt.

        The first call waits for a first reading of each GPU (a fraction of a second, 30 s at most) and, inside a
        container, for the test of ``pidcheck.py``. Raises DeviceError where none can be used now.
        """
        if not self._ready:
            self._begin()
            self._ready = True
        devices = tuple(self._device(atom) for atom in self._atoms.values())
        if not any(device.usable for device in devices):
            reasons = "\n".join(f"  {device.why_not}" for device in devices)
            raise DeviceError(f"no GPU can be used now:\n{reasons}")
        return devices

    def _device(self, atom: Atom) -> Device:
        why = atom.why_not()
        alone = len(atom.units) == 1 and not atom.missing
        named = f"{atom.label}: {why}" if why and alone else why
        return Device(atom.id, atom.label, atom.island, usable=not why, why_not=named)

    def _begin(self) -> None:
        units = list(self._units.values())
        self._take_leases(units, patient=True)
        boards = {unit.gpu.board for unit in units}
        for board, watch in self._machine.watches.items():
            if board not in boards:
                watch.close()
        Opening(units, self._processes, self._clock, self._say, self._start_context).run()
        for unit in units:
            self._keep_baseline(unit)
        watched = [w.gpu for b, w in self._machine.watches.items() if b in boards and w.gpu]
        self._xids = XidWatch(watched, self._clock)

    # ---------------------------------------------------------------- leases

    def _take_leases(self, units: Sequence[Unit], *, patient: bool = False) -> None:
        for unit in units:
            try:
                holder = self._leases.take(unit.gpu.uuid, patient=patient)
                problem = f"leased by {holder}" if holder else ""
            except DeviceError as error:
                problem = str(error)
            now = self._clock.now()
            if problem:
                unit.out = Out(problem, now, passing=True, leased=True)
            elif unit.out is not None and unit.out.leased:
                unit.out = Out("was leased by another experiment", now, passing=True)

    # ---------------------------------------------------------------- the executor's questions

    def placement(self, devices: Sequence[str]) -> Placement:
        """Environment and cores of each rank, one rank a GPU. From now on the devices are HELD."""
        units = [unit for name in devices for unit in self._atom(name).units]
        if len(units) > 1 and any(unit.gpu.parent for unit in units):
            raise DeviceError(
                "a process sees one MIG slice only: a trial on MIG slices has one atom"
            )
        for unit in units:
            unit.hold()
        return place(units, self._machine, self._gpu_ids)

    def released(self, devices: Sequence[str]) -> tuple[Release, ...]:
        """Asked after the trial's tree is empty, again and again: each device for itself."""
        self._hear()
        return tuple(
            self._release(self._atom(name), [unit.released() for unit in self._atom(name).units])
            for name in devices
        )

    def readmit(self, device: str, *, anew: bool = False) -> Release:
        """Asked again and again when somebody wants a quarantined device back; released means: FREE again."""
        atom = self._atom(device)
        if atom.is_held and not any(unit.out for unit in atom.units):
            return Release(device, released=False, holder="it is in use")
        self._hear()
        for unit in atom.units if anew else ():
            unit.begin_readmission()
            if self._xids is not None:
                self._xids.forget(unit.gpu.board)
        leased = [unit for unit in atom.units if unit.out is not None and unit.out.leased]
        self._take_leases(leased)
        for unit in leased:
            if unit.out is not None and unit.out.leased:
                return Release(device, released=False, holder=unit.out.reason)
        release = self._release(atom, [unit.can_readmit() for unit in atom.units])
        if release.released:
            self._back_in_use(atom)
        return release

    def _release(self, atom: Atom, verdicts: Sequence[Verdict]) -> Release:
        if atom.missing:
            return Release(atom.id, released=False, holder=atom.why_not())
        why = "; ".join(verdict.why for verdict in verdicts if not verdict.clean)
        return Release(atom.id, released=not why, holder=why)

    def faults(self) -> tuple[Fault, ...]:
        """Devices that went bad since the last call: broken, lost or, while they should be free, in use by others.

        The free ones first, then those that drain: who has to leave another one must not be sent there.
        """
        self._hear()
        found = []
        for atom in sorted(self._atoms.values(), key=lambda atom: atom.order):
            reasons = [f"{unit.gpu.label}: {why}" for unit in atom.units if (why := unit.check())]
            if atom.missing and atom.id not in self._missed:
                self._missed.add(atom.id)
                reasons.append(atom.why_not())
            if reasons:
                out = [unit.out for unit in atom.units if unit.out is not None]
                passing = not atom.missing and all(one.passing for one in out)
                found.append(Fault(atom.id, "; ".join(reasons), passing))
        for unit in self._units.values():
            unit.learn_if_idle()
        return tuple(found)

    def recovered(self) -> tuple[str, ...]:
        """Devices out of use for a reason that has passed (a stranger left, a lease was given back), proven clean."""
        now = self._clock.now()
        if now - self._leases_tried_at >= LEASE_RETRY_S:
            self._leases_tried_at = now
            units = self._units.values()
            self._take_leases([u for u in units if u.out is not None and u.out.leased])
        back = []
        for atom in self._atoms.values():
            if atom.missing or not any(unit.out for unit in atom.units):
                continue
            ready = [unit.can_recover() for unit in atom.units]
            if all(ready):
                self._back_in_use(atom)
                back.append(atom.id)
        return tuple(back)

    def keep_out(self, device: str, reason: str) -> None:
        """It was out of use for a passing reason when the last daemon ended: ``recovered`` tells when that is over."""
        for unit in self._atom(device).units:
            unit.keep_out(reason)

    def _back_in_use(self, atom: Atom) -> None:
        for unit in atom.units:
            passing = unit.out is None or unit.out.passing
            unit.back_in_use()
            if not passing and self._xids is not None:
                self._xids.returned(unit.gpu.board)

    def strangers(self, devices: Sequence[str]) -> tuple[str, ...]:
        """Foreign processes seen on these devices since they were last given out, in words."""
        units = [unit for name in devices for unit in self._atom(name).units]
        return tuple(str(holder) for unit in units for holder in unit.strangers.values())

    def blamed(self, devices: Sequence[str]) -> str | None:
        """Which GPU is ill or lost, by readings begun after this was first asked."""
        self._hear()
        units = [unit for name in devices for unit in self._atom(name).units]
        answers = [(unit, unit.blamed()) for unit in units]
        if ill := [f"{unit.gpu.label}: {why}" for unit, why in answers if why]:
            return "; ".join(ill)
        return None if any(why is None for _, why in answers) else ""

    def readings(self) -> tuple[Reading, ...]:
        return tuple(read_atom(atom) for atom in self._atoms.values())

    def close(self) -> None:
        """Give the leases back and let the threads end. NVML stays initialised: others may use it."""
        if self._xids is not None:
            self._xids.close()
        self._machine.close()
        for unit in self._units.values():
            self._keep_baseline(unit)
        self._leases.close()

    # ---------------------------------------------------------------- MIG

    @property
    def max_atoms(self) -> int | None:
        """The most atoms a trial may have: 1 where a MIG slice is among the devices, else as many as there are."""
        return 1 if any(unit.gpu.parent for unit in self._units.values()) else None

    def check_sizes(self, atoms_max: int) -> None:
        """Raise DeviceError if a recipe lets a trial have more atoms than these devices can serve together."""
        if self.max_atoms is not None and atoms_max > self.max_atoms:
            raise DeviceError(
                f"max_atoms: {atoms_max}: these devices include MIG slices, and a process sees one slice only, so a "
                f"trial can have one atom. Set max_atoms: 1, or switch MIG off (`sudo nvidia-smi -mig 0`)"
            )

    # ---------------------------------------------------------------- inside

    def _atom(self, name: str) -> Atom:
        atom = self._atoms.get(name)
        if atom is None:
            raise DeviceError(f"there is no device {name} in this experiment")
        return atom

    def _keep_baseline(self, unit: Unit) -> None:
        """On disk. Losing it only means learning it again."""
        if unit.baseline is not None:
            with contextlib.suppress(OSError):
                self._baselines.write(unit.gpu, unit.baseline)

    def _hear(self) -> None:
        if self._xids is None:
            return
        for note in self._xids.notes():
            self._say(note)
        for board, number in self._xids.news():
            for unit in self._units.values():
                if unit.gpu.board == board:
                    unit.xid(number)

    def _say(self, note: str) -> None:
        """Once."""
        if note not in self._said:
            self._said.add(note)
            self.notes.append(note)
