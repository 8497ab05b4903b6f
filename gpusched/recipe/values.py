"""Values of a recipe that people write in several ways, each turned into the one way the program knows.

Every reader takes a plain value as read from YAML, and raises ValueError with the problem and a value that would do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gpusched.recipe.messages import BadValue, typed
from gpusched.text import did_you_mean, nearest, show

UNITS_S = {"d": 86400, "h": 3600, "m": 60, "s": 1}
MAX_DURATION_S = 3660 * 86400.0
MAX_CPU_SLOTS = 1024

#: ``auto``: sqrt for adaptive optimizers (Adam), linear for others (``worker/learning_rate.py``).
POWERS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0, "auto": -1.0}
SCALINGS = ("auto", "linear", "sqrt", "none")

_DURATION = re.compile(
    r"(?:(?P<d>\d+(?:\.\d+)?)d)?\s*(?:(?P<h>\d+(?:\.\d+)?)h)?\s*"
    r"(?:(?P<m>\d+(?:\.\d+)?)m)?\s*(?:(?P<s>\d+(?:\.\d+)?)s)?",
    re.ASCII,
)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: What certainly is a secret: the name of nothing else, the form of a service's keys, or an address with a password.
_SECRET_NAME = re.compile(r"(API|ACCESS|SECRET)_KEY$|PASSWORD$|PASSWD$|SECRET$", re.I)
_SECRET_VALUE = re.compile(
    r"^(hf_|sk-|gh[ps]_|glpat-|AKIA)[\w-]{16,}$|://[^/\s]*:[^/\s]*@", re.ASCII
)
_UUID = re.compile(r"(GPU|MIG)-[A-Za-z0-9/-]{4,80}", re.ASCII)

#: Set for every rank by gpusched or torchrun's agent; a recipe that sets them would break the process group.
RESERVED_ENV = frozenset(
    (
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"),
        *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    )
)
RESERVED_ENV_PREFIXES = ("GPUSCHED_", "TORCHELASTIC_")

Reader = Callable[[Any], Any]
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_Atoms = Annotated[int, msgspec.Meta(ge=1, le=65536)]


def anything(value: object) -> object:
    """Return a value that is checked elsewhere."""
    return value


# ------------------------------------------------------------ text and lists


def _text(value: object, what: str) -> str:
    text: str = typed(value, str)
    if not text or not text.isprintable():
        wrong = "has control characters" if text else "is empty"
        raise ValueError(f"{show(value)} {wrong}; write {what}")
    return text


def metric(value: object) -> str:
    """Read the name of a metric."""
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        name = show(value["name"])
        raise ValueError(f"should be text; write metric: {name}, and beside it mode: max or min")
    return _text(value, "the name of a number that the script reports")


def path(value: object) -> str:
    """Read a path, as it is written."""
    return _text(value, "the path of a file or folder")


def earlier(value: object) -> Any:
    """Read the folder of an earlier search, or its trials, as a resolved recipe has them."""
    if isinstance(value, list | tuple):
        return typed(value, tuple[dict[str, Any], ...])
    return _text(value, "the folder of an earlier search")


def name(value: object) -> str:
    """Read the name of an experiment."""
    text: str = typed(value, str)
    if not re.fullmatch(_NAME, text):
        rule = "letters, digits, . _ and -, a letter or digit first, up to 64"
        raise ValueError(f"{show(value)} is not a name: {rule}")
    return text


def arguments(value: object) -> tuple[str, ...]:
    """Read arguments of the script. Raises BadValue with the place of the argument that is wrong."""
    found = []
    for place, item in enumerate(typed(value, list)):
        try:
            found.append(_argument(item))
        except ValueError as error:
            raise BadValue(str(error), (place,)) from None
    return tuple(found)


def _argument(value: object) -> str:
    """Read text for a command line or an environment variable, from text or a number; ``~/`` as a shell does."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"should be text or a number, not {show(value)}; put it in quotes")
    text = str(value)
    return str(Path(text).expanduser()) if text.startswith("~/") else text


# ------------------------------------------------------------ times


def duration(value: object) -> float:
    """Read seconds, from ``90``, ``90s``, ``10m``, ``1h30m`` or ``2d``; more than 0, at most ten years."""
    text = "" if isinstance(value, bool) else str(value).strip()
    found = _DURATION.fullmatch(text)
    try:
        parts = found.groupdict("0").items() if found and text else [("s", text)]
        seconds = sum(float(number) * UNITS_S[unit] for unit, number in parts)
    except ValueError:
        why = f"{show(value)} is not a duration; write 90s, 10m, 1h30m or 2d"
        raise ValueError(why) from None
    if not seconds > 0:
        raise ValueError(f"must be more than 0 seconds, not {show(value)}")
    if seconds > MAX_DURATION_S:
        raise ValueError(f"{show(value)} is more than ten years; write a shorter time")
    return seconds


def deadline(value: object, now: datetime | None = None) -> float:
    """Read seconds from now on, from a duration, or by the clock: ``18:30``, ``2026-05-04T08:00``."""
    text = value.strip().upper() if isinstance(value, str) else ""
    if not re.match(r"\d{4}-|\d\d:", text):
        try:
            return duration(value)
        except ValueError as error:
            also = ", or a time of day, 09:30" if "not a duration" in str(error) else ""
            raise ValueError(f"{error}{also}") from None
    now = now or datetime.now().astimezone()
    day, _, clock = text.replace("T", " ").rpartition(" ")
    try:
        # Without a zone of its own, so that the day on which clocks are put forward has its 23 hours.
        then = datetime.combine(
            date.fromisoformat(day.strip() or str(now.date())), time.fromisoformat(clock)
        ).astimezone()
    except (ValueError, OverflowError):
        raise ValueError(f"{show(value)} is not a time; write 18:30 or 2026-05-04T08:00") from None
    if not day and then <= now:
        then = (then.replace(tzinfo=None) + timedelta(days=1)).astimezone()
    if then <= now:
        raise ValueError(f"{show(value)} is past: now is {now:%Y-%m-%d %H:%M}; write a later time")
    return duration(round((then - now).total_seconds(), 3))


