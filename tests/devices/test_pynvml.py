"""What the product asks of ``nvidia-ml-py`` is there, under that name and with as many arguments.

The fake driver stands below the library, so a call that the tests make is a call that exists. This finds the others:
every name of NVML in the source, whether a test gets there or not.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

import gpusched
from gpusched.devices import nvml
from gpusched.errors import DeviceError
from tests.devices.box import Box, gpu
from tests.devices.fake_nvml import forget

ROOT = Path(gpusched.__file__).parent
ASKING = {"ask": 0, "ask_if_supported": 0, "_try": 1}
"""Our functions that name NVML's, by the place of the name among their arguments."""


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted([*ROOT.rglob("*.py"), *ROOT.parent.joinpath("scripts").rglob("*.py")]):
        text = path.read_text()
        if "nvml" in text:
            yield path, ast.parse(text)


def functions() -> dict[str, set[int]]:
    """Every NVML function that is named, with how many arguments it is called (empty: by way of a table)."""
    found: dict[str, set[int]] = {}
    for _, tree in sources():
        for node in ast.walk(tree):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, str) and re.fullmatch(r"nvml[A-Z]\w+", value):
                found.setdefault(value, set())
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                place = ASKING.get(node.func.id)
                name = None if place is None else node.args[place]
                if isinstance(name, ast.Constant):
                    found.setdefault(str(name.value), set()).add(len(node.args) - 1 - place)
    return found


def constants() -> set[str]:
    return {
        node.attr
        for _, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "pynvml"
    }


FUNCTIONS = functions()


def test_they_are_found() -> None:
    assert len(FUNCTIONS) > 15
    assert len(constants()) > 20
    assert FUNCTIONS["nvmlDeviceGetMemoryInfo"] == {1, 2}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_is_there_and_takes_what_it_is_given(name: str) -> None:
    signature = inspect.signature(getattr(pynvml, name))
    for count in FUNCTIONS[name]:
        signature.bind(*range(count))
    if not FUNCTIONS[name]:  # those in tables get the handle, or two of a pair and a number
        needed = [p for p in signature.parameters.values() if p.default is p.empty]
        assert 1 <= len(needed) <= 3


def test_constants_are_there_and_are_numbers() -> None:
    others = {"NVMLError", "nvmlLib"}
    for name in sorted(constants() - others):
        found = getattr(pynvml, name)  # scripts call some functions by name
        assert type(found) is int or inspect.isfunction(found), name


def test_the_field_of_the_recovery_action() -> None:
    assert pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION == 230


@pytest.mark.parametrize(
    ("structure", "fields", "size"),
    [
        ("c_nvmlMemory_v2_t", {"version", "total", "reserved", "used", "free"}, 40),
        ("c_nvmlMemory_t", {"total", "used", "free"}, 24),
        ("c_nvmlProcessInfo_v3_t", {"pid", "usedGpuMemory"}, 24),
        ("c_nvmlProcessInfo_v2_t", {"pid", "usedGpuMemory"}, 24),
        ("c_nvmlFieldValue_t", {"fieldId", "valueType", "nvmlReturn", "value"}, 40),
    ],
)
def test_structures_are_as_the_c_header_has_them(
    structure: str, fields: set[str], size: int
) -> None:
    kind = getattr(pynvml, structure)
    assert {field[0] for field in kind._fields_} >= fields
    assert ctypes.sizeof(kind) == size


def test_the_version_of_the_memory_structure_is_its_size_and_number() -> None:
    assert pynvml.nvmlMemory_v2 == ctypes.sizeof(pynvml.c_nvmlMemory_v2_t) | 2 << 24


# ---------------------------------------------------------------- errors become ours


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
