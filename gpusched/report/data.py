"""What a report tells of an experiment: curves, who had which device when, and which hyperparameters mattered.

Read from the journal's events alone; nothing is replayed. The journal is opened for an instant and for reading only, so
that it can be read beside the daemon that writes it (SQLite's WAL lets readers see what is committed).
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpusched.errors import DamagedState
from gpusched.text import flat

_WANTED = (
    "ExperimentStarted",
    "Reported",
    "TrialExited",
    "DevicesReleased",
    "DeviceQuarantined",
    "DeviceReadmitted",
)


@dataclass(slots=True)
class TrialStory:
    """``curve``: (at, step, metric) of every report, the metric None where it was not finite."""

    id: int
    hparams: Mapping[str, Any]
    launches: int = 0
    curve: list[tuple[float, int, float | None]] = field(default_factory=list)

    def best(self, sign: float) -> float | None:
        """The best finite metric; ``sign``: +1 where more is better, else -1."""
        finite = [value for _, _, value in self.curve if value is not None]
        return max(finite, key=lambda value: value * sign) if finite else None


@dataclass(frozen=True, slots=True)
class Span:
    """A device was in a state from ``begin`` to ``end`` (seconds): held by ``trial``, draining, or quarantined."""

    device: str
    state: str
    begin: float
    end: float
    trial: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Importance:
    """How far the rank of the best metric goes with a hyperparameter, 0 to 1, over ``trials`` trials.

    ``direction``: +1 where larger values did better, -1 where smaller did, 0 for a choice among names.
    """

    name: str
    strength: float
    direction: int
    trials: int


@dataclass(slots=True)
class Data:
    """``until``: the last event's time, seconds since the experiment began."""

    devices: tuple[str, ...] = ()
    trials: dict[int, TrialStory] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    until: float = 0.0

    def to_json(self, sign: float) -> dict[str, Any]:
        return {
            "devices": list(self.devices),
            "until_s": self.until,
            "trials": [
                {**asdict(trial), "best": trial.best(sign)} for trial in self.trials.values()
            ],
            "spans": [asdict(span) for span in self.spans],
            "importance": [asdict(one) for one in importance(self.trials.values(), sign)],
        }


def read(journal: Path) -> Data:
    """Everything, from a journal that somebody may be writing. Raises DamagedState."""
    marks = ",".join("?" * len(_WANTED))
    query = (
        "SELECT at, kind, body, commands FROM events "
        f"WHERE kind IN ({marks}) OR instr(commands, '\"Launch\"') ORDER BY seq"
    )
    try:
        connection = sqlite3.connect(f"file:{_quoted(journal)}?mode=ro", uri=True, timeout=2.0)
        try:
            rows = connection.execute(query, _WANTED).fetchall()
        finally:
            connection.close()
        reader = _Reader()
        for at, kind, body, commands in rows:
            reader.take(float(at), kind, json.loads(body), json.loads(commands or "[]"))
    except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
        raise DamagedState(f"{journal}: it cannot be read for a report ({error})") from None
    return reader.finish()


def _quoted(path: Path) -> str:
    return str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


