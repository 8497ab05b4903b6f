"""The driver's errors become ours. (``test_ctypes.py``: what is asked of ``nvidia-ml-py``, through a library in C.)"""

from __future__ import annotations

from collections.abc import Callable

import pynvml
import pytest

from gpusched.devices import nvml
from tests.devices.box import Box, gpu

LOAD = "nvmlDeviceGetUtilizationRates"


@pytest.fixture
def box(make_box: Callable[..., Box]) -> Box:
    return make_box(gpu(0))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, nvml.NvmlUnsupported),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NvmlUnsupported),  # by an old driver
        (pynvml.NVML_ERROR_GPU_IS_LOST, nvml.NvmlLost),
        (pynvml.NVML_ERROR_NO_PERMISSION, nvml.NvmlUnsupported),
        (pynvml.NVML_ERROR_UNKNOWN, nvml.NvmlError),
        (12345, nvml.NvmlError),
    ],
)
def test_every_known_code_has_a_kind_and_our_exit_code(
    box: Box, code: int, kind: type[nvml.NvmlError]
) -> None:
    handle = nvml.ask("nvmlDeviceGetHandleByIndex", 0)
    box.gpus[0].failures = [(0.0, 1.0, "", code)]
    with pytest.raises(nvml.NvmlError, match=LOAD) as raised:
        nvml.ask(LOAD, handle)
    assert type(raised.value) is kind
    assert raised.value.exit_code == 4
    if kind is nvml.NvmlLost:  # never taken for a question that is not supported
        with pytest.raises(nvml.NvmlLost):
            nvml.ask_if_supported(LOAD, handle)
    else:
        assert nvml.ask_if_supported(LOAD, handle) is None


def test_a_function_that_an_old_library_lacks_is_unsupported(box: Box) -> None:
    with pytest.raises(nvml.NvmlUnsupported, match="nvidia-ml-py"):
        nvml.ask("nvmlDeviceGetNothing", 0)
