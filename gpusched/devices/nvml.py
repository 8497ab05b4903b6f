"""The one door to NVML: every call goes through ``ask``, NVML's errors become ours; and the driver's error events.

Rules: ``nvmlInit`` is called once and lasts as long as the process. A call may block for as long as a sick GPU pleases,
so nothing here is called by the daemon: ``helper.py`` calls it in processes of their own.

The names are those of ``nvidia-ml-py`` (``import pynvml``), which are those of the C library.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import pynvml

from gpusched.errors import DeviceError


class NvmlError(DeviceError):
    """An NVML call failed. ``code`` is NVML's, ``function`` the call."""

    def __init__(self, function: str, code: int, text: str) -> None:
        self.function = function
        self.code = code
        self.text = text
        super().__init__(_ADVICE.get(code) or f"NVML: {text} ({function})")


class NvmlUnsupported(NvmlError):
    """A question that this driver or this GPU never answers."""


class NvmlDenied(NvmlError):
    """A question that is not answered to this user."""


class NvmlNotFound(NvmlError):
    """No GPU at that index or under that name."""


class NvmlLost(NvmlError):
    """A GPU that is gone from the bus, or must be reset before anything else."""


class NvmlTimeout(NvmlError):
    """The end of the time given to a waiting call. Nothing is wrong."""


class NvmlAbsent(NvmlError):
    """A driver that is missing, not loaded, or whose halves do not fit together."""


_KINDS: dict[int, type[NvmlError]] = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: NvmlUnsupported,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: NvmlUnsupported,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: NvmlUnsupported,
    pynvml.NVML_ERROR_DEPRECATED: NvmlUnsupported,
    pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: NvmlUnsupported,
    pynvml.NVML_ERROR_NO_PERMISSION: NvmlDenied,
    pynvml.NVML_ERROR_NOT_FOUND: NvmlNotFound,
    pynvml.NVML_ERROR_GPU_IS_LOST: NvmlLost,
    pynvml.NVML_ERROR_RESET_REQUIRED: NvmlLost,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: NvmlLost,
    pynvml.NVML_ERROR_TIMEOUT: NvmlTimeout,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: NvmlAbsent,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: NvmlAbsent,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: NvmlAbsent,
}

_ADVICE = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "no NVIDIA driver here (libnvidia-ml.so.1 not found). Install the driver, start the container with its GPUs "
        "(--gpus all), or use devices: cpu"
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "the NVIDIA kernel driver is not loaded. Try `nvidia-smi`; if it fails too, load or reinstall the driver, or "
        "use devices: cpu"
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver was updated while it was loaded: its kernel and user halves differ. Reboot, or use "
        "devices: cpu"
    ),
}

XIDS_MAX = 1000
"""Events of a storm that are read in one round."""
FAILURES_MAX = 3
"""Failures in a row after which ``deaf`` says why no error events come."""
WANTED = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
DOUBLE_BIT_XID = 48
"""The XID that goes with a double-bit error event, which carries none."""

started = False


def has_library() -> bool:
    """Tell whether the driver's library is on this machine. Nothing is asked of the driver."""
    try:
        return pynvml.nvmlLib is not None or bool(ctypes.CDLL("libnvidia-ml.so.1"))
    except OSError:
        return False


def start() -> None:
    """Initialise NVML unless it is already. May take seconds; raises NvmlAbsent without a driver."""
    global started
    if not started:
        ask("nvmlInit")
        started = True


def error_of(function: str, code: int, text: str) -> NvmlError:
    """Return the error of the kind that NVML's ``code`` stands for."""
    return _KINDS.get(code, NvmlError)(function, code, text)


def ask(function: str, *arguments: object) -> Any:
    """Call ``pynvml.<function>``; its answer, or an ``NvmlError`` of the right kind.

    A function that the installed ``nvidia-ml-py`` does not have is as unsupported as one the driver does not have.
    """
    call = getattr(pynvml, function, None)
    if call is None:
        raise NvmlUnsupported(
            function, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "not in the installed nvidia-ml-py"
        )
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise error_of(function, int(error.value), str(error)) from None


def ask_if_supported(function: str, *arguments: object) -> Any | None:
    """Call as ``ask`` does, but return None where driver, GPU or rights give no answer; a lost GPU still raises."""
    try:
        return ask(function, *arguments)
    except NvmlLost:
        raise
    except NvmlError:
        return None


class ErrorEvents:
    """Critical errors (XIDs) as the driver reports them for one GPU. ``deaf``: why none come; empty where they do."""

    def __init__(self) -> None:
        self.deaf = ""
        self._events: Any = None
        self._failures = 0

    def take(self, board: Any, *, retry: bool) -> tuple[int, ...]:
        """Return each error that has come since the last call once, registering first; a lost GPU is noticed elsewhere.

        ``retry``: register again after a failure.
        """
        heard: set[int] = set()
        if self._events is None and self._failures and not retry:
            return ()
        try:
            if self._events is None:
                self._register(board)
            for _ in range(XIDS_MAX):
                event = ask("nvmlEventSetWait_v2", self._events, 0)
                is_xid = event.eventType == pynvml.nvmlEventTypeXidCriticalError
                heard.add(int(event.eventData) if is_xid else DOUBLE_BIT_XID)
        except NvmlTimeout:
            self._failures = 0
        except NvmlError as error:
            self._failures += 1
            if isinstance(error, NvmlUnsupported) or self._failures >= FAILURES_MAX:
                self.deaf = error.text
            if self._events is not None:
                with contextlib.suppress(NvmlError):
                    ask("nvmlEventSetFree", self._events)
            self._events = None
        return tuple(sorted(heard))

    def _register(self, board: Any) -> None:
        # Asking for an event that a card does not have would refuse the whole request.
        wanted = WANTED & int(ask("nvmlDeviceGetSupportedEventTypes", board))
        if not wanted & pynvml.nvmlEventTypeXidCriticalError:
            code = pynvml.NVML_ERROR_NOT_SUPPORTED
            raise NvmlUnsupported("nvmlDeviceGetSupportedEventTypes", code, "not supported")
        self._events = ask("nvmlEventSetCreate")
        ask("nvmlDeviceRegisterEvents", board, wanted, self._events)
        self.deaf = ""
