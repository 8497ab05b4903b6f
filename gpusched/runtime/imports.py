"""What the warm server imports once, so that no trial has to: some of it at once, the rest piece by piece."""

from __future__ import annotations

import importlib
import os
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpusched.protocol import PreloadFailed

LIGHT = ("gpusched.runtime.alone", "gpusched.runtime.rank", "gpusched.worker.start")
"""What a rank without torch needs."""

NEEDED = (
    "gpusched.runtime.agent",
    "gpusched.runtime.rank",
    "gpusched.worker.start",
    "gpusched.worker.loader",
    "gpusched.worker.state",
    "gpusched.worker.weights",
)
"""Before anything can be launched: torchrun's agent, and what ``gpusched.init`` and a trial's methods import."""

HEAVY = (
    "sympy",
    "torch.fx.experimental.symbolic_shapes",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch._inductor",
    "torch._dynamo",
    "torch.nn.parallel",
    "torch.utils.serialization.config",
)
"""What DDP, FSDP and every torch optimizer import at first use, in pieces that each take a fraction of a second."""


class Imports:
    """``modules`` are still to be imported, in this order; of those the recipe asked for the ones in ``preload``."""

    def __init__(self, modules: Sequence[str], preload: Sequence[str]) -> None:
        self._due = deque(modules)
        self._preload = frozenset(preload)
        #: A module has initialised CUDA, which a forked rank could not use any more.
        self.taint = False

    @property
    def are_due(self) -> bool:
        return bool(self._due)

    @property
    def wanted(self) -> str | None:
        """The next module, if the recipe asked for it: it may end this process."""
        return self._due[0] if self._due and self._due[0] in self._preload else None

    def forget(self) -> None:
        """Nobody needs them any more."""
        self._due.clear()

    def next(self) -> PreloadFailed | None:
        """Import the next one; what to say if it was the recipe's and failed. Any of torch's own may be missing."""
        module = self._due.popleft()
        wanted = module in self._preload
        try:
            importlib.import_module(module)
        except BaseException as problem:
            why = f"{type(problem).__name__}: {problem}"
        else:
            if not (wanted and _uses_cuda()):
                return None
            self.taint = True
            why = "importing it initialises CUDA, which forked ranks could then not use"
        return PreloadFailed(module, why, tainted=self.taint) if wanted else None


def import_agent() -> None:
    """What a launch needs. OpenBLAS starts threads when it is loaded, which must not be there when a shim is forked."""
    alone = "OPENBLAS_NUM_THREADS" not in os.environ
    if alone:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    for module in NEEDED:
        importlib.import_module(module)
    importlib.import_module("gpusched.runtime.birth").openblas_controls()
    if alone:
        del os.environ["OPENBLAS_NUM_THREADS"]


def _uses_cuda() -> bool:
    """By torch, or by anything that has mapped the driver's memory manager."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return True
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(entry.readlink()).startswith("/dev/nvidia-uvm"):
                return True
    return False
