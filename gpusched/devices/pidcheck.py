"""Whether the pids that NVML names are pids of ours: inside a container they often are not.

The driver knows no pid namespaces: in a container NVML may name pids of the host, or of the container, or none. Outside
one there is nothing to test. Inside, a child opens a CUDA context on a GPU that is ours and empty, and is looked for in
NVML's list. Where it does not show up under its own pid, processes cannot be told apart, and a release is confirmed by
the empty process tree, memory, and the list being as it was before: said once, cured by ``--pid=host``.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable
from typing import Literal, Protocol

from gpusched.devices.gpu import Usage

Finding = Literal["visible", "hidden", "absent", "unknown"]

READY_TIMEOUT_S = 20.0

_CHILD = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
failed = (
    cuda.cuInit(0)
    or cuda.cuDeviceGet(ctypes.byref(device), 0)
    or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
)
print("failed" if failed else "ready", flush=True)
sys.stdin.read()
"""


class Child(Protocol):
    """A process with a CUDA context."""

    @property
    def pid(self) -> int: ...

    def close(self) -> None:
        """End it, and wait until it is gone."""
        ...


class ContextChild:
    """A process that opens a CUDA context through the driver's own library, without torch, and waits.

    Raises OSError if it cannot be started or gets no context in time.
    """

    def __init__(self, uuid: str) -> None:
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
        )
        try:
            if self._first_word() != b"ready":
                raise OSError("no CUDA context could be opened")
        except OSError:
            self.close()
            raise

    def _first_word(self) -> bytes:
        stream = self._process.stdout
        assert stream is not None
        if not select.select([stream], [], [], READY_TIMEOUT_S)[0]:
            raise OSError(f"no CUDA context within {READY_TIMEOUT_S:.0f} s")
        return stream.readline().strip()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def self_test(start: Callable[[], Child], look: Callable[[], Usage | None]) -> tuple[Finding, str]:
    """Open a context, look for it, close it. ``look`` gives a reading begun after it was called, or None.

    Also returns what went wrong if the test itself failed.
    """
    before = look()
    if before is None or before.processes is None:
        return "absent", ""
    try:
        child = start()
    except OSError as error:
        return "unknown", str(error)
    try:
        during = look()
    finally:
        child.close()
    if during is None or during.processes is None:
        return "unknown", "NVML did not answer"
    pids = {process.pid for process in during.compute}
    if child.pid in pids:
        return "visible", ""
    return ("hidden" if pids - {process.pid for process in before.compute} else "absent"), ""


MEANING = {
    "hidden": (
        "NVML names processes by pids of outside this container: whose they are cannot be told. A release is confirmed "
        "by the empty process tree, memory, and a list that is empty again. --pid=host lifts this"
    ),
    "absent": (
        "NVML names no processes of this container: a release is confirmed by the empty process tree and memory alone, "
        "and a stranger on a GPU is noticed by memory alone. --pid=host lifts this"
    ),
    "unknown": (
        "it could not be tested whether NVML names this container's processes ({why}); they are treated as if it does "
        "not. --pid=host lifts this"
    ),
}
