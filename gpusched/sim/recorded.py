"""A recorded search up to an instant, as an experiment that can go on: with more time, other atoms, another policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from gpusched import policies
from gpusched.core.commands import Yield
from gpusched.core.decisions import NO_STEP_FITS, Policy
from gpusched.core.events import (
    DeadlineMoved,
    DeviceQuarantined,
    DeviceReadmitted,
    ExperimentStarted,
)
from gpusched.core.experiment import Experiment
from gpusched.core.state import State
from gpusched.driver.assemble import assemble, read_recipe
from gpusched.driver.loop import replay
from gpusched.errors import InputError
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal import rows
from gpusched.journal.rows import Entry
from gpusched.journal.timeline import timeline
from gpusched.sim.physics import Delays
from gpusched.sim.setup import complete_options
from gpusched.sim.trace import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A change of the search from now on. ``atoms``, ``policy``: None for those it has."""

    add_s: float = 0.0
    atoms: int | None = None
    policy: str | None = None


NO_CHANGE = Question()


class Recorded:
    """A recorded search. A search that is over is taken as of just before its end."""

    def __init__(self, paths: ExperimentPaths, entries: Sequence[Entry] | None = None) -> None:
        """``entries``: of the journal; None: all. Raises DamagedState."""
        self.paths, self.recipe = paths, read_recipe(paths)
        self._rules = rows.read_meta(paths.journal).get("rules")
        found = list(rows.read(paths.journal)) if entries is None else entries
        self.entries = found[: self._end(found)]
        self.is_over = len(self.entries) < len(found)
        self.state = self.experiment().state
        self.delays: Delays = Record(self.recipe, timeline(self.entries)).delays

    def until(self, at_s: float) -> Recorded:
        """Return the search as it was then, seconds since its beginning."""
        return Recorded(self.paths, [entry for entry in self.entries if entry.event.at <= at_s])

    def _end(self, entries: Sequence[Entry]) -> int:
        """Return the number of events before the end began: before trials left because no time was left."""
        search = assemble(self.recipe, self.paths, self._rules).experiment
        state, end, was_ending = search.state, None, False
        for place, entry in enumerate(entries):
            replay(search, iter([entry]))
            if was_ending and state.stopping is None:
                end = None  # a search that was over goes on
            was_ending = state.stopping is not None
            if end is None and (was_ending or _leaves_for_want_of_time(state, entry)):
                end = place
        self.best = state.best
        return len(entries) if end is None or not was_ending else end

    def experiment(self, question: Question = NO_CHANGE) -> Experiment:
        """Return the experiment where the record ends, with the change made."""
        search = self._replayed(question)
        state = search.state
        if question.add_s:
            to_s = state.rules.deadline_s + question.add_s
            search.handle(DeadlineMoved(at=state.now, deadline_s=to_s))
        if question.atoms is not None:
            slots = state.devices.slots.values()
            for slot in list(slots):
                if slot.id.startswith("spare:"):
                    search.handle(DeviceReadmitted(at=state.now, device=slot.id))
            while state.devices.usable > question.atoms:
                taken = min(
                    (slot for slot in slots if slot.state.value != "quarantined"),
                    key=lambda slot: _worth(
                        state, slot.trial if slot.state.value != "free" else None
                    ),
                )
                search.handle(DeviceQuarantined(at=state.now, device=taken.id, reason="taken away"))
        return search

    def _replayed(self, question: Question) -> Experiment:
        """Return the experiment at the end of what is recorded, with the devices and the policy of the question."""
        search = assemble(self.recipe, self.paths, self._rules).experiment
        own = search.policy
        other = None
        if question.policy is not None:
            options = complete_options(question.policy, self.recipe.policy_options)
            other = policies.make(question.policy, options)
            self._require(other, question)
            let_watch(own, other)
        replay(search, self._with_spares(question.atoms))
        search.policy = other or own
        return search

    def _require(self, other: Policy, question: Question) -> None:
        """Raise InputError if the recipe's options do not suit the other policy."""
        rules, atoms = self.state.rules, question.atoms or self.state.atoms_total
        found = [*other.options.problems(), *other.problems(rules, atoms)]
        if found:
            told = "; ".join(f"{option} {message}" for option, message in found)
            raise InputError(f"--policy {question.policy}: {told}")

    def _with_spares(self, atoms: int | None) -> Iterator[Entry]:
        """Yield the entries; where more atoms are asked for than there were, those exist from the start, unusable."""
        for entry in self.entries:
            event = entry.event
            if atoms is not None and isinstance(event, ExperimentStarted):
                spares = [f"spare:{n}" for n in range(atoms - len(event.devices))]
                event = replace(
                    event,
                    devices=(*event.devices, *spares),
                    unusable={**event.unusable, **dict.fromkeys(spares, "not there yet")},
                )
                entry = dataclasses.replace(entry, event=event)
            yield entry


def let_watch(own: Policy, other: Policy) -> None:
    """Show ``other`` what ``own`` sees of trials from now on, to take over later; what ``other`` decides is dropped.

    An answer raises InputError where ``other`` cannot make sense of what it sees.
    """

    def watched(decide: Callable[..., Any], show: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*seen: Any) -> Any:
            try:
                show(*seen)
            except Exception as error:
                raise InputError(
                    f"--policy {other.name}: plans a search from its beginning and cannot take over one that "
                    f"{own.name} began ({type(error).__name__})"
                ) from error
            return decide(*seen)

        return answer

    for hook in ("on_report", "on_start", "on_exit"):
        setattr(own, hook, watched(getattr(own, hook), getattr(other, hook)))


def _leaves_for_want_of_time(state: State, entry: Entry) -> bool:
    leaving = [state.trials[c.trial].after for c in entry.commands if isinstance(c, Yield)]
    return any(after is not None and after.reason.endswith(NO_STEP_FITS) for after in leaving)


def _worth(state: State, trial: int | None) -> float:
    return -float("inf") if trial is None else state.trials[trial].score
