"""Every end-to-end test leaves nothing behind: what still runs of the experiment is ended, and then the test fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.sandbox import Sandbox
from tests.rig import end_all


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    box = Sandbox(tmp_path)
    yield box
    for process in box.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    until = time.monotonic() + 20.0
    while (left := box.processes()) and time.monotonic() < until:
        time.sleep(0.05)
    if left:
        end_all(box.processes)
    assert not left, f"left behind: {left}\n{box.log()}"
