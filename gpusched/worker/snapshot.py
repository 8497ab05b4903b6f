"""A copy of a trial's state in memory, taken while training stands still, so that writing it to disk need not be.

The buffer is kept from one snapshot to the next: fresh memory costs several times what copying into it does. So rank
0's process grows by the size of the state at its first save.
"""

from __future__ import annotations

from typing import Any, BinaryIO, cast


class Snapshot:
    """What ``torch.save`` would write, in memory."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._end = 0

    def take(self, state: Any) -> memoryview:
        """Serialise ``state``; the bytes are good until the next call.

        Raises:
            MemoryError: There is no room for a copy.
        """
        import torch

        self._end = 0
        # The manifest's SHA-256 covers every byte; the archive's own sums would cost as much as the copying.
        sums = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)
        try:
            torch.save(state, cast(BinaryIO, self))  # all it needs is write and flush
        finally:
            torch.serialization.set_crc32_options(sums)
        return memoryview(self._buffer)[: self._end]

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        end = self._end + view.nbytes
        if end <= len(self._buffer):
            self._buffer[self._end : end] = view
        else:
            del self._buffer[self._end :]
            self._buffer += view
        self._end = end
        return view.nbytes

    def flush(self) -> None:
        """It is where it belongs."""
