from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.fakes import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """An experiment's folder whose path is longer than a unix socket's may be."""
    made = Bench(tmp_path / ("long" * 30) / "run")
    made.prepare()
    return made