class _Reader:
    """Events in, ``Data`` out."""

    def __init__(self) -> None:
        self.data = Data()
        self._since: dict[str, tuple[str, float, int | None, str]] = {}
        self._of_trial: dict[int, tuple[int, tuple[str, ...]]] = {}

    def take(
        self, at: float, kind: str, body: Mapping[str, Any], commands: Iterable[Sequence[Any]]
    ) -> None:
        self.data.until = max(self.data.until, at)
        match kind:
            case "ExperimentStarted":
                self.data.devices = tuple(body["devices"])
                for device, why in body.get("unusable", {}).items():
                    self._enter(device, "quarantined", at, why=why)
            case "Reported":
                trial = self.data.trials.get(body["trial"])
                if trial is not None:
                    trial.curve.append((at, body["step"], body.get("metric")))
            case "TrialExited":
                incarnation, devices = self._of_trial.get(body["trial"], (0, ()))
                if incarnation == body["incarnation"]:
                    for device in devices:
                        if self._since.get(device, ("",))[0] == "held":
                            self._enter(device, "draining", at, body["trial"])
            case "DevicesReleased":
                for device in body["devices"]:
                    self._leave(device, at)
            case "DeviceQuarantined":
                self._enter(body["device"], "quarantined", at, why=body["reason"])
            case "DeviceReadmitted":
                self._leave(body["device"], at)
            case _:
                pass
        for name, fields in commands:
            if name == "Launch":
                self._launch(at, fields)

    def _launch(self, at: float, fields: Mapping[str, Any]) -> None:
        number = fields["trial"]
        trial = self.data.trials.setdefault(number, TrialStory(number, fields["hparams"]))
        trial.launches += 1
        self._of_trial[number] = (fields["incarnation"], tuple(fields["devices"]))
        for device in fields["devices"]:
            self._enter(device, "held", at, number)

    def _enter(
        self, device: str, state: str, at: float, trial: int | None = None, why: str = ""
    ) -> None:
        self._leave(device, at)
        self._since[device] = (state, at, trial, why)

    def _leave(self, device: str, at: float) -> None:
        if (known := self._since.pop(device, None)) is not None:
            state, begin, trial, why = known
            self.data.spans.append(Span(device, state, begin, at, trial, why))

    def finish(self) -> Data:
        for device in list(self._since):
            self._leave(device, self.data.until)
        return self.data


# ---------------------------------------------------------------- which hyperparameters mattered


def importance(trials: Iterable[TrialStory], sign: float) -> list[Importance]:
    """The strongest first. Numbers by Spearman's rank correlation, names by the correlation ratio of the ranks.

    Only of what varied, over trials that have a metric. A trial that was stopped early counts with what it had, so it
    says what a policy saw rather than what a model could do.
    """
    known = [(dict(flat(t.hparams)), best) for t in trials if (best := t.best(sign)) is not None]
    if len(known) < 4:
        return []
    names = dict.fromkeys(name for hparams, _ in known for name in hparams)
    found = [one for name in names if (one := _importance(name, known, sign)) is not None]
    return sorted(found, key=lambda one: -one.strength)


def _importance(
    name: str, known: Sequence[tuple[Mapping[str, Any], float]], sign: float
) -> Importance | None:
    pairs = [(hparams[name], best * sign) for hparams, best in known if name in hparams]
    values = [value for value, _ in pairs]
    if len(pairs) < 4 or all(value == values[0] for value in values):
        return None
    ranks = _ranks([score for _, score in pairs])
    if all(type(value) in (int, float) and math.isfinite(value) for value in values):
        rho = _correlation(_ranks([float(value) for value in values]), ranks)
        return Importance(name, abs(rho), (rho > 0) - (rho < 0), len(pairs))
    groups: dict[str, list[float]] = {}
    for value, rank in zip(values, ranks, strict=True):
        groups.setdefault(json.dumps(value, sort_keys=True, default=str), []).append(rank)
    mean = sum(ranks) / len(ranks)
    whole = sum((rank - mean) ** 2 for rank in ranks)
    between = sum(len(g) * (sum(g) / len(g) - mean) ** 2 for g in groups.values())
    return Importance(name, math.sqrt(between / whole) if whole else 0.0, 0, len(pairs))


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    place = 0
    while place < len(order):
        last = place
        while last + 1 < len(order) and values[order[last + 1]] == values[order[place]]:
            last += 1
        for index in order[place : last + 1]:
            ranks[index] = (place + last) / 2 + 1
        place = last + 1
    return ranks


def _correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    both = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    spread = math.sqrt(sum((x - mean_x) ** 2 for x in xs) * sum((y - mean_y) ** 2 for y in ys))
    return both / spread if spread else 0.0
