"""The data of a dashboard: a plain tree of numbers and short texts, and its JSON form.

The daemon makes the tree (``view.build``), sends it to watchers and for ``status --json``; without a daemon the same
tree is made from the journal. Rules:

* A number that is not finite is None. Texts are one line and harmless to a terminal.
* Times are seconds since the experiment began, unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from gpusched.text import clean, count, show_duration

LIVE = ("starting", "running", "yielding")
FINAL = ("completed", "stopped", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRow:
    """The best model on disk."""

    trial: int
    step: int
    metric: float
    atoms: int = 0
    at_s: float = 0.0
    hparams: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomCounts:
    """Number of atoms in each state."""

    total: int = 0
    held: int = 0
    free: int = 0
    draining: int = 0
    quarantined: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """One atom. ``trial``: the holder or, while the device drains, the last one.

    None: cannot be read of this kind of device. ``reason``: why the device drains or is quarantined.
    """

    id: str
    label: str = ""
    state: str = "free"
    trial: int | None = None
    reason: str = ""
    utilisation: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name for people: of a GPU its number, as ``nvidia-smi`` has it, rather than its UUID."""
        return clean(self.label or self.id, 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial. ``curve``: at most 40 of its metrics, evenly spaced, the first (at ``first_step``) and the last.

    ``error``: first line of the failure, or of the last that the trial continued after.
    """

    id: int
    state: str
    step: int = 0
    metric: float | None = None
    best_metric: float | None = None
    best_step: int = 0
    atoms: int = 0
    incarnation: int = 0
    held_by_user: bool = False
    hparams: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    first_step: int = 1
    curve: tuple[float | None, ...] = ()
    error: str | None = None

    @property
    def is_live(self) -> bool:
        return self.state in LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRow:
    """Atoms that are idle for one reason, for ``idle_s`` so far; ``detail``: who, or what exactly."""

    devices: tuple[str, ...]
    idle_s: float
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The standing of an experiment.

    ``state``: starting, running, stopping, finished, or interrupted (not finished, and no daemon lives). ``ending``:
    why it stops or stopped. ``trials``: the most relevant ones, the best report first; ``trial_counts`` counts all.
    ``notes`` come from the policy, ``warnings`` from the daemon (a full disk, ..).
    """

    experiment: str
    state: str = "running"
    ending: str | None = None
    folder: str = ""
    policy: str = ""
    daemon_pid: int | None = None
    metric: str = "metric"
    mode: str = "max"
    now_s: float = 0.0
    time_left_s: float = 0.0
    deadline_s: float = 0.0
    best: BestRow | None = None
    #: Trial of which the best report beats the best model on disk, and has no checkpoint.
    best_unsaved: TrialRow | None = None
    atoms: AtomCounts = field(default_factory=AtomCounts)
    devices: tuple[DeviceRow, ...] = ()
    trials: tuple[TrialRow, ...] = ()
    trial_counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    #: Atoms that train nobody now, and the atom-seconds that each reason has cost so far.
    idle: tuple[IdleRow, ...] = ()
    idle_atom_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def trials_total(self) -> int:
        return sum(self.trial_counts.values())

    @property
    def is_over(self) -> bool:
        return self.state == "finished"

    def trial(self, number: int | None) -> TrialRow | None:
        """Return the trial of this number, if it is among those sent."""
        return next((trial for trial in self.trials if trial.id == number), None)


Point = TypeVar("Point")


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Keep at most ``most`` of the points, evenly spaced, the first and the last included."""
    last = len(points) - 1
    if last < most:
        return list(points)
    return [points[place * last // max(1, most - 1)] for place in range(most)]


# ---------------------------------------------------------------- JSON


def to_json(view: Standing) -> dict[str, Any]:
    """Return the view as JSON has it."""
    found: dict[str, Any] = msgspec.to_builtins(view, str_keys=True)
    return found


def from_json(value: Mapping[str, Any]) -> Standing:
    """Return the view that ``to_json`` wrote. Raises ValueError on anything else."""
    return msgspec.convert(value, Standing, str_keys=True)


def device_notes(view: Standing) -> Iterator[str]:
    """Word what disturbs the devices that train: ``GPU 0, GPU 3: slowed by heat``."""
    by_note: dict[str, list[str]] = {}
    for device in view.devices:
        for note in device.notes if device.state == "held" else ():
            by_note.setdefault(note, []).append(device.name)
    return (f"{', '.join(names)}: {note}" for note, names in by_note.items())


#: Names of idle atoms, and reasons, that are written out.
IDLE_MOST = 4


def idle_atoms(view: Standing) -> Iterator[str]:
    """Word each group of idle atoms: ``GPU 2, GPU 3 idle for 12 s: quarantined (held by pid 311)``."""
    names = {device.id: device.name for device in view.devices}
    for row in view.idle:
        shown = [names.get(device, device) for device in row.devices[:IDLE_MOST]]
        more = f" and {len(row.devices) - IDLE_MOST} more" if row.devices[IDLE_MOST:] else ""
        detail = row.detail.removeprefix(f"{shown[0]}: ") if shown else row.detail
        detail = f" ({detail})" if detail else ""
        yield f"{', '.join(shown)}{more} idle for {show_duration(row.idle_s)}: {row.reason}{detail}"


def idle_shares(view: Standing) -> Iterator[str]:
    """Word the share of all atoms' time that was idle, and its reasons, the dearest first; not below one percent."""
    all_s = view.atoms.total * view.now_s
    reasons = sorted(view.idle_atom_s.items(), key=lambda item: -item[1])
    idle_s = sum(cost_s for _, cost_s in reasons)
    if not all_s or idle_s < 0.01 * all_s:
        return
    atoms = count(view.atoms.total, "atom")
    yield f"{idle_s / all_s:.0%} of the time of {atoms} was idle, {show_duration(idle_s)} in all:"
    for reason, cost_s in reasons[:IDLE_MOST]:
        if cost_s >= 0.01 * all_s:
            yield f"  {cost_s / all_s:4.0%}  {reason}"
