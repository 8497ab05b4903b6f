"""NVIDIA GPUs as devices: leased, watched through NVML, given out by UUID, and taken back only when proven empty.

``CudaDevices`` judges the readings of ``watch.py``; nothing here waits for a driver once ``open`` has returned. A
*device* is an atom: one GPU, one MIG slice, a bundle of ``gpus_per_atom`` GPUs, or one of ``atoms_per_gpu`` shares of a
GPU. Ranks are one a GPU.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from gpusched.devices.atoms import Atom, check_mig, check_sizes, chosen_atoms, known_atoms
from gpusched.devices.base import (
    Device,
    Examined,
    Host,
    Placement,
    Quarantined,
    Reading,
    ReadmitRefused,
    Readmitted,
    Released,
    Remark,
    Strangers,
)
from gpusched.devices.gpus import read_atom
from gpusched.devices.health import is_unknown
from gpusched.devices.helper import ThisMachine, World
from gpusched.devices.holders import Processes, processes_here
from gpusched.devices.leases import Leases, lease_folder, state_home
from gpusched.devices.machine import find_machine
from gpusched.devices.opening import Opening, StartContext
from gpusched.devices.placing import place
from gpusched.devices.unit import Doing, Out, Unit
from gpusched.devices.watch import Watch
from gpusched.devices.witness import CallWitness, Testimony
from gpusched.errors import DeviceError

LOOK_EVERY_S = 1.0
ANSWER_S = 0.05
QUICK_ANSWER_S = 0.005
"""Time that a helper has to answer before the answer is looked for; one that comes later is found at the next look."""
LEASE_RETRY_S = 5.0
PAUSE_MIN_S, PAUSE_MAX_S, PAUSE_GROWTH = 0.02, 0.25, 1.5
"""Between two looks at a release: at first often, then more slowly."""
READMIT_EVERY_S = 0.1
READMIT_PATIENCE_S = 4.0
"""Time a requested device may take to prove that it is clean and well."""
EXAMINE_EVERY_S = 0.05
AT_ONCE_S = 60.0
"""A trial that fails with an error of CUDA within this may not have been able to use its GPU at all."""
EXAMINE_PATIENCE_S = 5.0
"""Vitals are read every two seconds, and a reading that takes longer than 3 s is thrown away."""


class CudaDevices:
    """The GPUs of one experiment, made by ``from_spec``. See ``base.Devices`` for the requests."""

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
        start_context: StartContext | None = None,
        call_witness: CallWitness | None = None,
    ) -> None:
        """Find the GPUs that ``spec`` (``auto``, ``cuda``, ``cuda:0,2``, UUIDs) names within CUDA_VISIBLE_DEVICES.

        ``experiment``: its folder; processes whose GPUSCHED_DIR is that folder are ours. ``known``: the device ids of
        an experiment that goes on, which then replace ``spec``; those that are gone are listed as unusable.
        ``call_witness``: has CUDA tried before the first launch, and when a trial fails at once. May take seconds, and
        at most about two minutes with a driver that hangs. Raises DeviceError.
        """
        check_sizes(gpus_per_atom, atoms_per_gpu)
        if gpu_ids not in ("uuid", "index"):
            raise DeviceError(f"gpu_ids: {gpu_ids}: must be uuid or index")
        self._world = world or ThisMachine()
        self._now = self._world.now
        self._processes = processes or processes_here(experiment)
        self._gpu_ids = gpu_ids
        self._start_context = start_context
        self._call_witness = call_witness
        self._machine = find_machine(self._processes, self._world, state_home(environ))
        try:
            if known is not None:
                atoms = known_atoms(self._machine, known)
            else:
                atoms, notes = chosen_atoms(
                    self._machine, spec, gpus_per_atom, atoms_per_gpu, environ
                )
                self._machine.notes += notes
            check_mig(atoms, gpus_per_atom, gpu_ids)
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
        self._leases_tried_at = self._now()
        self._said: set[str] = set()
        self._missed = {atom.id for atom in atoms if atom.missing}
        self._waits: dict[str, _Wait] = {}
        self._late: dict[str, float] = {}
        self._asked_for: set[str] = set()
        self._strangers: dict[str, tuple[str, ...]] = {}
        self._closed = False
        self._host: Host

    # ---------------------------------------------------------------- opening

    def open(self, host: Host) -> tuple[Device, ...]:
        """Take the leases, learn the idle baselines, list the devices.

        Waits for a first reading of each GPU (a fraction of a second, 30 s at most) and, inside a container, for the
        test of ``opening.py``. Raises DeviceError where no device can be used now.
        """
        self._host = host
        for note in self._machine.notes:
            self._say(note)
        self._begin()
        devices = tuple(atom.as_device() for atom in self._atoms.values())
        if not any(device.usable for device in devices):
            reasons = "\n".join(f"  {device.why_not}" for device in devices)
            raise DeviceError(f"no GPU can be used now:\n{reasons}")
        for unit in self._units:
            unit.told()  # why a device cannot be used from the beginning is said with the list
        host.after(LOOK_EVERY_S, self._look)
        return devices

    def _begin(self) -> None:
        self._take_leases(self._units, patient=True)
        for watch in self._machine.watches.values():
            if watch not in self._units_of_watch:
                watch.close()
        opening = Opening(self._units, self._processes, self._world, self._say, self._start_context)
        opening.run()
        if self._call_witness is not None:
            opening.hear_witness(self._call_witness)
        for unit in self._units:
            self._keep_baseline(unit)

    # ---------------------------------------------------------------- leases

    def _take_leases(self, units: Sequence[Unit], *, patient: bool = False) -> None:
        for unit in units:
            try:
                holder = self._leases.take(unit.gpu.uuid, patient=patient)
                problem = f"leased by {holder}" if holder else ""
            except DeviceError as error:
                problem = str(error)
            now = self._now()
            if problem:
                unit.out = Out(problem, now, passing=True, leased=True)
            elif unit.out is not None and unit.out.leased:
                unit.out = Out("was leased by another experiment", now, passing=True)

    # ---------------------------------------------------------------- requests

    def place(self, devices: Sequence[str]) -> Placement:
        """Return environment and cores of each rank, one rank a GPU."""
        units = self._units_of(devices)
        if len(units) > 1 and any(unit.gpu.parent for unit in units):
            raise DeviceError(
                "a process sees one MIG slice only: a trial on MIG slices has one atom"
            )
        return place(units, self._machine, self._gpu_ids)

    def take(self, devices: Sequence[str]) -> None:
        for unit in self._units_of(devices):
            unit.hold()
        self._tell_strangers(devices)

    def confirm_release(self, devices: Sequence[str], limit_s: float) -> None:
        self._units_of(devices)
        wait = _Wait(self._now(), limit_s)
        self._waits.update({name: wait for name in devices if name not in self._waits})
        self._follow(wait)

    def readmit(self, device: str) -> None:
        atom = self._atom(device)
        if device in self._asked_for:
            return
        self._hear()
        for unit in atom.units:
            unit.begin_readmission()
        self._asked_for.add(device)
        self._try_to_readmit(atom, self._now() + READMIT_PATIENCE_S)

    def let_go(self, device: str) -> None:
        boards = {unit.watch for unit in self._atom(device).units}
        for unit in self._units:
            is_used = unit.doing is Doing.HELD and (unit.out is None or unit.out.passing)
            if unit.watch in boards and is_used:
                raise DeviceError(f"{unit.gpu.label} cannot be let go: a trial is using it")
        for watch in boards:
            watch.let_go("let go on request, so that it can be reset")
        self._tell_faults()

    def keep_out(self, device: str, reason: str) -> None:
        for unit in self._atom(device).units:
            unit.keep_out(reason)

    def examine(self, devices: Sequence[str]) -> None:
        self._examine(tuple(devices), self._now() + EXAMINE_PATIENCE_S)

    def readings(self) -> tuple[Reading, ...]:
        return tuple(read_atom(atom) for atom in self._atoms.values())

    def close(self) -> None:
        """Give the leases back and end the helpers."""
        self._closed = True
        self._machine.close()
        for unit in self._units:
            self._keep_baseline(unit)
        self._leases.close()

    # ---------------------------------------------------------------- what becomes of them

    def _look(self) -> None:
        """Ask, once a second, how all devices are; judge it when they have had time to answer."""
        if not self._closed:
            self._hear()
            self._host.after(ANSWER_S, self._judge)

    def _judge(self) -> None:
        """Tell which devices went bad, which are well again, and which strangers have come."""
        if self._closed:
            return
        self._tell_faults()
        for atom in self._recovered():
            self._back_in_use(atom)
        self._tell_strangers(self._atoms)
        is_urgent = any(unit.is_waiting_for_vitals for unit in self._units)
        self._host.after(ANSWER_S if is_urgent else LOOK_EVERY_S - ANSWER_S, self._look)

    def _tell_faults(self) -> None:
        for fault in self._faults():
            self._waits.pop(fault.device, None)
            self._host.emit(fault)

    def _follow(self, wait: _Wait) -> None:
        """Look at the devices of one wait for a release, ever more slowly, until all are free or given up."""
        names = [name for name, one in self._waits.items() if one is wait]
        if self._closed or not names:
            return
        was_asked = self._hear()
        released = []
        waited_s = self._now() - wait.since
        is_over = self._now() >= wait.since + wait.limit_s  # the difference may round to less
        for name in names:
            atom = self._atom(name)
            why = atom.why_not_free([unit.released() for unit in atom.units])
            if why and not is_over:
                continue
            del self._waits[name]
            if why:
                self._late[name] = wait.since
                for unit in atom.units:
                    unit.is_given_up = True
                why = f"not released after {waited_s:.0f} s: {why}"
                self._host.emit(Quarantined(name, why, passing=True))
            else:
                released.append(name)
        if released:
            self._host.emit(Released(tuple(released)))
        if wait in self._waits.values():
            left_s = wait.since + wait.limit_s - self._now()
            wait.is_quick = (
                was_asked and not wait.is_quick
            )  # another wait may take the answer and ask
            pause_s = QUICK_ANSWER_S if wait.is_quick else wait.pause_s
            self._host.after(min(pause_s, max(0.001, left_s)), partial(self._follow, wait))
            if not wait.is_quick:
                wait.pause_s = min(PAUSE_MAX_S, wait.pause_s * PAUSE_GROWTH)

    def _try_to_readmit(self, atom: Atom, until: float) -> None:
        if self._closed or atom.id not in self._asked_for:  # it has come back by itself
            return
        why = self._why_not_readmit(atom)
        if not why:
            self._back_in_use(atom)
        elif self._now() < until:
            again = partial(self._try_to_readmit, atom, until)
            self._host.after(READMIT_EVERY_S, again)
        else:
            self._asked_for.discard(atom.id)
            self._host.emit(ReadmitRefused(atom.id, why))

    def _why_not_readmit(self, atom: Atom) -> str:
        if atom.is_held and not any(unit.out for unit in atom.units):
            return "a trial is using it"
        self._hear()
        leased = [unit for unit in atom.units if unit.out is not None and unit.out.leased]
        self._take_leases(leased)
        for unit in leased:
            if unit.out is not None and unit.out.leased:
                return unit.out.reason
        return atom.why_not_free([unit.can_readmit() for unit in atom.units])

    def _examine(self, devices: tuple[str, ...], until: float) -> None:
        """Judge by readings begun after the request; look again until all are in."""
        if self._closed:
            return
        self._hear()
        answers = [(unit, unit.blamed()) for unit in self._units_of(devices)]
        ill = [f"{unit.gpu.label}: {why}" for unit, why in answers if why]
        if not ill and any(why is None for _, why in answers):
            if self._now() < until:
                self._host.after(EXAMINE_EVERY_S, partial(self._examine, devices, until))
                return
            ill = ["NVML reported no GPU health"]
        if not ill and self._call_witness is not None:
            units = [unit for unit, _ in answers]
            is_early = any(unit.held_s() <= AT_ONCE_S for unit in units)
            uuids = [unit.gpu.uuid for unit in units]
            if is_early and (witness := self._call_witness(uuids)) is not None:
                self._hear_witness(devices, units, witness)
                return
        self._host.emit(Examined(devices, "; ".join(ill)))

    def _hear_witness(
        self, devices: tuple[str, ...], units: Sequence[Unit], witness: Testimony
    ) -> None:
        """Blame the machine where CUDA does not work for a program of ours either; GPUs it fails on are out."""
        if self._closed:
            witness.close()
            return
        said = witness.said()
        if said is None:
            again = partial(self._hear_witness, devices, units, witness)
            self._host.after(READMIT_EVERY_S, again)
            return
        for unit in units:
            unit.condemn(said.get(unit.gpu.uuid, ""))
        ill = [f"{u.gpu.label}: {why}" for u in units if (why := said.get(u.gpu.uuid))]
        self._host.emit(Examined(devices, "; ".join(ill)))

    def _faults(self) -> list[Quarantined]:
        """Return what went bad since the last look: broken, lost or, while they should be free, in use by others.

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
                found.append(Quarantined(atom.id, "; ".join(reasons), passing))
        for unit in self._units:
            unit.learn_if_idle()
        return found

    def _recovered(self) -> list[Atom]:
        """Return atoms whose reason has passed (a stranger left, memory came back), proven clean."""
        now = self._now()
        if now - self._leases_tried_at >= LEASE_RETRY_S:
            self._leases_tried_at = now
            self._take_leases([u for u in self._units if u.out is not None and u.out.leased])
        back = []
        for atom in self._atoms.values():
            is_out = atom.id in self._late or any(unit.out for unit in atom.units)
            if is_out and not atom.missing:
                clean = [unit.can_recover() for unit in atom.units]  # all: they count clean seconds
                back += [atom] if all(clean) else []
        return back

    def _back_in_use(self, atom: Atom) -> None:
        for unit in atom.units:
            unit.back_in_use()
        if (since := self._late.pop(atom.id, None)) is not None:
            took_s = self._now() - since
            self._host.emit(
                Remark(f"{atom.label} was released {took_s:.0f} s after its trial had ended")
            )
        self._waits.pop(atom.id, None)  # or the next trial would be mistaken for an unreleased one
        self._asked_for.discard(atom.id)
        self._host.emit(Readmitted(atom.id))

    def _tell_strangers(self, devices: Iterable[str]) -> None:
        for name in devices:
            units = self._atom(name).units
            who = tuple(str(holder) for unit in units for holder in unit.strangers.values())
            if who != self._strangers.get(name, ()):
                self._strangers[name] = who
                self._host.emit(Strangers(name, who))

    # ---------------------------------------------------------------- inside

    def _units_of(self, devices: Sequence[str]) -> list[Unit]:
        return [unit for name in devices for unit in self._atom(name).units]

    def _atom(self, name: str) -> Atom:
        atom = self._atoms.get(name)
        if atom is None:
            raise DeviceError(f"device {name} is not part of this experiment")
        return atom

    def _keep_baseline(self, unit: Unit) -> None:
        """Write a baseline to disk. Losing one only means learning it again."""
        if unit.baseline is not None:
            with contextlib.suppress(OSError):
                self._machine.baselines.write(unit.gpu, unit.baseline)

    def _hear(self) -> bool:
        """Take what the helpers have answered, and ask them again where that is due; whether one was asked."""
        was_asked = False
        deaf: dict[str, list[str]] = {}
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
                deaf.setdefault(watch.deaf, []).append(watch.gpu.label)
        for why, labels in deaf.items():
            self._say(
                f"no GPU error events from {', '.join(labels)} ({why}): faults are found by polling alone"
            )
        return was_asked

    def _say(self, note: str) -> None:
        """Emit a remark, once."""
        if note not in self._said:
            self._said.add(note)
            self._host.emit(Remark(note))


@dataclass(slots=True, eq=False)
class _Wait:
    """Releases asked for together. (The driver frees memory some time after a process is gone: reliability.md, F19.)"""

    since: float
    limit_s: float
    pause_s: float = PAUSE_MIN_S
    is_quick: bool = False
