"""Reading a rank's stream that may have been capped (``folder/logcap.py``): a hole in the file, or a file cut back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from gpusched.text import show_bytes

#: What a terminal would take for a command (reliability F34): shown as a replacement character.
_CONTROL = {
    code: "\ufffd" for code in (*range(9), *range(11, 32), 127, *range(128, 160)) if code != 13
}


def read_from(path: Path, offset: int) -> tuple[list[str], int]:
    """Whole lines behind ``offset``, made safe for a terminal, and the offset behind them.

    Where the middle was dropped, a line says how much; a line that the drop has torn is left out.
    """
    lines: list[str] = []
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < offset:
            offset = 0
        while offset < size:
            begin, end = _next_data(file.fileno(), offset, size)
            if begin > offset:
                lines.append(f"[gpusched: {show_bytes(begin - offset)} of output dropped here]")
            file.seek(begin)
            data = file.read(end - begin)
            if begin > offset:
                data = data.partition(b"\n")[2]
            if end < size:
                data = data[: data.rfind(b"\n") + 1]
            lines += data.decode("utf-8", errors="replace").translate(_CONTROL).splitlines()
            offset = end
    return lines, offset


def _next_data(descriptor: int, offset: int, size: int) -> tuple[int, int]:
    """The next part that is on disk, from ``offset`` on."""
    try:
        begin = os.lseek(descriptor, offset, os.SEEK_DATA)
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole up to the end
            return size, size
        return offset, size
    return min(begin, size), min(end, size)
