"""NVIDIA GPUs as devices: leased, watched through NVML, given out by UUID, and taken back only when proven empty.

``CudaDevices`` judges the readings of ``helper.py`` by the rule of ``release.py``; nothing here waits for a driver once
``open`` has returned. A device is a GPU, or one of ``atoms_per_gpu`` shares of one; ranks are one a device.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from gpusched.devices.base import (
    Device,
    DeviceRemark,
    Host,
    Placement,
    Reading,
    Readmitted,
    Released,
)
from gpusched.devices.helper import Driver, World
from gpusched.devices.leases import Leases, lease_folder, lease_holder
from gpusched.devices.machine import choose, islands, place, visible
from gpusched.devices.nvml import Gpu, Machine
from gpusched.devices.release import IDLE_LIMIT_BYTES, UNSEEN_LIMIT_BYTES, Processes
from gpusched.devices.unit import SHARE, Board, Doing, Unit, keep_idle, kept_idle, units_of
from gpusched.errors import DeviceError

LOOK_EVERY_S = 1.0
ANSWER_S = 0.01
"""Time after which the helper's answer is looked for; the same while a release is waited for."""
LEASE_RETRY_S = 5.0
FIRST_READING_TIMEOUT_S = 30.0
LEAVING_TIMEOUT_S = 10.0
"""Time to wait for processes that have ended and whose contexts the driver is still taking down."""

_UNSEEN = (
    "in this container processes on a GPU cannot be told apart, and its memory alone tells whether it is free: start "
    "the container with --pid=host"
)


