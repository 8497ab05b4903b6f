"""Words for values, durations, sizes, ranks and near misses: one form each, wherever people see them.

Text from outside (a script's errors, hyperparameters, log lines, file names) may hold anything; ``clean`` and
``printable`` make such text harmless. Pure, and the standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

#: Escape sequences of terminals: CSI, OSC (up to BEL or ST), and the two-character ones.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
#: Control characters, marks that turn the writing direction or take no room, and lone surrogates.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
# ---------------------------------------------------------------- values


def show(value: object) -> str:
    """Word a value for a message, as YAML would have it: short, on one line, without control characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f"{value:g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def show_metric(value: float | None) -> str:
    """Word a metric in five digits, one below 1 in four that count, so that two can be told apart; ``-`` for none."""
    if value is None:
        return "-"
    if (size := abs(value)) == float("inf"):  # the score of a metric that was not finite
        return "no finite metric"
    if size >= 1e6:
        return f"{value:.3e}"
    return f"{value:.{max(0, 5 - len(str(int(size))))}f}" if size >= 1 else f"{value:#.4g}"


def flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield nested values by their dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def hparam_texts(hparams: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield hyperparameters as (dotted name, value in words)."""
    for name, value in flat(hparams):
        shown = f"{value:.4g}" if isinstance(value, float) else clean(str(value), 120)
        yield clean(name, 60), shown


def show_hparams(hparams: Mapping[str, object]) -> str:
    """Word hyperparameters as ``lr=0.01 width=16``."""
    return " ".join(f"{name}={value}" for name, value in hparam_texts(hparams))


# ---------------------------------------------------------------- numbers


def show_clock(seconds: float) -> str:
    """Word an instant as ``0:37``, ``12:05``, ``1:02:33``, ``3d 04:05:06``."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86_400)
    hours, minutes, rest = rest // 3600, rest % 3600 // 60, rest % 60
    if days:
        return f"{days}d {hours:02d}:{minutes:02d}:{rest:02d}"
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}"


def show_at(seconds: float) -> str:
    """Word a time since the beginning, in ten characters: ``    12.3 s``, from an hour on ``   7:35:40``."""
    return f"{seconds:8.1f} s" if seconds < 3600 else f"{show_clock(seconds):>10}"


def show_duration(seconds: float) -> str:
    """Word a length of time as ``0.35 s``, ``41 s``, ``3 min 20 s``, ``1 h 02 min``, ``2 d 03 h``."""
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


def show_bytes(size_bytes: int) -> str:
    """Word a size as ``512 bytes``, ``300 MiB``, ``1.25 GiB``."""
    if size_bytes >= 1 << 30:
        return f"{size_bytes / (1 << 30):.2f} GiB"
    return (
        f"{size_bytes / (1 << 20):.0f} MiB" if size_bytes >= 1 << 20 else count(size_bytes, "byte")
    )


def show_memory(used_bytes: int, total_bytes: int | None) -> str:
    """Word the memory of a device as ``12.3/80 GiB``."""
    used = f"{used_bytes / 2**30:.1f}"
    return f"{used}/{total_bytes / 2**30:.0f} GiB" if total_bytes else f"{used} GiB"


def count(number: int, noun: str) -> str:
    """Word a number of things as ``1 trial``, ``3 trials``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ordinal(rank: int) -> str:
    """Word a rank that counts from 0: 0 is ``1st``."""
    place = rank + 1
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{'th' if place % 100 in (11, 12, 13) else suffix}"


# ---------------------------------------------------------------- near misses


def nearest(word: str, known: Collection[str], likeness: float = 0.6) -> str | None:
    """Return the known word that ``word`` was probably meant to be.

    Comparing is slow, so words of more than a hundred letters, or among more than a thousand, are not compared.
    """
    import difflib

    if len(word) > 100 or len(known) > 1000:
        return None
    by_lower = {name.lower(): name for name in reversed(list(known))}
    found = difflib.get_close_matches(word.lower(), by_lower, 1, likeness)
    return by_lower[found[0]] if found else None


def did_you_mean(word: str, known: Collection[str], likeness: float = 0.6) -> str:
    """Return ``; did you mean lr?`` where a known word is near, else nothing."""
    meant = nearest(word, known, likeness)
    return f"; did you mean {meant}?" if meant else ""


# ---------------------------------------------------------------- foreign text


def clean(text: str, limit: int = 400) -> str:
    """Return ``text`` as one line that does nothing to a terminal, at most ``limit`` characters."""
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text.strip()
    text = text[: 4 * limit].replace("\r\n", "\n").replace("\t", " ").replace("\n", " ")
    text = _HARMFUL.sub("\ufffd", _ESCAPES.sub("", text)).strip()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(text: str) -> str:
    """Return the text with escapes for what would move the cursor or hide: a file name may hold anything."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def first_line(text: str) -> str:
    """Return the first line that is not blank, cleaned."""
    return clean(next((line for line in text.splitlines() if line.strip()), ""))


def log_line(text: str) -> str:
    """Return a line of a log as a terminal would leave it: of a progress bar only its last state."""
    text = text.rstrip("\r\n").rpartition("\r")[2]
    return _HARMFUL.sub("\ufffd", _ESCAPES.sub("", text).expandtabs(8)).rstrip()


def no_trial(number: int, known: int) -> str:
    """Word that a trial does not exist; ``known``: number of trials so far."""
    if not known:
        return f"trial {number} does not exist; no trial has begun yet"
    so_far = f"trials 0 to {known - 1}" if known > 1 else "trial 0 alone"
    return f"trial {number} does not exist; so far: {so_far}"


def sentence(trial: int, text: str) -> str:
    """Word a decision of the core with the trial it is about: ``trial 7 grows 1 -> 3: ..``."""
    text = clean(text)
    verb = text.partition(" ")[0].rstrip(":")
    is_verb = re.fullmatch("(?!its)[a-z]+s", verb)
    return f"trial {trial}{' ' if is_verb else ': '}{text}"
