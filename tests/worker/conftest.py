from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.fakes import Bench


@pytest.fixture
def bench(folder: Path) -> Bench:
    """An experiment's folder whose path is longer than a unix socket's may be."""
    made = Bench(folder / ("long" * 30) / "run")
    made.prepare()
    return made
