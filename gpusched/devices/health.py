"""Health of a GPU, and whether it may be used: XIDs, the driver's recovery action, row remapping, ECC, throttling.

Rules: a lost GPU is lost; of any other the driver's recovery action, where it gives one, is the last word. XIDs that
come from the application's own faults are ignored, unknown ones are noted. A GPU that asks for a reset *once it is
empty* may finish its trial first. XIDs are a hint and no more: 79, 119 and 120 may never come as events
(NVIDIA/DCGM#162), and a GPU that does not answer any more is known by that. Nothing is ever reset here: the commands
that do it are named instead.

XIDs: https://docs.nvidia.com/deploy/xid-errors (catalogue with recovery action); those ignored are NVIDIA's Kubernetes
device plugin's six, and the two that the catalogue marks "restart app".
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pynvml

from gpusched.devices.gpu import Vitals

IGNORED_XIDS = {
    8: "the application's work did not end in time",
    11: "the application sent what the GPU cannot read",
    13: "graphics engine exception",
    31: "memory page fault",
    43: "the application's channel was stopped",
    45: "preemptive clean-up after an application ended",
    68: "video processor exception",
    109: "context switch timeout",
}
"""The application's own doing: its trial fails by itself, the GPU is as good as before."""

RECORDED_XIDS = {
    63: "a memory page or row was marked for replacement",
    92: "many corrected memory errors",
    94: "an uncorrectable memory error, contained: its application was ended",
    154: "the recovery action changed",
}
"""Announcements. What follows from them is what the recovery action and the row remapper say."""

HURTING_XIDS = {94}
"""Of those: the driver ended an application for what the memory did, and the GPU goes on."""

FATAL_XIDS = {
    48: "double-bit memory error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    64: "a memory page or row could not be replaced",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    95: "an uncontained memory error",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
}
"""Fatal where the driver gives no recovery action to judge by. An XID in none of the three tables is noted."""
LOST_XID = 79
XID_PATIENCE_S = 10.0
"""Time to wait for vitals read after an XID that must be judged by them."""

RESET = (
    "`gpusched gpus --let-go {index}`, then `sudo nvidia-smi --gpu-reset -i {index}`, then "
    "`gpusched gpus --readmit {index}`; in persistence mode first `sudo nvidia-smi -pm 0 -i {index}`, since "
    "nvidia-persistenced keeps the GPU open as well"
)
"""Processes that hold a GPU open are in the way of a reset: NVIDIA/gpu-operator#118, NVIDIA/NVSentinel#1690."""

_RECOVERY = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: f"a reset of the GPU ({RESET})",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "a reboot",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "an end to all work that uses the GPU over NVLink or PCIe peers",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: f"a reset once the GPU is empty ({RESET})",
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "a recovery of the IMEX domain",
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: "a reset of the GPU's bus",
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: "a reboot of the machine",
}

_HEAT = (
    pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """A reason not to use a GPU. ``at_once``: even a trial on the GPU cannot go on; else the trial may finish first."""

    reason: str
    at_once: bool = True


def trouble(index: int, now: Vitals, first: Vitals | None) -> Trouble | None:
    """Judge the vitals. ``first``: the vitals at the start, for counters that only matter when they grow."""
    if now.recovery:
        wish = _RECOVERY.get(now.recovery, f"recovery action {now.recovery}").format(index=index)
        later = now.recovery == pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET
        return Trouble(f"the driver asks for {wish}", at_once=not later)
    if now.prohibited:
        return Trouble(
            "the compute mode prohibits contexts (`sudo nvidia-smi -c DEFAULT` allows them)"
        )
    if now.fabric_missing:
        return Trouble(
            "NVLink's fabric is not set up, so CUDA refuses the GPU (error 802): `sudo systemctl start "
            "nvidia-fabricmanager`, of the driver's own version",
            at_once=False,
        )
    if now.rows_failed:
        return Trouble("the memory has more bad rows than can be replaced (row remapping failed)")
    if now.recovery is None and first is not None:
        before, after = first.ecc_uncorrected, now.ecc_uncorrected
        if before is not None and after is not None and after > before:
            return Trouble(
                f"{after - before} uncorrectable memory errors since the start; reset it: "
                f"{RESET.format(index=index)}"
            )
    return None


def xid_trouble(
    xid: int, index: int, now: Vitals | None, first: Vitals | None, others: Collection[int] = ()
) -> Trouble | None:
    """Judge an XID. ``now``: vitals read after the XID came, None without any; ``others``: came with it."""
    if xid in IGNORED_XIDS:
        return None
    if xid == 48 and 94 in others:  # the double-bit error that was contained
        xid = 94
    meaning = FATAL_XIDS.get(xid) or RECORDED_XIDS.get(xid)
    if now is not None and xid != LOST_XID and (now.recovery is not None or xid in RECORDED_XIDS):
        return trouble(index, now, first)
    return Trouble(f"XID {xid}: {meaning}") if meaning else None


class Xids:
    """XIDs of one GPU that are to be judged still, by vitals read after they came."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, float]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def note(self, number: int, at: float) -> None:
        self._waiting.append((number, at))

    def clear(self) -> None:
        self._waiting.clear()

    def judge(self, index: int, now: float, vitals: Vitals | None, first: Vitals | None) -> str:
        """Say why one of them condemns the GPU. An XID that lacks fresh vitals waits for them."""
        numbers = [number for number, _ in self._waiting]
        waiting, said = [], ""
        for number, at in self._waiting:
            fresh = vitals if vitals is not None and vitals.at > at else None
            is_decided = number in IGNORED_XIDS or number == LOST_XID
            if not is_decided and fresh is None and now - at < XID_PATIENCE_S:
                waiting.append((number, at))
                continue
            ill = xid_trouble(number, index, fresh, first, numbers)
            said = said or (ill.reason if ill else "")
        self._waiting = waiting
        return said


def is_unknown(xid: int) -> bool:
    """Tell whether nothing is known of an XID: it is noted."""
    return not any(xid in known for known in (IGNORED_XIDS, RECORDED_XIDS, FATAL_XIDS))


def notes(now: Vitals) -> tuple[str, ...]:
    """Say what slows a GPU or will matter later, for people."""
    said = []
    if now.throttle & _HEAT:
        said.append("slowed by heat")
    if now.throttle & pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown:
        said.append("slowed by the power supply (power brake)")
    elif now.throttle & pynvml.nvmlClocksEventReasonHwSlowdown and not now.throttle & _HEAT:
        said.append("slowed by a limit of the hardware")
    if now.throttle & pynvml.nvmlClocksEventReasonSwPowerCap:
        said.append("at its power limit")
    if now.ecc_uncorrected:
        said.append(
            f"{now.ecc_uncorrected} uncorrectable memory errors since the driver was loaded"
        )
    if now.rows_pending or now.pages_pending:
        said.append("bad memory rows are replaced at the next reset")
    return tuple(said)
