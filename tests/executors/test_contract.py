"""The live executor passes the contract: real process groups, gloo, real kills."""

from __future__ import annotations

from tests.executors.contract import ExecutorContract


class TestTorchrunExecutor(ExecutorContract):
    """Everything is in ``contract.py``."""