class CudaDevices:
    """The GPUs of one search. See ``base.Devices`` for the requests."""

    kind: Literal["cpu", "cuda"] = "cuda"

    def __init__(
        self,
        spec: str = "cuda",
        *,
        experiment: Path,
        atoms_per_gpu: int = 1,
        known: Sequence[str] = (),
        takes_over: bool = False,
    ) -> None:
        """Find the GPUs that ``spec`` (``cuda``, ``cuda:0,2``, UUIDs) names within CUDA_VISIBLE_DEVICES.

        ``experiment``: its folder; processes whose GPUSCHED_DIR is that folder are ours. ``known``: the device ids of
        a search that is resumed; ``takes_over``: it may have trials on those of ``spec``. May take seconds; some
        minutes with a driver that hangs. Raises DeviceError.
        """
        self._spec, self._shares, self._folder = spec, atoms_per_gpu, experiment
        world = World()
        self._now = world.now
        self._processes = Processes(experiment)
        self._driver = Driver(world, self._processes)
        self._notes: Sequence[str] = ()
        self._idle_bytes, may_be_left = kept_idle(experiment)
        try:
            self._machine = self._driver.machine()
            if atoms_per_gpu > 1 and not self._processes.visible:
                raise DeviceError(
                    "a GPU cannot be shared in this container: the processes on it cannot be told apart. Start the "
                    "container with --pid=host, or set atoms_per_gpu: 1"
                )
            self._islands = islands(self._machine.gpus)
            units = self._known_units(known, may_be_left) if known else self._chosen()
            self._leases = Leases(lease_folder(), str(experiment))
        except DeviceError:
            self._driver.close()
            raise
        self._units: dict[str, Unit] = {unit.id: unit for unit in units}
        self._known = frozenset([*self._units] if takes_over else known)
        self._leases_due = self._now() + LEASE_RETRY_S
        self._planned_at, self._closed = math.inf, False

    def _chosen(self) -> list[Unit]:
        """Return the devices of the GPUs that the recipe names, island by island. Raises DeviceError."""
        variable = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus, self._notes = choose(self._machine.gpus, self._spec, variable)
        gpus.sort(key=lambda gpu: (self._islands[gpu.uuid], gpu.pci_bus_id.lower()))
        return [unit for gpu in gpus for unit in self._units_of_gpu(gpu, self._shares)]

    def _units_of_gpu(self, gpu: Gpu, shares: int, *, may_be_left: bool = False) -> list[Unit]:
        """Make one device, or one a share. ``may_be_left``: a trial of an earlier daemon may be on the GPU."""
        board, island = Board(gpu), self._islands.get(gpu.uuid, 0)
        board.idle_bytes = self._idle_bytes.get(gpu.uuid)
        is_certain = self._processes.visible and not may_be_left
        limit_bytes = IDLE_LIMIT_BYTES if is_certain else UNSEEN_LIMIT_BYTES
        return units_of(board, island, self._now, shares, limit_bytes=limit_bytes)

    def _known_units(self, ids: Sequence[str], may_be_left: bool) -> list[Unit]:
        """Return the devices of a search that is resumed, in the journal's order."""
        gpus = {gpu.uuid: gpu for gpu in visible(self._machine.gpus)}
        made: dict[str, Unit] = {}
        for uuid, shares in Counter(name.partition(SHARE)[0] for name in ids).items():
            gpu = gpus.get(uuid, Gpu(uuid, name=""))
            units = self._units_of_gpu(gpu, shares, may_be_left=may_be_left)
            made |= {unit.id: unit for unit in units}
        return [made[name] for name in ids]

    # ---------------------------------------------------------------- opening

    def open(self, host: Host) -> tuple[Device, ...]:
        """Take the leases, read every GPU once, list the devices. Raises DeviceError where none can be used now."""
        self._host = host
        for note in (*self._machine.notes, *self._notes):
            host.emit(DeviceRemark(note))
        if not self._processes.visible:
            host.emit(DeviceRemark(_UNSEEN))
        devices = self._open(list(self._units.values()))
        if self._known and not any(device.usable for device in devices):
            devices += self._open_others()
        keep_idle(self._folder, {u.gpu.uuid: u.board.idle_bytes for u in self._units.values()})
        if not any(device.usable for device in devices):
            reasons = "\n".join(f"  {device.why_not}" for device in devices)
            raise DeviceError(f"no GPU can be used now:\n{reasons}")
        self._plan(LOOK_EVERY_S)
        return devices

    def _open(self, units: list[Unit]) -> tuple[Device, ...]:
        """Take the leases of these, read and list them."""
        self._units |= {unit.id: unit for unit in units}
        boards = dict.fromkeys(unit.board for unit in self._units.values())
        self._driver.boards = [b for b in boards if b.gpu.is_shown and not b.gpu.mig]
        self._take_leases([unit for unit in units if unit.gpu.is_shown])
        self._read_first(units)
        for unit in units:
            self._judge_first(unit)
        return tuple(unit.as_device() for unit in units)

    def _open_others(self) -> tuple[Device, ...]:
        """Open devices beside the known ones, of which none can be used, until as many can.

        A machine of the cloud that was stopped comes back with other GPUs; on a shared one others have taken them.
        Where one of its own can be used the search has no others: numbers in the recipe may mean another GPU now.
        """
        devices: tuple[Device, ...] = ()
        with contextlib.suppress(DeviceError):
            others = [unit for unit in self._chosen() if unit.id not in self._units]
            for board in dict.fromkeys(unit.board for unit in others):
                if sum(device.usable for device in devices) < len(self._known):
                    devices += self._open([unit for unit in others if unit.board is board])
        return devices

    def _read_first(self, units: Sequence[Unit]) -> None:
        """Wait for a reading of each GPU, and for what is left of a search that has just ended."""
        began = self._now()
        while (waited_s := self._now() - began) < FIRST_READING_TIMEOUT_S:
            self._driver.turn()
            unread = any(u.board.seen is None and not u.board.gone for u in units)
            leaving = not self._known and waited_s < LEAVING_TIMEOUT_S
            if not unread and not (leaving and any(unit.is_leaving for unit in units)):
                break
            self._driver.wait(ANSWER_S)

    def _judge_first(self, unit: Unit) -> None:
        seen = unit.board.seen
        verdict = unit.verdict()
        is_a_strangers = {holder.whose for holder in verdict.holders} == {"foreign"}
        may_be_ours = unit.id in self._known and not is_a_strangers
        if may_be_ours and seen is not None and not unit.board.gone:
            # A trial of ours may live there, until the executor says otherwise.
            unit.doing = Doing.HELD
        unit.learn()
        if seen is None and unit.out is None:
            unit.take_out(verdict.why)
        unit.fault()  # told with the list

    def _take_leases(self, units: Sequence[Unit]) -> None:
        """Take the leases of these; a device whose lease another search has is out of use."""
        for unit in units:
            try:
                holder = self._leases.take(unit.gpu.uuid)
                problem = f"leased by {holder}" if holder else ""
            except DeviceError as error:
                problem = str(error)
            if problem:
                unit.take_out(problem, leased=True)
            elif unit.out is not None and unit.out.leased:
                unit.take_out("was leased by another search")

    # ---------------------------------------------------------------- requests

    def place(self, devices: Sequence[str]) -> Placement:
        """Return environment and cores of each rank, one rank a device."""
        units = map(self._unit, devices)
        shares = [(unit.gpu, 1 + len(unit.neighbours)) for unit in units]
        return place(shares, self._machine.gpus)

    def take(self, devices: Sequence[str]) -> None:
        for name in devices:
            self._unit(name).hold()

    def drain(self, devices: Sequence[str]) -> None:
        for name in devices:
            if (fault := self._unit(name).drain()) is not None:
                self._host.emit(fault)

    def confirm_release(self, devices: Sequence[str], limit_s: float) -> None:
        for name in devices:
            self._unit(name).wait_for_release(limit_s)
        self._turn()

    def keep_out(self, device: str, reason: str, rest_s: float = 0.0) -> None:
        unit = self._unit(device)
        if unit.out is None:
            unit.take_out(reason, rest_s=rest_s)
        unit.tell()

    def readings(self) -> tuple[Reading, ...]:
        return tuple(unit.reading() for unit in self._units.values())

    def close(self) -> None:
        """Give the leases back and end the helper."""
        self._closed = True
        self._driver.close()
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
        """Take the answers of the helper, tell what follows from them, ask anew, and plan the next turn."""
        if self._closed:
            return
        units = list(self._units.values())
        waiting = {unit.board for unit in units if unit.release_until is not None}
        self._driver.turn(waiting)
        self._tell_faults(units)
        self._tell_releases(units)
        self._tell_recoveries(units)
        for unit in units:
            unit.learn()
        self._plan(ANSWER_S if waiting or self._driver.is_waiting else LOOK_EVERY_S - ANSWER_S)

    def _tell_faults(self, units: Sequence[Unit]) -> None:
        """Tell of devices that went bad."""
        for unit in units:
            if (fault := unit.fault()) is not None:
                self._host.emit(fault)
            if why := unit.must_be_closed():
                self._driver.leave(unit.board, why)

    def _tell_releases(self, units: Sequence[Unit]) -> None:
        """Tell of devices that are free again; of one that should be by now, the next turn tells as of a fault."""
        if released := tuple(unit.id for unit in units if unit.end_release()):
            self._host.emit(Released(released))

    def _tell_recoveries(self, units: Sequence[Unit]) -> None:
        """Tell of devices whose reason has passed (a stranger left, memory came back), proven clean and well."""
        now = self._now()
        if now >= self._leases_due:
            self._leases_due = now + LEASE_RETRY_S
            self._take_leases([unit for unit in units if unit.out and unit.out.leased])
        for unit in [unit for unit in units if unit.can_recover()]:
            unit.back_in_use()
            self._host.emit(Readmitted(unit.id))

    def _unit(self, name: str) -> Unit:
        unit = self._units.get(name)
        if unit is None:
            raise DeviceError(f"device {name} is not part of this search")
        return unit


