"""Numbers, times and foreign text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.dashboard import words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(None, "-"), (0.0, "0.0000"), (0.5, "0.5000"), (0.97123, "0.9712"), (-0.25, "-0.2500")],
        *[(12.3456, "12.346"), (1234.5678, "1234.6"), (123456.7, "123457"), (1e7, "1.000e+07")],
        *[(3e-6, "3.000e-06"), (1.0, "1.0000"), (1e308, "1.000e+308")],
    ],
)
def test_metric(value: float | None, text: str) -> None:
    assert words.metric(value) == text


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
    assert words.clock(seconds) == clock
    assert words.duration(seconds) == duration


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
    assert words.clean(text) == cleaned


def test_clean_is_short() -> None:
    assert words.clean("x" * 1000, 10) == "xxxxxxxxx…"


@given(st.text())
def test_clean_is_one_line_without_control_characters(text: str) -> None:
    cleaned = words.clean(text)
    assert not any(ord(character) < 32 or ord(character) == 127 for character in cleaned)
    assert len(cleaned) <= 400
    cleaned.encode()
    assert len(words.harmless(text)) == len(text)


def test_first_line() -> None:
    assert words.first_line("\n\n  ValueError: x\n  at y") == "ValueError: x"
    assert words.first_line("\n") == ""


def test_log_line_is_what_a_terminal_would_be_left_with() -> None:
    assert words.log_line(" 10%|#  |\r 50%|## |\r100%|###|\r\n") == "100%|###|"
    assert words.log_line("\x1b[32mINFO\x1b[0m\tdone") == "INFO    done"


def test_hparams_are_flat() -> None:
    hparams = {"lr": 0.00123456, "net": {"width": 16, "act": "relu"}, "nesterov": True}
    assert words.hparams(hparams) == "lr=0.001235 net.width=16 net.act=relu nesterov=True"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("grows 1 -> 3: 41 more steps", "trial 7 grows 1 -> 3: 41 more steps"),
        ("pauses: 3rd of 4", "trial 7 pauses: 3rd of 4"),
        ("a new configuration enters", "trial 7: a new configuration enters"),
        ("complete: 81 of 81 steps", "trial 7: complete: 81 of 81 steps"),
        ("ValueError: bad", "trial 7: ValueError: bad"),
        ("", "trial 7: "),
    ],
)
def test_sentence(text: str, sentence: str) -> None:
    assert words.sentence(7, text) == sentence
    assert words.sentence(None, text) == text


def test_counts_and_memory() -> None:
    assert (words.count(1, "atom"), words.count(2, "atom")) == ("1 atom", "2 atoms")
    assert words.memory(5 * 2**30, 80 * 2**30) == "5.0/80 GiB"
    assert words.memory(5 * 2**28, None) == "1.2 GiB"
