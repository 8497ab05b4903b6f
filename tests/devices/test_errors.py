"""The driver's errors become ours. (``test_ctypes.py``: what is asked of ``nvidia-ml-py``, through a library in C.)"""

from __future__ import annotations

from collections.abc import Callable

import pynvml
import pytest

from gpusched.devices import nvml
from gpusched.errors import DeviceError
from tests.devices.box import Box, gpu
from tests.devices.fake_nvml import forget


@pytest.fixture
def box(make_box: Callable[..., Box]) -> Box:
    return make_box(gpu(0))


def test_every_known_code_has_a_kind_and_our_exit_code(box: Box) -> None:
    nvml_errors = {
        pynvml.NVML_ERROR_NOT_SUPPORTED: nvml.NvmlUnsupported,
        pynvml.NVML_ERROR_GPU_IS_LOST: nvml.NvmlLost,
        pynvml.NVML_ERROR_NO_PERMISSION: nvml.NvmlUnsupported,
        pynvml.NVML_ERROR_UNKNOWN: nvml.NvmlError,
        12345: nvml.NvmlError,
    }
    handle = nvml.ask("nvmlDeviceGetHandleByIndex", 0)
    for code, kind in nvml_errors.items():
        box.gpus[0].failures = [(0.0, 1.0, "", code)]
        with pytest.raises(DeviceError) as raised:
            nvml.ask("nvmlDeviceGetUtilizationRates", handle)
        assert type(raised.value) is kind
        assert raised.value.exit_code == 4
        assert "nvmlDeviceGetUtilizationRates" in str(raised.value)


def test_a_function_that_an_old_driver_lacks_is_unsupported(box: Box) -> None:
    handle = nvml.ask("nvmlDeviceGetHandleByIndex", 0)
    box.driver.missing.add("nvmlDeviceGetUtilizationRates")
    forget()
    with pytest.raises(nvml.NvmlUnsupported):
        nvml.ask("nvmlDeviceGetUtilizationRates", handle)
    with pytest.raises(nvml.NvmlUnsupported, match="nvidia-ml-py"):
        nvml.ask("nvmlDeviceGetNothing", handle)
    assert nvml.ask_if_supported("nvmlDeviceGetUtilizationRates", handle) is None


def test_a_lost_gpu_is_never_taken_for_an_unsupported_question(box: Box) -> None:
    handle = nvml.ask("nvmlDeviceGetHandleByIndex", 0)
    box.gpus[0].lost_from = 0.0
    with pytest.raises(nvml.NvmlLost):
        nvml.ask_if_supported("nvmlDeviceGetUtilizationRates", handle)


def test_without_a_driver_the_message_says_what_to_do(box: Box) -> None:
    box.driver.init_code = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    with pytest.raises(nvml.NvmlAbsent, match=r"no NVIDIA driver here.*devices: cpu"):
        nvml.start()
