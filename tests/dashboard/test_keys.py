"""Bytes to keys, however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.dashboard.screen import decode_keys as decode
from gpusched.dashboard.screen import finish_keys as finish


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["q"]),
        (b"sr?", ["s", "r", "?"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1bOA\x1bOB", ["up", "down"]),
        (b"\x1b[5~\x1b[6~", ["pgup", "pgdn"]),
        (b"\x1b[H\x1b[F\x1b[1~\x1b[4~", ["home", "end", "home", "end"]),
        (b"\x1b[Z\t\r", ["backtab", "tab", "enter"]),
        (b"\x1b[1;5A", []),  # Ctrl with an arrow: nothing here
        (b"\x1b[200~j\x1b[201~", ["j"]),
        (b"\x1bj", []),
        ("é日".encode(), ["é", "日"]),
        (b"\x7f", ["left"]),
        (b"\x00\xff", []),
        (b"\x1b\x1b[A", ["esc", "up"]),
    ],
)
def test_decode(data: bytes, keys: list[str]) -> None:
    assert decode(data) == (keys, b"")


def test_an_escape_alone_waits_for_more() -> None:
    assert decode(b"j\x1b") == (["j"], b"\x1b")
    assert finish(b"\x1b") == ["esc"]
    assert decode(b"\x1b[") == ([], b"\x1b[")
    assert finish(b"\x1b[") == finish(b"") == []


@given(st.lists(st.sampled_from([b"j", b"\x1b[A", b"\x1b[5~", b"\x1bOB", b"\r", b"q"])), st.data())
def test_keys_survive_being_cut_anywhere(parts: list[bytes], draw: st.DataObject) -> None:
    data = b"".join(parts)
    whole, _ = decode(data)
    cut = draw.draw(st.integers(0, len(data)))
    first, rest = decode(data[:cut])
    second, _ = decode(rest + data[cut:])
    assert first + second == whole


@given(st.binary(max_size=40))
def test_any_bytes_are_decoded(data: bytes) -> None:
    keys, rest = decode(data)
    assert all(key.isprintable() for key in keys)
    assert data.endswith(rest)
