"""Every policy on a machine where anything may happen that can happen, in any order, and news may come late or twice.

After each event all invariants hold; at the end the whole sequence is replayed and gives the same commands and state.
Reliability's invariants 1 to 10, as far as they concern the core.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec.structs import replace

from gpusched import policies
from gpusched.core import events as ev
from gpusched.core.commands import Command, Launch
from gpusched.core.experiment import Experiment
from gpusched.core.rules import Rules
from gpusched.core.trial import TrialState
from gpusched.journal.rows import commands_from, commands_text, event_body, event_from
from tests.core.world import Process, World
from tests.events import reported
from tests.helpers import difference, snapshot
from tests.policies.contract import VARIANTS

S = TrialState
METRICS = st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.5, 0.7, 0.9, None])


def draw(n: int) -> Mapping[str, object] | None:
    return {"n": n} if n < 40 else None


class Anything(RuleBasedStateMachine):
    """One experiment. ``policy_name`` is set by the subclass that each policy gets."""

    policy_name = ""
    #: Events after which a person may end it.
    ends_after = 40

    @initialize(
        data=st.data(),
        devices=st.integers(1, 4),
        islands=st.booleans(),
        sizes=st.sampled_from([(), (), (1, 2, 4), (2,)]),
        max_atoms=st.sampled_from([None, None, 1, 2, 3]),
        max_trials=st.sampled_from([None, None, 3]),
        mode=st.sampled_from(["max", "min"]),
        scaling=st.sampled_from(["auto", "linear"]),
    )
    def begin(self, data: Any, devices: int, islands: bool, **rules: Any) -> None:
        sizes = tuple(size for size in rules.pop("sizes") if size <= devices)
        max_atoms = rules.pop("max_atoms")
        if max_atoms is not None and sizes:
            max_atoms = max(max_atoms, *sizes)
        self.rules = Rules(
            deadline_s=60.0,
            startup_limit_s=25.0,
            sizes=sizes,
            max_atoms=max_atoms,
            islands_apart=islands and data.draw(st.booleans()),
            **rules,
        )
        self.options = data.draw(st.sampled_from(VARIANTS.get(self.policy_name, [{}])))
        self.experiment = self.fresh()
        names = tuple(f"d{n}" for n in range(devices))
        self.world = World(names)
        self.now = 0.0
        self.log: list[tuple[ev.Event, list[Command]]] = []
        numbers = {name: n // 2 for n, name in enumerate(names)} if islands else {}
        self.feed(ev.ExperimentStarted(at=0.0, devices=names, islands=numbers))

    def fresh(self) -> Experiment:
        policy = policies.make(self.policy_name, self.options)
        return Experiment(self.rules, policy, draw)

    # ------------------------------------------------------------ feeding

    def feed(self, event: ev.Event) -> None:
        self.is_whole = False
        drawn_before = set(self.experiment.state.trials)
        live_before = set(self.experiment.state.live)
        commands = self.experiment.handle(event)
        self.experiment.check()
        self.log.append((event, commands))
        assert event_from(type(event).__name__, event.at, event_body(event)) == event
        assert commands_from(commands_text(commands)) == commands
        hparams = {trial.id: trial.hparams for trial in self.experiment.state.trials.values()}
        for command in commands:
            self.world.execute(command, hparams)
            if isinstance(command, Launch) and command.trial not in drawn_before:
                self.check_entrance(live_before)
        self.is_whole = True

    def check_entrance(self, live_before: set[int]) -> None:
        """Invariant 8: HyperSched launches nothing new when min(R*Ta, eta*tf) >= time left."""
        if self.policy_name != "hypersched":
            return
        state, policy = self.experiment.state, self.experiment.policy
        options: Any = policy.options
        needed_s = options.eta * state.longest_training_s
        if options.R is not None and state.speed.step_on_one_atom_s is not None:
            needed_s = min(needed_s, options.R * state.speed.step_on_one_atom_s)
        idle = not any(trial in state.live for trial in live_before)
        assert needed_s < state.time_left_s or idle

    @property
    def goes_on(self) -> bool:
        return self.world.finished is None

    def process(self, data: Any) -> Process:
        numbers = sorted(self.world.processes)
        return self.world.processes[data.draw(st.sampled_from(numbers), label="trial")]

    # ------------------------------------------------------------ what can happen to trials

    @precondition(lambda self: self.goes_on)
    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.goes_on and self.world.processes)
    @rule(data=st.data())
    def it_comes_up(self, data: Any) -> None:
        process = self.process(data)
        if not process.is_up:
            process.is_up = True
            self.feed(ev.TrialUp(at=self.now, trial=process.trial, incarnation=process.incarnation))

    @precondition(lambda self: self.goes_on and self.world.processes)
    @rule(data=st.data(), metric=METRICS, takes_s=st.sampled_from([0.2, 1.0]))
    def it_reports(self, data: Any, metric: float | None, takes_s: float) -> None:
        self.one_report(self.process(data), metric, takes_s)

    @precondition(lambda self: self.goes_on)
    @rule(by_s=st.sampled_from([-30.0, -1.0, 5.0]))
    def the_deadline_is_moved(self, by_s: float) -> None:
        deadline_s = self.experiment.state.rules.deadline_s + by_s
        self.feed(ev.DeadlineMoved(at=self.now, deadline_s=deadline_s))

    @precondition(lambda self: self.goes_on)
    @rule(rounds=st.integers(1, 6), seed=st.integers(0, 99))
    def all_goes_well_for_a_while(self, rounds: int, seed: int) -> None:
        self.all_goes_well(rounds, 0.1, seed)

    @precondition(lambda self: self.goes_on)
    @rule(rounds=st.integers(5, 30), seed=st.integers(0, 99))
    def all_goes_well_for_long(self, rounds: int, seed: int) -> None:
        self.all_goes_well(rounds, 0.05, seed)

    def all_goes_well(self, rounds: int, takes_s: float, seed: int) -> None:
        """Everybody trains, devices are released, timers fire."""
        random = Random(seed)
        for _ in range(rounds):
            for process in list(self.world.processes.values()):
                if self.goes_on and self.world.processes.get(process.trial) is process:
                    metric = random.choice([0.1, 0.3, 0.5, 0.6, 0.8, None])
                    self.one_report(process, metric, takes_s)
            if self.goes_on and self.world.to_confirm:
                self.release(sorted(self.world.to_confirm))
            while self.goes_on and min(self.world.timers.values(), default=math.inf) <= self.now:
                self.the_next_timer_fires()

    def one_report(self, process: Process, metric: float | None, takes_s: float) -> None:
        disk = self.world.disks[process.trial]
        process.is_up = True
        process.step += 1
        disk.seq, disk.step = disk.seq + 1, process.step
        disk.metrics[process.step] = metric
        disk.reported.add((process.step, metric))
        self.now += takes_s / len(process.devices)
        self.feed(
            reported(
                at=self.now,
                trial=process.trial,
                incarnation=process.incarnation,
                seq=disk.seq,
                step=process.step,
                metric=metric,
                step_time_s=takes_s / len(process.devices),
            )
        )
        if process.told_to_leave and not process.killed:
            self.leave(process, "yielded", process.step if process.saves else None)
        elif process.saves:
            process.saves = False
            self.save(process, process.step)

    def save(self, process: Process, step: int) -> None:
        self.world.saved(process, step)
        self.feed(
            ev.CheckpointSaved(
                at=self.now,
                trial=process.trial,
                incarnation=process.incarnation,
                step=step,
                save_s=0.01,
            )
        )

    @precondition(lambda self: self.goes_on and self.world.processes)
    @rule(data=st.data())
    def it_saves_without_being_told(self, data: Any) -> None:
        process = self.process(data)
        if process.step > self.world.disks[process.trial].saved_step:
            self.save(process, process.step)

    def leave(self, process: Process, outcome: ev.Outcome, saved: int | None = None) -> None:
        if saved is not None:
            self.world.saved(process, saved)
        self.world.gone(process)
        self.feed(
            ev.TrialExited(
                at=self.now,
                trial=process.trial,
                incarnation=process.incarnation,
                outcome=outcome,
                step=process.step,
                saved_step=saved,
            )
        )
        trial = self.experiment.state.trials[process.trial]
        if trial.state is S.PAUSED and outcome == "yielded" and saved is not None:
            assert trial.saved_step == trial.step, "invariant 7: a paused trial has a checkpoint"

    @precondition(lambda self: self.goes_on and self.world.processes)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(["lost", "lost", "killed", "failed", "finished", "yielded"]),
    )
    def it_ends_by_itself(self, data: Any, outcome: ev.Outcome) -> None:
        self.leave(self.process(data), outcome)

    @precondition(lambda self: any(p.killed for p in self.world.processes.values()))
    @rule(data=st.data(), outcome=st.sampled_from(["killed", "killed", "failed", "finished"]))
    def a_kill_works(self, data: Any, outcome: ev.Outcome) -> None:
        killed = sorted(n for n, p in self.world.processes.items() if p.killed)
        self.leave(self.world.processes[data.draw(st.sampled_from(killed))], outcome)

    # ------------------------------------------------------------ what can happen to devices

    @precondition(lambda self: self.goes_on and self.world.to_confirm)
    @rule(data=st.data())
    def devices_are_released(self, data: Any) -> None:
        waiting = sorted(self.world.to_confirm)
        devices = data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique=True))
        self.release(devices)

    def release(self, devices: list[str]) -> None:
        self.world.released(set(devices))
        self.feed(ev.DevicesReleased(at=self.now, devices=tuple(devices)))

    @precondition(lambda self: self.goes_on and len(self.world.quarantined) < 3)
    @rule(data=st.data())
    def a_device_is_lost(self, data: Any) -> None:
        device = data.draw(st.sampled_from(self.world.devices))
        self.world.quarantine(device)
        self.feed(ev.DeviceQuarantined(at=self.now, device=device, reason="Xid 79"))

    @precondition(lambda self: self.goes_on and self.world.can_readmit())
    @rule(data=st.data())
    def a_device_comes_back(self, data: Any) -> None:
        device = data.draw(st.sampled_from(self.world.can_readmit()))
        self.world.readmit(device)
        self.feed(ev.DeviceReadmitted(at=self.now, device=device))

    @precondition(lambda self: self.goes_on and len(self.world.devices) < 9)
    @rule()
    def a_node_joins(self) -> None:
        names = tuple(f"j{len(self.world.devices) + n}" for n in range(2))
        self.world.join(names)
        islands = dict.fromkeys(names, len(self.world.devices))
        self.feed(ev.DevicesJoined(at=self.now, devices=names, islands=islands))

    # ------------------------------------------------------------ time, people, forecasts, daemons

    @precondition(lambda self: self.goes_on and self.world.timers)
    @rule()
    def the_next_timer_fires(self) -> None:
        timer = min(self.world.timers, key=lambda name: self.world.timers[name])
        self.now = max(self.now, self.world.timers.pop(timer))
        self.feed(ev.TimerFired(at=self.now, timer=timer))

    @precondition(lambda self: self.goes_on)
    @rule(
        verb=st.sampled_from(["pause", "unpause", "unpause", "stop_trial"]), trial=st.integers(0, 6)
    )
    def a_person_asks(self, verb: ev.Verb, trial: int) -> None:
        self.feed(ev.UserAsked(at=self.now, verb=verb, trial=trial))

    @precondition(lambda self: self.goes_on and len(self.log) > self.ends_after)
    @rule(verb=st.sampled_from(["stop", "cancel", "kill"]), at_once=st.booleans())
    def a_person_ends_it(self, verb: ev.Verb, at_once: bool) -> None:
        self.feed(ev.UserAsked(at=self.now, verb=verb))
        for process in list(self.world.processes.values()) if at_once else ():
            if process.killed:
                self.leave(process, "killed")
            else:
                self.one_report(process, 0.5, 0.1)

    @precondition(lambda self: not self.goes_on)
    @rule(
        more_s=st.sampled_from([0.0, 5.0, 60.0]),
        lost=st.sets(st.integers(0, 5)),
        any_number=st.booleans(),
    )
    def a_person_has_it_go_on(self, more_s: float, lost: set[int], any_number: bool) -> None:
        """After the end; some checkpoints have been removed."""
        state = self.experiment.state
        before = {trial.id: (trial.state, trial.cut_atoms) for trial in state.trials.values()}
        there = {
            str(trial): disk.saved_step
            for trial, disk in self.world.disks.items()
            if disk.saved_step and trial not in lost
        }
        self.world.finished = None
        self.feed(
            ev.Reopened(
                at=self.now,
                deadline_s=max(self.now, self.rules.deadline_s) + more_s,
                max_trials=None if any_number else self.rules.max_trials,
                checkpoints=there,
            )
        )
        for number, (then, cut_atoms) in before.items():
            was_cut = cut_atoms is not None
            if not was_cut or (str(number) not in there and state.trials[number].seq):
                assert state.trials[number].state is then, "only the end is taken back"

    @precondition(lambda self: self.goes_on and self.world.forecasts)
    @rule(p=st.floats(0, 1))
    def a_forecast_comes_back(self, p: float) -> None:
        asked = self.world.forecasts.pop(0)
        answer = {"p": p, "mean": p, "std": 0.1, "accepted": 1.0}
        self.feed(ev.Forecasted(at=self.now, trial=asked.trial, step=asked.step, forecast=answer))

    # ------------------------------------------------------------ late, repeated and impossible news

    @rule(data=st.data(), kind=st.sampled_from(["again", "again", "nobody", "daemon"]))
    def something_without_consequence(self, data: Any, kind: str) -> None:
        if kind == "again":
            self.old_news_comes_again(data)
        elif kind == "nobody":
            self.news_of_nobody(data.draw(st.integers(0, 50)), data.draw(st.sampled_from([0, 99])))
        else:
            self.feed(ev.DaemonResumed(at=self.now, epoch=2))

    def old_news_comes_again(self, data: Any) -> None:
        kinds = (ev.TrialUp, ev.Reported, ev.CheckpointSaved, ev.TrialExited, ev.DevicesReleased)
        old = [event for event, _ in self.log if isinstance(event, kinds)]
        if not old:
            return
        event = data.draw(st.sampled_from(old), label="again")
        if isinstance(event, ev.DevicesReleased):
            if not set(event.devices) <= self.world.clean:
                return  # whoever says so now would lie
        elif isinstance(event, ev.TrialUp | ev.CheckpointSaved | ev.TrialExited):
            process = self.world.processes.get(event.trial)
            if process is not None and process.incarnation == event.incarnation:
                return  # of an incarnation that runs it would be no old news
        self.feed(replace(event, at=data.draw(st.sampled_from([event.at, self.now]))))

    def news_of_nobody(self, trial: int, incarnation: int) -> None:
        about: dict[str, Any] = {"at": self.now, "trial": trial, "incarnation": incarnation}
        for event in (
            ev.TrialUp(**about),
            reported(**about, seq=9999, step=9999, metric=1.0),
            ev.CheckpointSaved(**about, step=9999, save_s=1.0),
            ev.TrialExited(**about, outcome="failed", saved_step=9999),
        ):
            self.feed(event)
        assert all(known.step < 9999 for known in self.experiment.state.trials.values())
        assert all(known.saved_step < 9999 for known in self.experiment.state.trials.values())

    # ------------------------------------------------------------ always

    @invariant()
    def the_world_agrees(self) -> None:
        if not hasattr(self, "world"):
            return
        state = self.experiment.state
        believed = {t.id: t.incarnation for t in state.trials.values() if t.has_processes}
        assert believed == {p.trial: p.incarnation for p in self.world.processes.values()}
        assert state.finished == (self.world.finished is not None)
        assert state.devices.free <= self.world.clean
        for trial, disk in self.world.disks.items():
            assert state.trials[trial].seq == disk.seq, "invariant 3: every report is known"

    @invariant()
    def something_moves(self) -> None:
        """Invariant 10, liveness."""
        if not hasattr(self, "world") or not self.goes_on:
            return
        state = self.experiment.state
        assert self.world.something_can_happen(), "nothing will ever happen again"
        if state.stopping is not None or state.room() < self.rules.smallest:
            return
        assert not state.wanted or state.live, "a trial that is to go on waits for nothing"
        if self.policy_name in ("fifo", "asha"):
            assert not state.can_draw, "an atom is free and a configuration is left"

    @invariant()
    def the_best_is_the_best(self) -> None:
        if not hasattr(self, "world") or self.experiment.state.best is None:
            return
        best, kept = self.experiment.state.best, self.world.best
        assert (kept.trial, kept.step, kept.metric) == (best.trial, best.step, best.metric)
        assert math.isfinite(best.metric)

    def teardown(self) -> None:
        if not hasattr(self, "world") or not self.is_whole:
            return  # what went wrong before is the news
        self.check_rungs()
        again = self.fresh()
        for event, commands in self.log:
            assert again.handle(event) == commands, "invariant 5: replay decides the same"
        mine, replayed = snapshot(self.experiment), snapshot(again)
        assert mine == replayed, f"invariant 5: the state differs in {difference(mine, replayed)}"

    def check_rungs(self) -> None:
        """Invariant 4: one score a trial, and one that was reported at that step.

        Synchronous halving takes in a trial that could not be asked at its milestone as soon as it can.
        """
        sign, later = self.rules.sign, self.policy_name in ("sha", "hyperband")
        for rung in self.experiment.policy.rungs(self.experiment.state):
            trials = list(rung.top(len(rung)))
            assert len(trials) == len(set(trials)) == len(rung)
            for trial in trials:
                scores = {
                    -math.inf if metric is None else metric * sign
                    for step, metric in self.world.disks[trial].reported
                    if step == rung.milestone or (later and step > rung.milestone)
                }
                assert rung.score(trial) in scores
