"""Bytes from a keyboard to names of keys. Pure; the names are those that ``ui.press`` knows."""

from __future__ import annotations

import re

_NAMED = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
    b"\x1b[5~": "pgup",
    b"\x1b[6~": "pgdn",
    b"\x1b[7~": "home",
    b"\x1b[8~": "end",
    b"\x1b[Z": "backtab",
    b"\r": "enter",
    b"\n": "enter",
    b"\t": "tab",
    b"\x7f": "left",
    b"\x08": "left",
    b" ": "pgdn",
    b"\x06": "pgdn",
    b"\x02": "pgup",
}
#: One key: a CSI or SS3 sequence, Alt with a key, a character of UTF-8, or a single byte.
_KEY = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|\x1b[^\[O\x1b]|[\xc2-\xdf].|[\xe0-\xef]..|[\xf0-\xf4]...|[^\x1b]",
    re.DOTALL,
)


def decode(data: bytes) -> tuple[list[str], bytes]:
    """Names of the keys in ``data``, and what may be the beginning of one more.

    A lone escape byte is such a beginning: if nothing follows soon, it was the escape key (``finish``).
    """
    keys: list[str] = []
    while data:
        match = _KEY.match(data)
        if match is None:
            # Two escapes: the first was the key. Anything else may yet become a sequence.
            if data[1:2] == b"\x1b":
                keys.append("esc")
                data = data[1:]
                continue
            return keys, data
        name = _name(match.group())
        if name:
            keys.append(name)
        data = data[match.end() :]
    return keys, b""


def finish(rest: bytes) -> list[str]:
    """What an unfinished beginning was, when nothing followed."""
    return ["esc"] if rest == b"\x1b" else []


def _name(key: bytes) -> str:
    if key.startswith(b"\x1bO"):
        key = b"\x1b[" + key[2:]
    if key in _NAMED:
        return _NAMED[key]
    text = key.decode("utf-8", "ignore")
    return text if text.isprintable() else ""
