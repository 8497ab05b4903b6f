"""Values of a recipe that people write in several ways, each turned into the one way the program knows.

Every function takes a plain value as read from YAML and raises ValueError: what is wrong and what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta

from gpusched.text import nearest, show

UNITS_S = {"d": 86400, "h": 3600, "m": 60, "s": 1}
MAX_DURATION_S = 3660 * 86400.0
MAX_CPU_SLOTS = MAX_DEVICES = 1024

#: ``auto``: sqrt for adaptive optimizers (Adam), linear for others (``worker/learning_rate.py``).
POWERS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0, "auto": -1.0}
SCALINGS = ("auto", "linear", "sqrt", "none")

_DURATION = re.compile(
    r"(?:(?P<d>\d+(?:\.\d+)?)d)?\s*(?:(?P<h>\d+(?:\.\d+)?)h)?\s*"
    r"(?:(?P<m>\d+(?:\.\d+)?)m)?\s*(?:(?P<s>\d+(?:\.\d+)?)s)?",
    re.ASCII,
)
_SIZE = re.compile(
    r"(?P<amount>\d{1,12}(?:\.\d{1,6})?)\s*(?:(?P<unit>[KMGTkmgt])(?P<binary>i)?)?[Bb]?", re.ASCII
)
_CLOCK = re.compile(
    r"(?:(?P<day>\d{4}-\d\d-\d\d)[ T]\s*)?(?P<hour>\d\d):(?P<minute>\d\d)", re.ASCII
)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_UUID = re.compile(r"(GPU|MIG)-[A-Za-z0-9/-]{4,80}", re.ASCII)

#: Set for every rank by gpusched or torchrun's agent; a recipe that sets them would break the process group.
RESERVED_ENV = frozenset(
    (
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"),
        *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    )
)
RESERVED_ENV_PREFIXES = ("GPUSCHED_", "TORCHELASTIC_")


def duration(value: object) -> float:
    """Seconds, from ``90``, ``90s``, ``10m``, ``1h30m`` or ``2d``; more than 0, at most ten years."""
    if value is None:
        raise ValueError("no value; write a duration such as 90s, 10m, 1h30m or 2d")
    if isinstance(value, str):
        text = value.strip()
        found = _DURATION.fullmatch(text)
        if re.fullmatch(r"\d{1,20}(\.\d{1,20})?", text, re.ASCII):
            seconds = float(text)
        elif not text or found is None or len(text) > 80:
            raise ValueError(f"{show(value)} is not a duration; write 90s, 10m, 1h30m or 2d")
        else:
            seconds = sum(float(count or 0) * UNITS_S[unit] for unit, count in _parts(found))
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{show(value)} is not a duration; write 90s, 10m, 1h30m or 2d")
    else:
        seconds = float(value)
    if not seconds > 0:
        raise ValueError(f"must be more than 0 seconds, not {show(value)}")
    if seconds > MAX_DURATION_S:
        raise ValueError(f"{show(value)} is more than ten years")
    return seconds


def size(value: object) -> int:
    """Bytes, from ``50GB``, ``500 MB``, ``1.5TiB`` or a number; more than 0."""
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is not None:
        factor = 1024 if found["binary"] else 1000
        amount = float(found["amount"]) * factor ** " KMGT".index((found["unit"] or " ").upper())
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{show(value)} is not a size; write 500MB, 50GB or 2TiB")
    else:
        amount = float(value)
    if not 1 <= amount < 2**63:
        raise ValueError(f"must be at least 1 byte and less than 8 EiB, not {show(value)}")
    return int(amount)


def deadline(value: object, now: datetime | None = None) -> float:
    """Seconds from ``now`` on: a duration, or when by the clock: ``18:30`` (the next one), ``2026-05-04 08:00``."""
    text = value.strip().upper() if isinstance(value, str) else ""
    if not re.match(r"\d{4}-|\d\d:", text):
        try:
            return duration(value)
        except ValueError as error:
            also = ", or a time of day, 18:30" if "not a duration" in str(error) else ""
            raise ValueError(f"{error}{also}") from None
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError(f"{show(value)} is not a time; write 18:30 or 2026-05-04 08:00")
    now = datetime.now().astimezone() if now is None else now
    try:
        clock = time(int(found["hour"]), int(found["minute"]))
        day = date.fromisoformat(found["day"]) if found["day"] else now.date()
        # Without a zone of its own, so that the day on which clocks are put forward has its 23 hours.
        then = datetime.combine(day, clock).astimezone()
        if not found["day"] and then <= now:
            then = datetime.combine(day + timedelta(days=1), clock).astimezone()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{show(value)}: {error}") from None
    seconds = (then - now).total_seconds()
    if seconds <= 0:
        raise ValueError(f"{show(value)} is past; it is {now:%Y-%m-%d %H:%M} now")
    if seconds > MAX_DURATION_S:
        raise ValueError(f"{show(value)} is more than ten years away")
    return round(seconds, 3)


def _parts(found: re.Match[str]) -> list[tuple[str, str | None]]:
    return list(found.groupdict().items())


def argument(value: object) -> str:
    """Text for a command line or an environment variable, from text or a number."""
    if isinstance(value, bool) or value is None or not isinstance(value, str | int | float):
        raise ValueError(f"should be text or a number, not {show(value)}; put it in quotes")
    text = str(value)
    if "\0" in text:
        raise ValueError("a NUL character cannot be passed to a program")
    return text


def environment(value: object) -> dict[str, str | None]:
    """Names and values of environment variables; None: its value is in the environment of ``gpusched``."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"should be a map such as {{NAME: value}}, not {show(value)}")
    found: dict[str, str | None] = {}
    for name, item in value.items():
        if not _ENV_NAME.fullmatch(name):
            raise ValueError(f"{show(name)} is not a name for an environment variable")
        if name in RESERVED_ENV or name.startswith(RESERVED_ENV_PREFIXES):
            raise ValueError(f"{name} is set by gpusched for each rank; leave it out")
        try:
            found[name] = None if item is None else argument(item)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
    return found