# ---------------------------------------------------------------- for people, without a search or a lease


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState(Reading):
    """A GPU of the machine, for people.

    ``leased_by``: the search that has the lease, in words; ``busy``: why no other search could use the GPU now.
    """

    label: str
    index: int
    name: str
    leased_by: str
    busy: str

    def to_json(self) -> dict[str, Any]:
        told = asdict(self)
        del told["strangers"]  # none without a trial
        return {"uuid": told.pop("device"), **told}


def gpu_states() -> tuple[list[GpuState], Machine]:
    """Return every GPU of the machine, and the machine. Takes seconds at most; raises DeviceError."""
    world, processes = World(), Processes()
    driver = Driver(world, processes)
    limit_bytes = IDLE_LIMIT_BYTES if processes.visible else UNSEEN_LIMIT_BYTES
    try:
        machine = driver.machine()
        units = [Unit(Board(gpu), 0, world.now, limit_bytes=limit_bytes) for gpu in machine.gpus]
        driver.boards = [unit.board for unit in units if not unit.board.gone]
        until = world.now() + LEAVING_TIMEOUT_S
        while world.now() < until and any(not b.seen and not b.gone for b in driver.boards):
            driver.turn()
            driver.wait(ANSWER_S)
        return [_state(unit) for unit in units], machine
    finally:
        driver.close()


def _state(unit: Unit) -> GpuState:
    unit.fault()
    lease = ""
    with contextlib.suppress(DeviceError):
        lease = lease_holder(lease_folder(), unit.gpu.uuid)
    return GpuState(
        **asdict(unit.reading()),
        label=f"{unit.label} {unit.gpu.name}",
        index=unit.gpu.index,
        name=unit.gpu.name,
        leased_by=lease,
        busy=unit.out.reason if unit.out else unit.verdict().why,
    )
