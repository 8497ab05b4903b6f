from __future__ import annotations

from tests.worker.conftest import bench

__all__ = ["bench"]
