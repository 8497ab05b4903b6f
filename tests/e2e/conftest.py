"""Every end-to-end test leaves nothing behind: what still runs of the experiment is ended, and then the test fails."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.sandbox import Sandbox


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    box = Sandbox(tmp_path)
    yield box
    for process in box.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    left = _wait_until_gone(box, 20.0)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert not left, f"left behind: {left}\n{box.log()}"


def _wait_until_gone(box: Sandbox, limit_s: float) -> list[psutil.Process]:
    end = time.monotonic() + limit_s
    while (left := box.processes()) and time.monotonic() < end:
        time.sleep(0.05)
    return left
