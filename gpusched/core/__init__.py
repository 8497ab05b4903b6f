"""The core: what is true of a search, what follows from an event. No clock, no I/O, no randomness.

Theory of operation
-------------------

``Experiment.handle(event) -> commands`` is the only mutator. Events are facts in the past tense, each with its time;
commands say what an executor must do. Everything else in this package is a part of that one function::

    events.py ──▶ experiment.py ──▶ commands.py
                   │  records the fact, asks the policy, hands atoms out
                   ├─ requests.py    what people ask for
                   ├─ silence.py     trials that have not reported for too long
                   ├─ transitions.py from decisions (atoms) and exits to commands (devices)
                   │    ├─ exits.py       where a trial goes without its incarnation, with which devices; a search's end
                   │    └─ saving.py      checkpoints, and which is the best
                   ├─ decisions.py   the seam: what a policy sees, is asked, and decides
                   ├─ state.py       everything that is true now
                   │    ├─ rules.py       what the recipe asks for, and its configurations that have not started
                   │    ├─ trial.py       one trial and its learning curve; the transition table
                   │    ├─ allocation.py  devices: FREE, HELD, DRAINING, QUARANTINED
                   │    ├─ rung.py        scores at milestones
                   │    └─ speed.py       measured step times, s(a), To
                   └─ invariants.py  what is always true, asserted after every event

The same events give the same commands, in any process and at any time. Resume is built on that: a journal of events is
replayed through ``handle``, and no second interpreter of it exists that could drift away. ``idle.py`` tells a person
why an atom is idle, ``explain.py`` why a trial is where it is.

States of a trial
-----------------

::

    PENDING ──▶ STARTING ──▶ RUNNING ──▶ YIELDING ──▶ PAUSED ──▶ STARTING ...
                  │  ▲          │            │           │
                  │  └──────────┴─ resize, ──┘           │       final: COMPLETED, STOPPED, FAILED
                  │                loss                  │
                  └── killed while starting ─▶ YIELDING  └─▶ STOPPED

* A trial that is lost while the disk has no room is PAUSED at once.
* What follows a yield is the explicit field ``TrialRecord.after``, never inferred from the past.
* An *incarnation* is one launch. Its number only grows. ``TrialRecord.gone`` is the newest of which nothing is left:
  events of it or of an older one change nothing, so news may come late or twice.
* Between the exit of one incarnation of a resize and the launch of the next, a trial is STARTING without processes. It
  waits until its devices are confirmed to be free: waiting is a state, never a sleep.
* A trial told to die carries ``doom`` until it is gone. Until then its reports are recorded and decide nothing.

Whose decision it is
--------------------

A policy (``decisions.Policy``) speaks of trials and atoms. Which devices, what is saved when, what an exit means, and
what a lost device leads to is decided here, once for all policies. A decision that no longer fits is dropped.
"""
