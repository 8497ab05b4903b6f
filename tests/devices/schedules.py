"""Random schedules on a scripted driver: everything that can go wrong with GPUs, in virtual time, from a seed.

``Schedule`` plays the executor: it launches wherever a device is free, ends trials in all sorts of ways, asks for
releases and re-admissions, and obeys every event. What it asks is the real ``CudaDevices``, on helpers in virtual
time. What it is told is checked against the truth, which only the world knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpusched.devices.base import (
    DeviceEvent,
    Quarantined,
    Readmitted,
    Released,
)
from gpusched.devices.cuda import CudaDevices
from gpusched.devices.helper import RETRY_S
from gpusched.errors import DeviceError
from tests.devices.fake_driver import GIB, LIST, NEVER, FakeGpu, FakeProcesses
from tests.devices.fake_nvml import installed
from tests.devices.schedule_world import SICK_S, World

LIMIT_S = 60.0
"""The executor's: a release that takes longer quarantines the device."""
STEP_S = 0.1
BUSY_FOR_S = 50.0
"""How long trials start and things happen."""
SEEN_WITHIN_S = 2.5
"""A stranger, or a loss, must be noticed within this while the driver answers, within ``SICK_S`` while it does not."""
BACK_WITHIN_S = 12.0
"""A device whose reason has passed must be in use again within this (3 s clean in a row, and readings between)."""
HANGS_S = 7.0
"""A driver that hangs must be noticed within this."""


@dataclass
class Trial:
    atoms: list[str]
    pids: list[int]
    ends_at: float


@dataclass
class Atom:
    gpus: list[FakeGpu]
    state: str = "FREE"
    reason: str = ""
    drained_at: float = 0.0


