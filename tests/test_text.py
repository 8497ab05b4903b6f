"""Numbers, times and foreign text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.text import (
    clean,
    count,
    did_you_mean,
    first_line,
    log_line,
    nearest,
    ordinal,
    sentence,
    show,
    show_at,
    show_bytes,
    show_clock,
    show_duration,
    show_memory,
    show_metric,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(None, "-"), (0.0, "0.000"), (0.5, "0.5000"), (0.97123, "0.9712"), (-0.25, "-0.2500")],
        *[(12.3456, "12.346"), (1234.5678, "1234.6"), (123456.7, "123457"), (1e7, "1.000e+07")],
        *[(0.00034567, "0.0003457"), (3e-6, "3.000e-06"), (1.0, "1.0000"), (1e308, "1.000e+308")],
        *[(-math.inf, "no finite metric"), (math.inf, "no finite metric")],
    ],
)
def test_metric(value: float | None, text: str) -> None:
    assert show_metric(value) == text


@pytest.mark.parametrize(
    ("seconds", "clock", "duration"),
    [
        (-3, "0:00", "0 s"),
        (0.35, "0:00", "0.35 s"),
        (9.99, "0:09", "10 s"),
        (37, "0:37", "37 s"),
        (200, "3:20", "3 min 20 s"),
        (3753, "1:02:33", "1 h 02 min"),
        (97_445, "1d 03:04:05", "1 d 03 h"),
    ],
)
def test_times(seconds: float, clock: str, duration: str) -> None:
    assert show_clock(seconds) == clock
    assert show_duration(seconds) == duration
    assert show_at(seconds).strip() == (clock if seconds >= 3600 else f"{seconds:.1f} s")


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]0;never ended", "a"),
        ("two\nlines\tand a tab", "two lines and a tab"),
        ("bell\x07 and back\x08space", "bell\ufffd and back\ufffdspace"),
        ("turn\u202earound", "turn\ufffdaround"),
        ("lone \ud800 surrogate", "lone \ufffd surrogate"),
        ("日本語", "日本語"),
    ],
)
def test_clean(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


def test_clean_is_short() -> None:
    assert clean("x" * 1000, 10) == "xxxxxxxxx…"


@given(st.text())
def test_clean_is_one_line_without_control_characters(text: str) -> None:
    cleaned = clean(text)
    assert not any(ord(character) < 32 or ord(character) == 127 for character in cleaned)
    assert len(cleaned) <= 400
    cleaned.encode()


def test_first_line() -> None:
    assert first_line("\n\n  ValueError: x\n  at y") == "ValueError: x"
    assert first_line("\n") == ""


def test_log_line_is_what_a_terminal_would_be_left_with() -> None:
    assert log_line(" 10%|#  |\r 50%|## |\r100%|###|\r\n") == "100%|###|"
    assert log_line("\x1b[32mINFO\x1b[0m\tdone") == "INFO    done"
    assert log_line("    return x\x07\n") == "    return x\ufffd"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("grows 1 -> 3: 41 more steps", "trial 7 grows 1 -> 3: 41 more steps"),
        ("pauses: 3rd of 4", "trial 7 pauses: 3rd of 4"),
        ("a new configuration enters", "trial 7: a new configuration enters"),
        ("complete: 81 of 81 steps", "trial 7: complete: 81 of 81 steps"),
        ("ValueError: bad", "trial 7: ValueError: bad"),
        ("its steps take longer", "trial 7: its steps take longer"),
        ("", "trial 7: "),
    ],
)
def test_sentence(text: str, told: str) -> None:
    assert sentence(7, text) == told


def test_sizes_and_ranks() -> None:
    assert (count(1, "atom"), count(2, "atom")) == ("1 atom", "2 atoms")
    assert show_memory(5 * 2**30, 80 * 2**30) == "5.0/80 GiB"
    assert show_memory(5 * 2**28, None) == "1.2 GiB"
    assert [show_bytes(size) for size in (1, 700, 300 << 20, 5 << 29)] == [
        *("1 byte", "700 bytes", "300 MiB", "2.50 GiB")
    ]
    assert [ordinal(rank) for rank in (0, 1, 2, 3, 10, 20, 110)] == [
        *("1st", "2nd", "3rd", "4th", "11th", "21st", "111th")
    ]


@pytest.mark.parametrize(
    ("word", "meant"),
    [("MAXATOMS", "max_atoms"), ("Lr", "lr"), ("momentun", "momentum"), ("zebra", None)],
)
def test_nearest(word: str, meant: str | None) -> None:
    known = ["max_atoms", "lr", "LR", "momentum"]
    assert nearest(word, known) == meant
    assert did_you_mean(word, known) == (f"; did you mean {meant}?" if meant else "")
    assert nearest("x" * 101, ["x" * 101]) is None


def test_show() -> None:
    values = (None, True, 0.1, 1e30, "a\nb", "x" * 99)
    assert [show(value) for value in values] == [
        *("null", "true", "0.1", "1e+30", "'a\\nb'", "'" + "x" * 56 + "..."),
    ]
