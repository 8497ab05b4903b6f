"""Health of a GPU, and whether it may be used: the driver's recovery action, compute mode, row remapping, ECC.

The driver's recovery action, where it gives one, is the last word. A GPU that asks for a reset *once it is empty* may
finish its trial first. Nothing is ever reset here: the commands that do it are named instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import pynvml

from gpusched.devices.nvml import Vitals

RESET = (
    "`sudo nvidia-smi --gpu-reset -i {index}`, then `gpusched gpus --readmit {index}`; in persistence mode first "
    "`sudo nvidia-smi -pm 0 -i {index}`, since nvidia-persistenced keeps the GPU open"
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


def trouble(index: int, now: Vitals, first: Vitals) -> Trouble | None:
    """Judge the vitals. ``first``: the vitals at the start, for counters that only matter when they grow."""
    if now.recovery:
        wish = _RECOVERY.get(now.recovery, f"recovery action {now.recovery}").format(index=index)
        later = now.recovery == pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET
        return Trouble(f"the driver asks for {wish}", at_once=not later)
    if now.prohibited:
        return Trouble(
            "the compute mode prohibits contexts (`sudo nvidia-smi -c DEFAULT` allows them)"
        )
    if now.rows_failed:
        return Trouble("the memory has more bad rows than can be replaced (row remapping failed)")
    before, after = first.ecc_uncorrected, now.ecc_uncorrected
    if now.recovery is None and before is not None and after is not None and after > before:
        reset = RESET.format(index=index)
        return Trouble(
            f"{after - before} uncorrectable memory errors since the start; reset it: {reset}"
        )
    return None


def notes(now: Vitals) -> tuple[str, ...]:
    """Say what slows a GPU or will matter later, for people."""
    said = []
    if now.throttle & _HEAT:
        said.append("slowed by heat")
    elif now.throttle & pynvml.nvmlClocksEventReasonHwSlowdown:
        said.append("slowed by a limit of the hardware, such as its power supply")
    if now.throttle & pynvml.nvmlClocksEventReasonSwPowerCap:
        said.append("at its power limit")
    if now.ecc_uncorrected:
        said.append(
            f"{now.ecc_uncorrected} uncorrectable memory errors since the driver was loaded"
        )
    if now.rows_pending:
        said.append("bad memory rows are replaced at the next reset")
    return tuple(said)