class Schedule(World):
    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed)
        self.folder = folder
        self.trials: list[Trial] = []
        self.atoms: dict[str, Atom] = {}
        self.clean_since: dict[str, float] = {}

    def run(self) -> Counter[str]:
        with installed(self.driver):
            # (By memory alone a stranger that was there first cannot be told from what an idle driver takes.)
            if self.pids and self.rng.random() < 0.2:
                self._stranger(self.rng.choice(self.driver.gpus))
            self.devices = self._open()
            try:
                self._play()
            finally:
                self.devices.close()
        return self.counts

    def _open(self) -> CudaDevices:
        by_uuid = {gpu.uuid: gpu for gpu in self.driver.gpus}
        devices = self.find()
        try:
            inventory = devices.open(self)
        except DeviceError:  # the only GPU is a stranger's
            assert any(self.dirty(gpu) for gpu in self.driver.gpus)
            devices.close()
            self._leave()
            self.clock.advance(10.0)
            devices = self.find()
            inventory = devices.open(self)
        self.inventory = inventory
        self.atoms = {}
        for device in inventory:
            atom = Atom([by_uuid[device.id.partition("#")[0]]])
            if not device.usable:
                assert device.why_not
                atom.state, atom.reason = "QUARANTINED", device.why_not
            self.atoms[device.id] = atom
        return devices

    def find(self, known: Sequence[str] | None = None) -> CudaDevices:
        return CudaDevices(
            "cuda",
            known=known,
            atoms_per_gpu=self.atoms_per_gpu,
            environ={"XDG_STATE_HOME": str(self.folder)},
            world=self.clock,
            processes=FakeProcesses(self.driver, visible=self.driver.pids == "same"),
        )

    def _play(self) -> None:
        while self.now < BUSY_FOR_S:
            self._happen()
            self._launch()
            self._turn()
        self._leave()
        for trial in self.trials:
            trial.ends_at = min(trial.ends_at, self.now + 1.0)
        hanging = [end for board in self.driver.gpus for _, end in board.hangs]
        while self.trials or self._draining() or self.now < max(hanging, default=0.0):
            self._turn()
        self._heal(everything=False)
        self._turns(SICK_S + BACK_WITHIN_S + RETRY_S)
        self._check_end()

    def _turns(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self._turn()

    def _turn(self) -> None:
        self.clock.advance(STEP_S)
        for trial in list(self.trials):
            if self.now >= trial.ends_at:
                self._end(trial)
        if int(self.now / STEP_S) % 5 == 0:
            self.devices.readings()
            self._check_liveness()

    def _launch(self) -> None:
        if self.now < self.calm_until:
            return
        free = [name for name, atom in self.atoms.items() if atom.state == "FREE"]
        while free and self.rng.random() < 0.7:
            most = 1 if self.atoms_per_gpu > 1 else len(free)
            chosen = [free.pop() for _ in range(self.rng.randint(1, min(most, 2)))]
            for name in chosen:
                self.check_launch(name)
                self.atoms[name].state = "HELD"
            self.devices.take(chosen)
            self.counts["launches"] += 1
            self._start_ranks(chosen)

    def _start_ranks(self, chosen: list[str]) -> None:
        pids = []
        for gpu in [gpu for name in chosen for gpu in self.atoms[name].gpus]:
            for _ in range(self.rng.choice([1, 1, 1, 2])):
                pids.append(self.new_pid())
                size = self.rng.choice([0.3, 1, 5, 7]) * GIB
                context = self.driver.start(gpu, pids[-1], int(size))
                context.since = self.now + self.rng.uniform(0.0, 1.0)
        self.trials.append(Trial(chosen, pids, self.now + self.rng.uniform(1.5, 15.0)))

    def _end(self, trial: Trial) -> None:
        """The trial's tree is empty now; the driver's clean-up has a pace of its own."""
        self.trials.remove(trial)
        for pid in trial.pids:
            listed, memory = self.lag(), self.lag()
            is_stuck = self.rng.random() < 0.1  # alive as far as anybody can see
            if is_stuck and self.atoms_per_gpu == 1:  # else ``Inventory`` holds its devices back
                self.driver.table[pid].ends = self.now + min(listed, 1e6)
            self.driver.end(pid, listed, memory)
            self.driver.table[pid].ends = max(self.driver.table[pid].ends, self.now)
        self.devices.drain(trial.atoms)
        drained = [name for name in trial.atoms if self.atoms[name].state == "HELD"]
        for name in drained:
            atom = self.atoms[name]
            atom.state, atom.drained_at = "DRAINING", self.now
            self.clean_since.pop(name, None)
        if drained:
            self.devices.confirm_release(drained, LIMIT_S)

    def lag(self) -> float:
        rng = self.rng
        return rng.choices(
            [rng.uniform(0, 0.3), rng.uniform(0, 8), rng.uniform(8, 100), NEVER], [60, 28, 10, 2]
        )[0]

    def _draining(self) -> list[str]:
        return [name for name, atom in self.atoms.items() if atom.state == "DRAINING"]

    # ------------------------------------------------------------ as the host of the devices

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.clock.after(delay_s, action)

    def emit(self, event: DeviceEvent) -> None:
        match event:
            case Released(devices):
                for name in devices:
                    self._released(name)
            case Quarantined():
                self._quarantined(event)
            case Readmitted(device):
                self._readmitted(device)
            case _:
                pass

    def _released(self, name: str) -> None:
        atom = self.atoms[name]
        assert atom.state == "DRAINING", f"{name} is released and {atom.state}"
        self.check_clean(name, "released")
        atom.state = "FREE"
        self.counts["released"] += 1

    def _quarantined(self, event: Quarantined) -> None:
        assert event.reason, "a quarantine without a reason"
        atom = self.atoms[event.device]
        if event.reason.startswith("not released after"):
            assert atom.state == "DRAINING"
            assert self.now - atom.drained_at >= LIMIT_S - 1e-6
            self.counts["timed out"] += 1
        else:
            self.counts["fault"] += 1
        if atom.state == "HELD":
            grave = any(self.ill(gpu) for gpu in atom.gpus) or "lost" in event.reason
            assert grave, f"a trial is killed for: {event.reason}"
            for trial in self.trials:
                if event.device in trial.atoms:
                    trial.ends_at = min(trial.ends_at, self.now + self.rng.uniform(0, 2))
        atom.state, atom.reason = "QUARANTINED", event.reason
        self.clean_since.pop(event.device, None)

    def _readmitted(self, name: str) -> None:
        atom = self.atoms[name]
        assert atom.state == "QUARANTINED", f"{name} is back and {atom.state}"
        assert not any(name in trial.atoms for trial in self.trials), f"{name} is back too early"
        for gpu in atom.gpus:
            wrong = self.dirty(gpu, foreign_older_than=SEEN_WITHIN_S, share=name)
            assert not wrong, f"{name} is back: {wrong}"
        atom.state = "FREE"
        self.counts["recovered"] += 1

    # ------------------------------------------------------------ what must hold

    def _slack_s(self, gpu: FakeGpu) -> float:
        return SICK_S if self.sick(gpu) else SEEN_WITHIN_S

    def check_launch(self, name: str) -> None:
        for gpu in self.atoms[name].gpus:
            slack_s = self._slack_s(gpu)
            wrong = self.dirty(gpu, foreign_older_than=slack_s, share=name)
            assert not wrong, f"launch on {name}: {wrong}"
            known = self.now - self.bad_since.get(gpu.uuid, self.now) > slack_s
            assert not (known and self.ill(gpu)), f"launch on {name}: {self.ill(gpu)}"
            assert self.hangs_for(gpu) < HANGS_S, f"launch on {name}: its driver hangs"

    def check_clean(self, name: str, how: str) -> None:
        for gpu in self.atoms[name].gpus:
            wrong = self.dirty(gpu, foreign_older_than=self._slack_s(gpu))
            assert not wrong, f"{name} {how}: {wrong}"

    def _check_liveness(self) -> None:
        self.check_waiting(
            {
                name: (atom.state, atom.reason)
                for name, atom in self.atoms.items()
                if atom.state in ("DRAINING", "QUARANTINED")
            },
            released_within_s=2.0,
        )

    def check_waiting(
        self, waiting: Mapping[str, tuple[str, str]], released_within_s: float
    ) -> None:
        """A device that is clean and answers is not kept waiting, whatever its neighbours do.

        ``waiting``: state and reason of those that drain or are out of use.
        """
        for name in self.clean_since.keys() - waiting.keys():
            del self.clean_since[name]
        for name, (state, reason) in waiting.items():
            gpus = self.atoms[name].gpus
            if any(self.dirty(gpu) or self.ill(gpu) or self.sick(gpu) for gpu in gpus):
                self.clean_since.pop(name, None)
                continue
            waited_s = self.now - self.clean_since.setdefault(name, self.now)
            limit_s = released_within_s if state == "DRAINING" else BACK_WITHIN_S
            if any(gpu.uuid in self.was_bad for gpu in gpus):
                limit_s += RETRY_S
            assert waited_s < limit_s, f"{name} is clean for {waited_s:.1f} s, {state}: {reason}"

    def _check_end(self) -> None:
        """Trials are over: every device is FREE or QUARANTINED, with a reason that is still true if it can pass."""
        for name, atom in self.atoms.items():
            assert atom.state in ("FREE", "QUARANTINED"), f"{name} is {atom.state}"
            if atom.state == "FREE":
                for gpu in atom.gpus:
                    assert not self.dirty(gpu), f"{name} is FREE: {self.dirty(gpu)}"
                    assert not self.ill(gpu), f"{name} is FREE: {self.ill(gpu)}"
            else:
                assert atom.reason
                self.counts["quarantined at the end"] += 1


class Shared(Schedule):
    """Two trials a GPU; NVML says whose each process is, or nothing could be shared."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.atoms_per_gpu = 2
        self.lists = self.pids = True
        self.driver.pids = "same"
        for gpu in self.driver.gpus:
            gpu.unsupported -= {LIST}
        self.begun: list[Trial] = []

    def _start_ranks(self, chosen: list[str]) -> None:
        super()._start_ranks(chosen)
        self.begun.append(self.trials[-1])

    def neighbours(self, share: str) -> set[int]:
        elsewhere = [trial for trial in self.begun if share and share not in trial.atoms]
        return {pid for trial in (*self.trials, *elsewhere) for pid in trial.pids}


def play(kind: type[Schedule], seeds: Iterable[int], folder: Path) -> Counter[str]:
    """What happened in a run for each seed. A failure names its seed: ``kind(seed, folder).run()`` repeats it."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        home = folder / str(seed)
        home.mkdir(mode=0o700)
        try:
            counts += kind(seed, home).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    return counts