def devices(value: object) -> str | list[str]:
    """``auto``, ``cpu``, ``cpu:N``, ``cuda``, ``cuda:0,2``, or a list of GPU UUIDs (prefixes will do)."""
    if isinstance(value, list | tuple):
        return _uuids(list(value))
    if not isinstance(value, str):
        raise ValueError(
            f"should be auto, cpu, cpu:4, cuda, cuda:0,2 or GPU UUIDs; not {show(value)}"
        )
    kind, _, rest = value.replace(" ", "").partition(":")
    if kind.startswith(("GPU-", "MIG-")) and not rest:
        return _uuids([*kind.split(",")])
    if kind == "cpu" and re.fullmatch(r"[0-9]{1,6}", rest):
        slots = int(rest)
        if not 1 <= slots <= MAX_CPU_SLOTS:
            raise ValueError(f"cpu:{slots}: the number of slots is from 1 to {MAX_CPU_SLOTS}")
        return f"cpu:{slots}"
    if kind == "cuda" and re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", rest):
        indices = [int(index) for index in rest.split(",")]
        if len(set(indices)) < len(indices):
            raise ValueError(f"{value[:60]} names a GPU twice")
        return "cuda:" + ",".join(map(str, indices))
    if kind in ("auto", "cpu", "cuda") and not rest and ":" not in value:
        return kind
    meant = nearest(kind, ["auto", "cpu", "cuda"])
    hint = f" (did you mean {meant}?)" if meant and meant != kind else ""
    raise ValueError(f"{show(value)} is not auto, cpu, cpu:4, cuda, cuda:0,2 or GPU UUIDs{hint}")


def _uuids(value: list[object]) -> list[str]:
    if not value:
        raise ValueError("an empty list; write auto for all there are")
    if len(value) > MAX_DEVICES:
        raise ValueError(f"{len(value)} devices; at most {MAX_DEVICES}")
    found: list[str] = []
    for item in value:
        if not isinstance(item, str) or not _UUID.fullmatch(item):
            raise ValueError(
                f"{show(item)} is not a GPU UUID (nvidia-smi -L lists them); indices are cuda:0,2"
            )
        if item in found:
            raise ValueError(f"{item} is there twice")
        found.append(item)
    return found


def power(value: object) -> float:
    """The exponent p of lr = base x atoms^p: ``linear`` or 1, ``sqrt`` or 0.5, ``none`` or 0; -1 for ``auto``."""
    if isinstance(value, str) and value in POWERS:
        return POWERS[value]
    if (
        not isinstance(value, bool)
        and isinstance(value, int | float)
        and value in (0, 0.5, 1, POWERS["auto"])
    ):
        return float(value)
    raise ValueError(f"should be linear (1), sqrt (0.5), none (0) or auto, not {show(value)}")


def scaling(value: object) -> str | dict[str, float]:
    """``auto``, ``linear``, ``sqrt``, ``none``, or a table of atoms to throughput, s(1) = 1."""
    if isinstance(value, str) and value in SCALINGS:
        return value
    if not isinstance(value, Mapping) or not value:
        meant = nearest(value, SCALINGS) if isinstance(value, str) else None
        hint = f"; did you mean {meant}?" if meant else ""
        wanted = "auto, linear, sqrt, none or a table such as {1: 1, 2: 1.9}"
        raise ValueError(f"should be {wanted}, not {show(value)}{hint}")
    table: dict[int, float] = {}
    for name, factor in value.items():
        if not re.fullmatch(r"[1-9][0-9]{0,4}", str(name)):
            raise ValueError(f"{show(name)} in the table is not a number of atoms")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor > 0:
            raise ValueError(f"s({name}) should be a number above 0, not {show(factor)}")
        table[int(name)] = float(factor)
    if table.get(1, 1.0) != 1.0:
        raise ValueError(f"s(1) is 1 by definition, not {table[1]:g}; divide the table by it")
    return {str(atoms): table[atoms] for atoms in sorted(table)}


def sizes(value: object) -> list[int]:
    """Numbers of atoms a trial may have, rising."""
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise ValueError(f"should be a list such as [1, 2, 4], not {show(value)}")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int) or not 1 <= item <= 65536:
            raise ValueError(f"{show(item)} is not a number of atoms")
    if list(value) != sorted(set(value)):
        raise ValueError(f"should rise, as in {sorted(set(value))}")
    return list(value)
