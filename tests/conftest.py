"""Shared by all tests: skipping of GPU tests where there is no GPU, and hypothesis profiles."""

from __future__ import annotations

import functools

import pytest
from hypothesis import settings

# Two cores shared with process-group tests: an example may be slow without being wrong.
settings.register_profile("gpusched", deadline=None)
settings.load_profile("gpusched")


@functools.cache
def why_no_gpu() -> str:
    """Why GPU tests cannot run here; empty if they can. Asks NVML, so torch is not imported for it."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"no NVIDIA driver here: {error}"
    try:
        count = pynvml.nvmlDeviceGetCount()
    finally:
        pynvml.nvmlShutdown()
    return "" if count else "the NVIDIA driver sees no GPU"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and why_no_gpu():
            item.add_marker(pytest.mark.skip(reason=why_no_gpu()))
