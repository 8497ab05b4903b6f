"""What an atom looks like now, for people: the dashboard and ``gpusched gpus``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpusched.devices import health
from gpusched.devices.atoms import Atom
from gpusched.devices.base import Reading
from gpusched.devices.unit import Doing, Unit


def read_atom(atom: Atom) -> Reading:
    """A bundle shows its mean utilisation, summed memory and power, and its hottest GPU."""
    units = atom.units
    vitals = [unit.watch.vitals for unit in units]
    used = _all(_used(unit) for unit in units)
    total = _all(unit.gpu.memory_total_bytes for unit in units)
    whole = not any(
        unit.gpu.parent for unit in units
    )  # NVML gives no load of a slice, only its board's
    loads = _all(v.utilisation if v and whole else None for v in vitals)
    heats = _all(v.temperature_c if v else None for v in vitals)
    powers = _all(v.power_w if v else None for v in vitals)
    name = units[0].gpu.name if units else ""
    return Reading(
        device=atom.id,
        label=f"{atom.label} {name}".strip(),
        utilisation=None if not loads else sum(loads) / len(loads),
        memory_used_bytes=None if not used else int(sum(used)),
        memory_total_bytes=None if not total else int(sum(total)),
        temperature_c=None if not heats else max(heats),
        power_w=None if not powers else sum(powers),
        holders=tuple(holder for unit in units for holder in _holders(unit)),
        notes=tuple(_notes(atom)),
        history=_history(units) if whole else (),
    )


def _all(figures: Iterable[float | int | None]) -> list[float]:
    """The figures if every one is known, else none of them."""
    listed = list(figures)
    return [f for f in listed if f is not None] if None not in listed else []


def _history(units: Sequence[Unit]) -> tuple[float | None, ...]:
    """Of a bundle the mean of its GPUs, as far back as all of them were read."""
    histories = [list(unit.watch.loads) for unit in units]
    length = min(map(len, histories), default=0)
    recent = [history[len(history) - length :] for history in histories]
    means = [_all(loads) for loads in zip(*recent, strict=True)]
    return tuple(sum(loads) / len(loads) if loads else None for loads in means)


def _used(unit: Unit) -> int | None:
    usage = unit.usage
    if usage is None:
        return None
    return usage.memory_v1_bytes if usage.memory_v2_bytes is None else usage.memory_v2_bytes


def _holders(unit: Unit) -> list[str]:
    usage = unit.usage
    if usage is None:
        return []
    named = [replace(unit.watch.who(p.pid), memory_bytes=p.memory_bytes) for p in usage.compute]
    return [str(holder) for holder in named]


def _notes(atom: Atom) -> list[str]:
    notes = [why] if (why := atom.why_not()) else []
    for unit in atom.units:
        said = list(health.notes(unit.watch.vitals)) if unit.watch.vitals else []
        if unit.doing is Doing.DRAINING and unit.held_by and unit.out is None:
            said.append(f"not released yet: {unit.held_by}")
        if unit.doing is Doing.HELD:
            said += [f"shared with {holder}" for holder in unit.strangers.values()]
        several = len(atom.units) > 1
        notes += [f"{unit.gpu.label}: {note}" if several else note for note in said]
    return notes
