"""Modules that the warm server imports once, so that no trial has to, and the memory they leave to every fork.

Forking copies a page-table entry per page in use and ending frees them again, so a 300 MB image of 4 KiB pages costs
about 5 ms each time, per process. In huge pages it is a fifth of that. And what importing torch registered to be done
at interpreter exit belongs to the server's process, not to each of its forks.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from gpusched.protocol import PreloadFailed
from gpusched.worker.context import uses_cuda

_MADV_COLLAPSE = 25
_HUGE = 2 << 20
_PIECE = 16 * _HUGE

LIGHT = ("gpusched.runtime.agentless", "gpusched.worker.start")
"""Needed by a rank without torch."""

NEEDED = (
    "gpusched.runtime.agent",
    "gpusched.worker.start",
    "gpusched.worker.loader",
    "gpusched.worker.state",
    "gpusched.worker.weights",
)
"""Needed before any launch: torchrun's agent, and what ``gpusched.init`` and a trial's methods import."""

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
"""Imported by DDP, FSDP and every torch optimizer at first use, in pieces that each take a fraction of a second."""


class Imports:
    """``modules`` are still to be imported, in this order; of those the recipe asked for the ones in ``preload``."""

    def __init__(self, modules: Sequence[str], preload: Sequence[str]) -> None:
        self._due = deque(modules)
        self._preload = frozenset(preload)
        #: Whether a module has initialised CUDA, which a forked rank could then not use.
        self.taint = False

    @property
    def are_due(self) -> bool:
        return bool(self._due)

    @property
    def wanted(self) -> str | None:
        """Next module, if the recipe asked for it; importing it may end this process."""
        return self._due[0] if self._due and self._due[0] in self._preload else None

    def forget(self) -> None:
        """Drop the imports that are still due: their daemon is gone."""
        self._due.clear()

    def next(self) -> PreloadFailed | None:
        """Import the next module; say what became of it if the recipe's failed. Any of torch's may be missing."""
        module = self._due.popleft()
        wanted = module in self._preload
        before = _tasks()
        try:
            importlib.import_module(module)
        except BaseException as problem:
            why = f"{type(problem).__name__}: {problem}"
            return PreloadFailed(module, why) if wanted else None
        if uses_cuda():
            why = "importing it initialises CUDA, which forked ranks could then not use"
            if (
                not wanted
            ):  # with CUDA_VISIBLE_DEVICES=MIG-.. torch asks CUDA itself instead of NVML
                return PreloadFailed(module, f"{why}; set launch: cold")
        elif wanted and _has_joined():
            why = "importing it joins a trial, which every rank must do for itself (gpusched.init(), gpusched.trial)"
        elif wanted and (names := _threads_since(before)):
            why = (
                f"importing it starts threads that forked ranks would not have: {', '.join(names)}"
            )
        else:
            return None
        self.taint = True
        return PreloadFailed(module, why, tainted=True)


def _has_joined() -> bool:
    start = sys.modules.get("gpusched.worker.start")
    return start is not None and start.has_joined()


def import_agent() -> None:
    """Import what a launch needs. OpenBLAS starts threads as it is loaded; a shim is forked without any."""
    alone = "OPENBLAS_NUM_THREADS" not in os.environ
    if alone:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    for module in NEEDED:
        importlib.import_module(module)
    importlib.import_module("gpusched.runtime.birth").openblas_controls()
    if alone:
        del os.environ["OPENBLAS_NUM_THREADS"]


def _tasks() -> set[int]:
    """Return the threads of this process, as the kernel numbers them."""
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def _threads_since(before: set[int]) -> list[str]:
    """Name the threads started since: Python's, and those that a library has named.

    Threads without a name of their own are pools of arithmetic (OpenBLAS, OpenMP), which see to themselves in a fork.
    """
    python = {thread.native_id: thread.name for thread in threading.enumerate()}
    own = Path("/proc/self/comm").read_text()
    names = []
    for task in sorted(_tasks() - before):
        with suppress(OSError):
            name = Path(f"/proc/self/task/{task}/comm").read_text()
            if task in python or name != own:
                names.append(python.get(task) or name.strip())
    return names


# ---------------------------------------------------------------------- memory


def settle() -> None:
    """Make forks cheap to leave. Call before the first fork, and again after further imports."""
    # There is no public way to ask for all finalizers; those of torch's own libraries cost 7 ms at every exit.
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False
    gc.freeze()


def huge_page_pieces() -> Iterator[tuple[int, int]]:
    """Yield start and length of the pieces of private memory that can be in huge pages; a piece takes milliseconds."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, _, *name = line.split(maxsplit=5)
        if not access.startswith("rw") or (name and name[0] != "[heap]"):
            continue
        start, end = (int(word, 16) for word in addresses.split("-"))
        start, end = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
        for at in range(start, end, _PIECE):
            yield at, min(_PIECE, end - at)


def use_huge_pages(start: int, length: int) -> None:
    """Have the kernel move this piece into huge pages now (Linux 6.1); where it cannot, nothing changes."""
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_COLLAPSE)
