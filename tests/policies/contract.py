"""Contract of every policy, whatever it decides: the witness that watches it, and the experiments it is put through.

``play(name, options, seed)`` runs a random simulated experiment (crashes, losses, hangs, NaN, slow releases, devices
that go and come back, people who pause and stop trials) with every invariant checked after every event. ``Witness``
stands between policy and core and looks at each answer:

* nothing but decisions comes out, and the state is not touched;
* ``Start`` and ``Resume`` ask for something that is there; what is free is asked for only if it can be had;
* a trial that is final, or that a person holds, is left alone;
* ``WakeAt`` lies ahead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from gpusched import policies
from gpusched.core.commands import Command
from gpusched.core.decisions import (
    Complete,
    Decision,
    LeaveFree,
    Pause,
    Policy,
    Resize,
    Resume,
    Start,
    Stop,
    TrialView,
    View,
    WakeAt,
)
from gpusched.core.events import Event, LimitsMoved, UserAsked
from gpusched.core.experiment import Experiment
from gpusched.core.rules import Rules
from gpusched.driver.loop import Driver
from gpusched.sim.executor import SimExecutor
from gpusched.sim.physics import Delays, SimulatedCurve
from gpusched.sim.study import start
from tests.faults import Faults, FaultyExecutor, Incident

#: More events than this in one experiment: it does not end.
MAX_EVENTS = 60_000
#: From a trial's last word, or the signal that kills it, to the end of its processes, at most.
LONGEST_EXIT_S = 0.1

BOUNDS: Mapping[str, Any] = {"metric_min": 0.0, "metric_max": 1.0}
#: Options for the contract, for policies that cannot run without or whose defaults need days. Others run with ``{}``.
VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "fifo": [{"R": 20}],
    "asha": [{"R": 27, "eta": 3.0}, {"R": None, "eta": 2.0}],
    "hypersched": [
        {"R": 40, "cooldown": 1},
        {"R": None, "eta": 2.0, "cooldown": 0},
    ],
    "foresight": [{}, {"R": 40}],
    "bandit": [{"R": 30, "b": 3}, {"R": 20, "b": 2, "eps": 0.1}],
    "pop": [
        {"R": 40, "b": 4, **BOUNDS},
        {"R": None, "b": 3, "kill_threshold": 0.1, **BOUNDS},
    ],
    "seer": [{"t_min": 0.02}, {"R": 30, "eta": 2.0, "nu": 1.5, "t_min": 0.05}],
    "hermes": [
        {"R": 40, "quantum_s": 5.0},
        {"R": None, "quantum_s": 0.5, "trials_per_device": 2, "milestones": (0.1,)},
    ],
    "earlyterm": [{"R": 30, "b": 5, **BOUNDS}],
}


# ---------------------------------------------------------------- the witness


class Witness(Policy):
    """A policy that is watched. Raises AssertionError for a nonsensical answer."""

    def __init__(self, watched: Policy) -> None:
        super().__init__(getattr(watched, "options", None))
        self.watched = watched
        self.asked = 0

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        return self._watch(view, "on_report", trial)

    def on_exit(self, view: View, trial: TrialView) -> Sequence[Decision]:
        assert not trial.is_live, f"on_exit: trial {trial.id} is {trial.state.value}"
        return self._watch(view, "on_exit", trial)

    def on_wake(self, view: View) -> Sequence[Decision]:
        return self._watch(view, "on_wake")

    def on_capacity(self, view: View) -> Sequence[Decision]:
        answer = self._watch(view, "on_capacity")
        if answer:
            fits = any(_fits(view, decision) for decision in answer)
            assert fits, f"on_capacity wants what cannot be had: {answer}"
        return answer

    def _watch(self, view: View, callback: str, *arguments: Any) -> Sequence[Decision]:
        before = _fingerprint(view)
        answer: Sequence[Decision] = getattr(self.watched, callback)(view, *arguments)
        assert _fingerprint(view) == before, f"{callback} changed the view"
        self.asked += 1
        for decision in answer:
            why = f"{callback} at {view.now:.2f} s: {decision}"
            _check_decision(view, decision, why)
        return answer


def _fingerprint(view: View) -> tuple[object, ...]:
    return (
        len(view.trials),
        [(t.id, t.state, t.atoms, t.is_resizing) for t in map(view.trials.__getitem__, view.live)],
        sorted(view.paused),
        view.atoms_free,
        view.wake_at,
        view.now,
    )


def _check_decision(view: View, decision: Decision, why: str) -> None:
    match decision:
        case Start(atoms=atoms):
            assert view.can_draw, f"{why}: there is no configuration left"
            assert atoms >= 1, why
        case Resume(trial=trial, atoms=atoms):
            assert trial in view.paused, f"{why}: it is {view.trials[trial].state.value}"
            assert not view.trials[trial].held_by_user, f"{why}: a person holds it"
            assert atoms >= 1, why
        case Resize(trial=trial, atoms=atoms):
            found = view.trials[trial]
            assert found.is_live, f"{why}: it is {found.state.value}"
            assert atoms >= 1, why
            assert atoms != found.atoms, f"{why}: it has that many"
        case Pause() | Stop() | Complete():
            assert not view.trials[decision.trial].is_final, f"{why}: it is final"
            assert decision.reason, f"{why}: no reason is given"
        case WakeAt(at=at):
            assert at >= view.now, f"{why}: that is over"
            assert at < view.rules.deadline_s + 1e9, why
        case _:
            assert isinstance(decision, LeaveFree), f"{why}: that is no decision"
            assert decision.why, f"{why}: says nothing"


def _fits(view: View, decision: Decision) -> bool:
    match decision:
        case Start(atoms=atoms) | Resume(atoms=atoms):
            return view.rules.fit(atoms) <= view.atoms_free
        case Resize(trial=trial, atoms=atoms):
            return view.rules.fit(atoms) - view.trials[trial].atoms <= view.atoms_free
        case _:
            return True


# ---------------------------------------------------------------- a random world


@dataclass
class RandomWorkload:
    """Rising, flat and falling curves, some with NaN, some that end or crash by themselves."""

    seed: int
    mode: Any
    metric: str = "score"
    space: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def curve(self, trial: int, hparams: Mapping[str, Any], seed: int) -> SimulatedCurve:
        random = Random(f"{self.seed}/curve/{trial}")
        end, start, speed = random.random(), random.random() * 0.5, random.uniform(0.5, 20.0)
        nan_every = random.choice([0, 0, 0, 0, 7])
        step_time_s = random.choice([0.5, 1.0, 1.0, 3.0])

        def metric(step: int) -> float:
            if nan_every and step % nan_every == 0:
                return math.nan
            score = end + (start - end) * math.exp(-step / speed)
            return score if self.mode == "max" else 1.0 - score

        length = random.choice([None, None, None, None, random.randint(3, 40)])
        ending = random.choice(["finished", "finished", "failed"])
        return SimulatedCurve(metric, lambda step: step_time_s, length, ending)


@dataclass
class Played:
    """One experiment that is over."""

    log: list[tuple[Event, list[Command]]]
    experiment: Experiment
    policy: Policy
    make: Any

    @property
    def commands(self) -> list[list[Command]]:
        return [commands for _, commands in self.log]

    def again(self) -> list[list[Command]]:
        """The same events through a fresh experiment."""
        fresh: Experiment = self.make()
        return [fresh.handle(event) for event, _ in self.log]


def play(name: str, options: Mapping[str, Any], seed: int) -> Played:
    """A random experiment from beginning to end."""
    random = Random(f"{name}/{seed}")
    atoms = random.randint(1, 8)
    deadline_s = random.choice([30.0, 120.0, 400.0])
    rules = Rules(
        deadline_s=deadline_s,
        mode=random.choice(["max", "min"]),
        scaling=random.choice(["linear", "auto", "sqrt"]),
        max_atoms=random.choice([None, None, 3]),
        sizes=random.choice([(), (), (1, 2, 4)]),
        max_trials=random.choice([None, 5, 40]),
        max_failures=1000,
        last_call_s=0.5,
        startup_limit_s=20.0,
        hang_limit_s=15.0,
    )

    def make() -> Experiment:
        return Experiment(
            rules, Witness(policies.make(name, options)), lambda n: {"n": n} if n < 60 else None
        )

    experiment = make()
    executor = _executor(random, seed, rules, atoms)
    log: list[tuple[Event, list[Command]]] = []
    driver = Driver(
        experiment,
        executor,
        observer=lambda event, commands: log.append((event, list(commands))),
        check=True,
    )
    start(driver, executor)
    asked = sorted(random.uniform(0, deadline_s) for _ in range(random.choice([0, 6])))
    reopenings = random.choice([0, 0, 1, 3])
    for _ in range(2 * MAX_EVENTS):
        if experiment.state.finished and not reopenings:
            break
        if experiment.state.finished:
            reopenings -= 1
            driver.reopen(_reopened(random, experiment, executor))
            continue
        driver.turn(asked[0] if asked else math.inf)
        assert len(log) < MAX_EVENTS, f"{name}: does not end"
        if asked and executor.now() >= asked[0]:
            asked.pop(0)
            driver.handle([_request(random, experiment, executor.now())])
    assert experiment.state.finished, f"{name}: stands still at {executor.now()} s"
    witness = experiment.policy
    assert isinstance(witness, Witness)
    return Played(log, experiment, witness.watched, make)


def _executor(random: Random, seed: int, rules: Rules, atoms: int) -> SimExecutor:
    incidents = []
    for _ in range(random.choice([0, 0, 2])):
        device, at = f"sim:{random.randrange(atoms)}", random.uniform(0, rules.deadline_s)
        incidents.append(Incident(at=at, kind="quarantine", device=device))
        if random.random() < 0.7:
            back = at + random.uniform(1.0, 30.0)
            incidents.append(Incident(at=back, kind="readmit", device=device))
    lag = random.choice([0.0, 0.0, 1.0])
    delays = Delays(
        launch_s=lag * random.random(),
        resize_s=lag * random.random(),
        save_s=lag * 0.2,
        exit_s=lag * LONGEST_EXIT_S,
        release_s=lag * random.random(),
    )
    faults = Faults(
        crash=random.choice([0.0, 0.01]),
        lost=random.choice([0.0, 0.01]),
        hang=random.choice([0.0, 0.003]),
    )
    return FaultyExecutor(
        RandomWorkload(seed, rules.mode),
        atoms,
        delays=delays,
        faults=faults,
        incidents=incidents,
        seed=seed,
    )


def _reopened(random: Random, experiment: Experiment, executor: SimExecutor) -> LimitsMoved:
    """A later deadline, perhaps more trials; some checkpoints are gone."""
    rules, now = experiment.state.rules, executor.now()
    saved = {trial: max(story.saved, default=0) for trial, story in executor.stories.items()}
    return LimitsMoved(
        at=now,
        deadline_s=max(now, rules.deadline_s) + random.choice([0.0, 10.0, 100.0]),
        max_trials=random.choice([None, rules.max_trials]),
        checkpoints={str(n): step for n, step in saved.items() if step and random.random() < 0.8},
    )


def _request(random: Random, experiment: Experiment, now: float) -> UserAsked | LimitsMoved:
    if random.random() < 0.1:
        moved_s = random.choice([-1.0, 0.5, 2.0])
        return LimitsMoved(at=now, deadline_s=experiment.state.rules.deadline_s + moved_s)
    asks = ["pause", "pause", "unpause", "unpause", "stop_trial", "try"]
    verb: Any = "stop" if random.random() < 0.1 else random.choice(asks)
    trial = random.choice(list(experiment.state.trials) or [0])
    return UserAsked(at=now, verb=verb, trial=trial, hparams={"mine": now})
