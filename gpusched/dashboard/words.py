"""Numbers, times and foreign text as people read them: one form each, for the dashboard, the lines and the summary.

What comes from scripts (errors, hyperparameters, log lines) may hold anything; ``clean`` makes it one harmless line.
Pure, and without rich: the daemon uses it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpusched.space import arguments

#: Escape sequences of terminals: CSI, OSC (up to BEL or ST), and the two-character ones.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
#: Control characters, marks that turn the writing direction or take no room, and lone surrogates.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def clean(text: str, limit: int = 400) -> str:
    """``text`` as one line that does nothing to a terminal, at most ``limit`` characters."""
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text.strip()
    text = text[: 4 * limit].replace("\r\n", "\n").replace("\t", " ").replace("\n", " ")
    text = _HARMFUL.sub("\ufffd", _ESCAPES.sub("", text)).strip()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def harmless(text: str) -> str:
    """``text`` with as many characters, none of which moves a terminal's cursor."""
    return _HARMFUL.sub("\ufffd", text.replace("\n", " ").replace("\t", " "))


def first_line(text: str) -> str:
    """The first line that says something, cleaned."""
    return clean(next((line for line in text.splitlines() if line.strip()), ""))


def log_line(text: str) -> str:
    """A line of a log as a terminal would leave it: of a progress bar only its last state."""
    text = text.rstrip("\r\n").rpartition("\r")[2]
    return clean(_ESCAPES.sub("", text).expandtabs(8), 1000)


def metric(value: float | None) -> str:
    """A metric in five digits, so that a column of them lines up; ``-`` for none."""
    if value is None:
        return "-"
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-4:
        return f"{value:.3e}"
    whole = len(str(int(size))) if size >= 1 else 1
    return f"{value:.{max(0, 5 - whole)}f}"


def clock(seconds: float) -> str:
    """``0:37``, ``12:05``, ``1:02:33``, ``3d 04:05:06``."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86_400)
    hours, minutes, rest = rest // 3600, rest % 3600 // 60, rest % 60
    if days:
        return f"{days}d {hours:02d}:{minutes:02d}:{rest:02d}"
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}"


def duration(seconds: float) -> str:
    """``0.35 s``, ``41 s``, ``3 min 20 s``, ``1 h 02 min``, ``2 d 03 h``."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.2g} s"
    whole = round(seconds)
    if whole >= 86_400:
        return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole} s"


def memory(used_bytes: int, total_bytes: int | None) -> str:
    """``12.3/80 GiB``."""
    used = f"{used_bytes / 2**30:.1f}"
    return f"{used}/{total_bytes / 2**30:.0f} GiB" if total_bytes else f"{used} GiB"


def count(number: int, noun: str) -> str:
    """``1 trial``, ``3 trials``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def flat(hparams: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Hyperparameters as (name, value) in words; nested ones are dotted."""
    for name, value in arguments.flat(hparams):
        yield clean(name, 60), _value(value)


def hparams(values: Mapping[str, object]) -> str:
    """``lr=0.01 width=16``."""
    return " ".join(f"{name}={value}" for name, value in flat(values))


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else clean(str(value), 120)


def sentence(trial: int | None, text: str) -> str:
    """A decision as the core words it, with the trial it is about: ``trial 7 grows 1 -> 3: ..``."""
    text = clean(text)
    if trial is None:
        return text
    verb = text.partition(" ")[0].rstrip(":")
    joint = (
        " " if verb.isascii() and verb.isalpha() and verb.islower() and verb[-1] == "s" else ": "
    )
    return f"trial {trial}{joint}{text}"
