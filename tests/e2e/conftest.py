"""Every end-to-end test leaves nothing behind: what still runs of the experiment is ended, and then the test fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.sandbox import Sandbox
from tests.rig import end_all, wait_until


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    box = Sandbox(tmp_path)
    yield box
    for process in box.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    try:
        wait_until(lambda: not box.processes(), lambda: f"{box.processes()} to end\n{box.log()}")
    finally:
        end_all(box.processes)
