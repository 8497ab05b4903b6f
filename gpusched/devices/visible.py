"""Which GPUs an experiment may use: the inherited ``CUDA_VISIBLE_DEVICES`` cut down by the recipe's ``devices:``.

Rules: ``CUDA_VISIBLE_DEVICES`` is read as CUDA reads it (indices in PCI order, UUIDs or unambiguous beginnings of them,
MIG slices; the first entry that names nothing ends the list), but what it hides is said. ``cuda:0,2`` counts within
that list, as ``torch.device`` does; UUIDs must be in it. A GPU cut by MIG stands for all of its slices. Every error
lists what there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpusched.devices.gpu import Gpu
from gpusched.errors import DeviceError

ALL = {"auto", "cuda", "gpu", ""}


@dataclass(frozen=True, slots=True)
class Entry:
    """A place of the list: ``cuda:N``. ``units`` is the GPU itself, or slices of it."""

    gpu: Gpu
    units: tuple[Gpu, ...]


def entry_of(gpu: Gpu, slices: Sequence[Gpu]) -> Entry:
    """Make the entry of a whole GPU, or of all slices of one that MIG has cut."""
    return Entry(gpu, tuple(slices) if gpu.mig else (gpu,))


def visible(machine: Sequence[Entry], variable: str | None) -> tuple[list[Entry], list[str]]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, in the variable's order, and remarks on that."""
    if variable is None:
        return list(machine), []
    found: list[Entry] = []
    for text in (item.strip() for item in variable.split(",")):
        entry = _find(machine, text)
        if isinstance(entry, str):
            sentinel = text in ("", "-1", "NoDevFiles") or text.lower() == "none"
            note = f"CUDA_VISIBLE_DEVICES={variable}: {entry}; CUDA ignores it and what follows"
            return found, [] if sentinel else [note]
        if any(unit in known.units for known in found for unit in entry.units):
            return found, [f"CUDA_VISIBLE_DEVICES={variable}: {text} is named twice"]
        found.append(entry)
    return found, []


def choose(pool: Sequence[Entry], spec: str, variable: str | None = None) -> list[Gpu]:
    """Return the GPUs and slices that ``devices: spec`` names. Raises DeviceError."""
    inside = "" if variable is None else f" (inside CUDA_VISIBLE_DEVICES={variable})"
    if not pool:
        raise DeviceError(f"no GPU may be used here{inside}")
    text = spec.strip()
    if text.lower() in ALL:
        return [unit for entry in pool for unit in entry.units]
    body = text[5:] if text.lower().startswith("cuda:") else text
    chosen: list[Gpu] = []
    problems = []
    for item in (item.strip() for item in body.split(",")):
        entry = _find(pool, item)
        if isinstance(entry, str):
            problems.append(entry)
        elif any(unit in chosen for unit in entry.units):
            problems.append(f"{item} is named twice")
        else:
            chosen.extend(entry.units)
    if problems:
        raise DeviceError(
            f"devices: {spec}: {'; '.join(problems)}{inside}. There are:\n{listing(pool)}"
        )
    return chosen


def _find(entries: Sequence[Entry], text: str) -> Entry | str:
    """Find the entry that an index, a UUID or the beginning of one names; what is wrong with it, if none."""
    if text.isdecimal():
        place = int(text)
        return entries[place] if place < len(entries) else f"there is no GPU {text}"
    if not text.upper().startswith(("GPU-", "MIG-")) or len(text) < 5:
        return f"{text!r} is neither an index nor a UUID"
    wanted = text.lower()
    matches: list[Entry] = []
    for entry in entries:
        if entry.gpu.uuid.lower().startswith(wanted):
            matches.append(entry)
        elif entry.units != (entry.gpu,):
            slices = [unit for unit in entry.units if unit.uuid.lower().startswith(wanted)]
            matches.extend(Entry(entry.gpu, (unit,)) for unit in slices)
    if len(matches) > 1:
        return f"{text} is the beginning of {len(matches)} UUIDs"
    return matches[0] if matches else f"there is no {text}"


def listing(pool: Sequence[Entry]) -> str:
    """List the GPUs there are, a line each."""
    lines = []
    for place, entry in enumerate(pool):
        for unit in entry.units:
            lines.append(f"  cuda:{place}  {unit.uuid}  {unit.name}")
    return "\n".join(lines) or "  no GPU"
