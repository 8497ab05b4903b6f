"""HyperDrive (Middleware'17), figure 4: how POP divides its slots, early, late, and over a search's life.

The searches of figure 12 on five machines. At every forecast that came back, the p of all jobs under way: S_desired(p)
is how many have at least p, S_deserved(p) is p of the slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusched import policies
from gpusched.core.decisions import View
from gpusched.policies.pop import Pop
from gpusched.sim.setup import Setup, recipe
from gpusched.sim.study import Mean, run
from papers import hyperdrive, study
from papers.study import Study

MACHINES = 5
#: The snapshots of figures 4 a and b: "after about 20 min", "after almost 2 hrs" or just before the end.
SNAPSHOTS_S = {"a": 20 * 60.0, "b": 115 * 60.0}
#: Parts of a search's life of figure 4 c.
PARTS = (0.2, 0.4, 0.6, 0.8, 1.0)
STEPS = tuple(n / 20 for n in range(1, 21))


@dataclass(frozen=True, slots=True)
class Look:
    """Forecasts at one instant: the p of every job under way, and the number of slots for promising ones."""

    at_s: float
    p: tuple[float, ...]
    promising: int


class WatchedPop(Pop):
    """POP, and how it saw its jobs over time."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.looks: list[Look] = []

    def on_forecast(self, view: View, *about: Any) -> Any:
        decisions = super().on_forecast(view, *about)
        known = filter(None, map(self.confidence.known, (*view.live, *view.paused)))
        self.looks.append(Look(view.now, tuple(one.p for one in known), self.confidence.count))
        return decisions


policies.REGISTRY = {**policies.REGISTRY, "watched_pop": (__name__, "WatchedPop")}


@dataclass(frozen=True, slots=True)
class Watched:
    source: str
    ended_at_s: float
    looks: tuple[Look, ...]

    def at(self, at_s: float) -> Look:
        """Return the last look up to an instant."""
        before = [look for look in self.looks if look.at_s <= at_s]
        return before[-1] if before else Look(0.0, (), 0)


def setups(quick: bool) -> list[Setup]:
    return [
        hyperdrive.setup(source, "pop", MACHINES, order, "watched_pop")
        for source in hyperdrive.SOURCES
        for order in range(2 if quick else hyperdrive.ORDERS)
    ]


def work(setup: Setup) -> Watched:
    search, _ = run(setup, recipe(setup))
    assert isinstance(search.policy, WatchedPop)
    return Watched(setup.label, search.state.now, tuple(search.policy.looks))


def draw(results: Sequence[Watched], folder: Path) -> list[str]:
    found, said = list[dict[str, Any]](), list[str]()
    for source in hyperdrive.SOURCES:
        searches = [result for result in results if result.source == source]
        for part, at_s in SNAPSHOTS_S.items():
            looks = [search.at(at_s) for search in searches]
            for p in STEPS:
                desired = Mean.of(sum(one >= p for one in look.p) for look in looks)
                found.append(
                    {
                        "source": source,
                        "part": part,
                        "p": p,
                        "desired": round(desired.mean, 3),
                        "desired_half_width": round(desired.half_width, 3),
                        "deserved": MACHINES * p,
                    }
                )
            over = sum(search.ended_at_s <= at_s for search in searches)
            said.append(
                f"4 {part}, {source}, {at_s / 60:g} min ({over} of {len(searches)} over before): "
                f"{Mean.of(len(look.p) for look in looks).mean:.1f} jobs with a forecast, "
                f"{Mean.of(look.promising for look in looks)} promising; desired at p of "
                + ", ".join(f"{point['p']:g}: {point['desired']:.2f}" for point in found[-20::4])
            )
        shares = [
            Mean.of(
                min(1.0, search.at(part * search.ended_at_s).promising / MACHINES)
                for search in searches
            )
            for part in PARTS
        ]
        said.append(
            f"4 c, {source}: slots for promising jobs by fifths: {', '.join(f'{share.mean:.2f}' for share in shares)}"
        )
    name, title = (
        "hyperdrive-4",
        "HyperDrive figure 4 a and b: slots that promising jobs desire and deserve",
    )
    study.write(folder, name, title, found)
    figure, axes = study.panels(len(SNAPSHOTS_S) * len(hyperdrive.SOURCES), width=2.6)
    for place, (source, part) in enumerate(dict.fromkeys((p["source"], p["part"]) for p in found)):
        here = [point for point in found if (point["source"], point["part"]) == (source, part)]
        xs = [point["p"] for point in here]
        axes[place].errorbar(
            xs,
            [p["desired"] for p in here],
            [p["desired_half_width"] for p in here],
            label="desired",
        )
        axes[place].plot(xs, [point["deserved"] for point in here], label="deserved")
        axes[place].set_xlabel("p")
        axes[place].set_title(f"{source} curves, {SNAPSHOTS_S[part] / 60:g} min", fontsize="small")
    axes[0].set_ylabel("slots")
    axes[0].legend(fontsize="x-small")
    study.save(figure, folder, name, title)
    return said


STUDIES = [
    Study("hyperdrive-4", "slots that promising jobs desire and deserve", setups, draw, work)
]
