"""A bed whose processes are gone when the test is over, whatever it did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.torture.bed import Bed, MakeBed


@pytest.fixture
def make_bed(tmp_path: Path) -> Iterator[MakeBed]:
    beds: list[Bed] = []

    def make(environment: dict[str, str] | None = None, **keys: Any) -> Bed:
        root = tmp_path / str(len(beds))
        root.mkdir()
        beds.append(Bed(root, keys, environment or {}))
        return beds[-1]

    yield make
    for bed in beds:
        bed.end()