def environment(value: object) -> dict[str, str | None]:
    """Read names and values of environment variables; None: its value is in the environment of ``gpusched``."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"should be a map such as {{NAME: value}}, not {show(value)}")
    found: dict[str, str | None] = {}
    for name, item in value.items():
        if not _ENV_NAME.fullmatch(name):
            raise ValueError(f"{show(name)} is not a name for an environment variable")
        if name in RESERVED_ENV or name.startswith(RESERVED_ENV_PREFIXES):
            is_gpus = name == "CUDA_VISIBLE_DEVICES"
            cure = "write devices: cuda:0,2 in the recipe" if is_gpus else "leave it out"
            raise ValueError(f"{name} is set by gpusched for each rank; {cure}")
        try:
            text = found[name] = None if item is None else _argument(item)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
        if text and (_SECRET_NAME.search(name) or _SECRET_VALUE.search(text)):
            raise ValueError(
                f"{name} is a secret, and the recipe is copied into the search's folder: leave the value out "
                f"({name}:) and set it in the environment of gpusched"
            )
    return found


# ------------------------------------------------------------ devices and atoms


def devices(value: object) -> str:
    """Read ``auto``, ``cpu``, ``cpu:N``, ``cuda``, ``cuda:0,2``, or GPU UUIDs (prefixes will do; a list, or commas)."""
    wanted = "auto, cpu, cpu:4, cuda, cuda:0,2 or GPU UUIDs"
    if isinstance(value, str) and value.startswith(("GPU-", "MIG-")):
        value = value.replace(" ", "").split(",")
    if isinstance(value, list):
        for item in value:
            if not isinstance(item, str) or not _UUID.fullmatch(item):
                raise ValueError(
                    f"{show(item)} is not a GPU UUID (nvidia-smi -L lists them); indices are cuda:0,2"
                )
        if not value:
            raise ValueError("an empty list; write auto for all devices of this machine")
        return ",".join(value)
    kind, _, rest = str(value).replace(" ", "").partition(":")
    if kind == "cpu" and re.fullmatch(r"[0-9]{1,6}", rest):
        if not 1 <= int(rest) <= MAX_CPU_SLOTS:
            raise ValueError(f"cpu:{rest}: the number of slots is from 1 to {MAX_CPU_SLOTS}")
        return f"cpu:{int(rest)}"
    if kind == "cuda" and re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", rest):
        return "cuda:" + ",".join(str(int(index)) for index in rest.split(","))
    if value in ("auto", "cpu", "cuda"):
        return kind
    is_gpu = kind.lower() in ("gpu", "gpus")  # nearer to cpu by its letters
    meant = "cuda" if is_gpu else nearest(kind, ["auto", "cpu", "cuda"])
    hint = f"; did you mean {meant}?" if meant and meant != kind else ""
    raise ValueError(f"{show(value)} is not {wanted}{hint}")


def power_in_words(exponent: float, batch: str) -> str:
    """Word how the learning rate follows the atoms, by the recipe's ``lr_scaling`` and ``batch``."""
    if batch == "global" or exponent == 0:
        return "as given, on any number of atoms"
    if exponent == POWERS["auto"]:
        return "base x atoms for SGD, base x sqrt(atoms) for Adam and its like (lr_scaling: auto)"
    return f"base x {'atoms' if exponent == 1 else f'atoms^{exponent:g}'}"


def power(value: object) -> float:
    """Read the exponent p of lr = base x atoms^p: ``linear`` or 1, ``sqrt`` or 0.5, ``none`` or 0; -1 for ``auto``."""
    found = POWERS.get(value) if isinstance(value, str) else value
    if isinstance(found, int | float) and not isinstance(found, bool) and found in POWERS.values():
        return float(found)
    raise ValueError(f"should be linear (1), sqrt (0.5), none (0) or auto, not {show(value)}")


def scaling(value: object) -> str | dict[int, float]:
    """Read ``auto``, ``linear``, ``sqrt``, ``none``, or a table of atoms to throughput, s(1) = 1."""
    if isinstance(value, str) and value in SCALINGS:
        return value
    if not isinstance(value, Mapping) or not value:
        hint = did_you_mean(value, SCALINGS) if isinstance(value, str) else ""
        wanted = "auto, linear, sqrt, none or a table such as {1: 1, 2: 1.9}"
        raise ValueError(f"should be {wanted}, not {show(value)}{hint}")
    table: dict[int, float] = typed(value, dict[_Atoms, Annotated[float, msgspec.Meta(gt=0)]])
    if table.get(1, 1.0) != 1.0:
        raise ValueError(f"s(1) is 1 by definition, not {table[1]:g}; divide the table by it")
    return dict(sorted(table.items()))


def sizes(value: object) -> tuple[int, ...]:
    """Read numbers of atoms that a trial may have; they come back rising."""
    return tuple(sorted({*typed(value, list[_Atoms])}))
