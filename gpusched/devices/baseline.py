"""How much memory a GPU uses when nobody uses it: learnt when it is idle, kept on disk, per UUID.

A released GPU is one that is back at this figure plus a tolerance. Rules: a figure is learnt only from a GPU with no
compute process on it and no more in use than an idle driver may take; within one boot it only ever falls, so that what
leaks from trial to trial adds up and is noticed. Another boot, driver or memory size starts it afresh.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from gpusched.devices.gpu import Gpu, Usage
from gpusched.folder.files import private_folder, write_durably

MIB = 1 << 20
IDLE_LIMIT_V2_BYTES = 1024 * MIB
"""More than this on a GPU without processes is not an idle driver's: somebody is there whom NVML does not name."""
IDLE_LIMIT_V1_BYTES = 2048 * MIB
"""v1 counts what the driver reserves for itself too: 0.9 GiB on an idle A100, about 1 GiB on a B200."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Idle use, without what the display's processes hold. None: the driver does not give that version."""

    v2_bytes: int | None
    v1_bytes: int | None
    residents: tuple[int, ...] = ()

    def excess_bytes(self, usage: Usage) -> int | None:
        """How much more is in use than when idle; None if that cannot be said."""
        if usage.memory_v2_bytes is not None and self.v2_bytes is not None:
            return usage.memory_v2_bytes - usage.graphics_bytes - self.v2_bytes
        if usage.memory_v1_bytes is not None and self.v1_bytes is not None:
            return usage.memory_v1_bytes - usage.graphics_bytes - self.v1_bytes
        return None


def tolerance_bytes(total_bytes: int | None) -> int:
    """2% of the GPU, at least 64 MiB and at most the 512 MiB that NVIDIA's own launcher tolerates.

    A CUDA context alone takes 300 MiB and more on the large GPUs.
    """
    if total_bytes is None:
        return 512 * MIB
    return max(64 * MIB, min(512 * MIB, total_bytes // 50))


def assumed(*, lenient: bool) -> Baseline:
    """For a GPU that was never seen idle. ``lenient``: all that an idle driver may take, for a GPU that strangers left.

    Otherwise what it usually takes, for a GPU that a trial of ours has just left.
    """
    if lenient:
        return Baseline(IDLE_LIMIT_V2_BYTES, IDLE_LIMIT_V1_BYTES)
    return Baseline(16 * MIB, 1024 * MIB)


def looks_idle(usage: Usage, known: Baseline | None, total_bytes: int | None) -> bool:
    """Whether a GPU without compute processes may be learnt from: near what is known, else plausible."""
    if known is not None:
        excess = known.excess_bytes(usage)
        return excess is not None and excess <= tolerance_bytes(total_bytes)
    if usage.memory_v2_bytes is not None:
        return usage.memory_v2_bytes - usage.graphics_bytes <= IDLE_LIMIT_V2_BYTES
    if usage.memory_v1_bytes is not None:
        return usage.memory_v1_bytes - usage.graphics_bytes <= IDLE_LIMIT_V1_BYTES
    return False


def learn(usage: Usage, known: Baseline | None, residents: tuple[int, ...] = ()) -> Baseline:
    """``usage`` is that of an idle GPU. Each figure falls or stays."""

    def lower(now: int | None, before: int | None) -> int | None:
        if now is None:
            return before
        now = max(0, now - usage.graphics_bytes)
        return now if before is None else min(now, before)

    if known is None:
        known = Baseline(None, None)
    return Baseline(
        lower(usage.memory_v2_bytes, known.v2_bytes),
        lower(usage.memory_v1_bytes, known.v1_bytes),
        tuple(sorted({*known.residents, *residents})),
    )


class BaselineFile:
    """``<state>/baselines/<uuid>.json``. One that cannot be read or was written for other circumstances is no file."""

    def __init__(self, state_dir: Path, driver: str, boot: str) -> None:
        self._folder = state_dir / "baselines"
        self._driver = driver
        self._boot = boot

    def _circumstances(self, gpu: Gpu) -> dict[str, object]:
        return {"driver": self._driver, "boot": self._boot, "total": gpu.memory_total_bytes}

    def read(self, gpu: Gpu) -> Baseline | None:
        try:
            kept = json.loads(self._path(gpu).read_bytes())
            if any(kept.get(k) != v for k, v in self._circumstances(gpu).items()):
                return None
            baseline = Baseline(kept["v2_bytes"], kept["v1_bytes"], tuple(kept["residents"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        figures = (baseline.v2_bytes, baseline.v1_bytes, *baseline.residents)
        if not all(f is None or type(f) is int for f in figures):
            return None
        return baseline

    def write(self, gpu: Gpu, baseline: Baseline) -> None:
        """Raises OSError; losing a baseline only means learning it again."""
        private_folder(self._folder)
        text = json.dumps({**asdict(baseline), **self._circumstances(gpu)}, indent=1)
        write_durably(self._path(gpu), text.encode())

    def _path(self, gpu: Gpu) -> Path:
        safe = "".join(c if c.isalnum() or c in "-." else "_" for c in gpu.uuid)
        return self._folder / f"{safe}.json"
