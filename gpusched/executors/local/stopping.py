"""From "it is to go" to "nothing of it is left": the ladder, and who climbs it when others are dead.

1. The shim is told to stop: SIGTERM to its ranks, after the grace SIGKILL to the tree.
2. ``kill_margin_s`` later the shim itself is killed if it still has not said that its tree is empty.
3. Whatever the reason, when a shim has died the server that forked it kills what is left and says so; if that server
   is gone (or silent), we hunt for it ourselves.
4. What is still there ``unkillable_after_s`` later, even SIGKILL does not end (a driver that hangs): it ends on paper
   without that, and its devices are not released while that holds them.
"""

from __future__ import annotations

import signal
from functools import partial
from typing import Protocol

from gpusched.executors.hub import Hub
from gpusched.executors.local.endings import Ending, how_it_ended, lost
from gpusched.executors.local.incarnation import Incarnation
from gpusched.executors.local.inventory import Inventory
from gpusched.executors.local.settings import LaunchSettings
from gpusched.executors.local.strays import Hunt
from gpusched.executors.local.timers import Timers
from gpusched.folder.paths import ExperimentPaths

_SERVER_PATIENCE_S = 5.0
_HUNT_EVERY_S = 0.05


class Owner(Protocol):
    """What this part needs of the executor."""

    hub: Hub

    def is_live(self, it: Incarnation) -> bool: ...

    def withdraw(self, it: Incarnation) -> bool: ...

    def has_server(self, it: Incarnation) -> bool: ...

    def end(self, it: Incarnation, ending: Ending) -> None: ...


class Stopping:
    """Every method may be called when the incarnation has ended meanwhile."""

    def __init__(
        self,
        owner: Owner,
        paths: ExperimentPaths,
        settings: LaunchSettings,
        timers: Timers,
        inventory: Inventory,
    ) -> None:
        self._owner = owner
        self._experiment = paths.root
        self._settings = settings
        self._timers = timers
        self._inventory = inventory

    def kill(self, it: Incarnation, grace_s: float, *, stacks: bool = False) -> None:
        """Again with a shorter grace is allowed; with a longer one nothing changes. ``stacks``: it hangs; where?"""
        if it.stop_grace_s is not None and grace_s >= it.stop_grace_s:
            return
        it.stop_grace_s, it.stacks = grace_s, stacks
        if self._owner.withdraw(it):
            self._owner.end(it, Ending("killed"))
            return
        it.ask_to_stop()
        patience_s = grace_s + self._settings.kill_margin_s
        self._timers.after(patience_s, partial(self.kill_shim, it))
        self._timers.after(
            patience_s + self._settings.unkillable_after_s, partial(self._give_up, it)
        )

    def limit_birth(self, it: Incarnation) -> None:
        """Its shim has just been forked: one that then sleeps (stopped, say) must not hold devices until a start is
        overdue, which takes minutes as ranks may import and load for long."""
        self._timers.after(self._settings.birth_limit_s, partial(self._expect_ranks, it))

    def _expect_ranks(self, it: Incarnation) -> None:
        claim = it.claim()
        if it.rank_peer is None and not (claim is not None and claim.ranks):
            self.kill_shim(it)

    def kill_shim(self, it: Incarnation) -> None:
        """A shim that does not do as it was told is ended too; what it owned is then killed as strays are."""
        if self._owner.is_live(it):
            it.signal_shim(signal.SIGKILL)

    def shim_gone(self, it: Incarnation) -> None:
        """Its process has ended."""
        it.unwatch_shim(self._owner.hub)
        if self._owner.has_server(it):
            self._timers.after(_SERVER_PATIENCE_S, partial(self.hunt, it))
        else:
            self.hunt(it)

    def hunt(self, it: Incarnation) -> None:
        """Kill what it left behind, then end it."""
        if self._owner.is_live(it):
            self._round(it, Hunt(self._experiment, it))

    def _round(self, it: Incarnation, hunt: Hunt) -> None:
        if not self._owner.is_live(it):
            return
        if not hunt.round():
            self._owner.end(it, how_it_ended(it, None))
        elif hunt.since_s > self._settings.unkillable_after_s:
            self._give_up(it)
        else:
            self._timers.after(_HUNT_EVERY_S, partial(self._round, it, hunt))

    def _give_up(self, it: Incarnation) -> None:
        if not self._owner.is_live(it):
            return
        hunt = Hunt(self._experiment, it)
        self._inventory.hold(it.devices, hunt)
        error = f"{hunt.describe()} cannot be killed"
        ending = lost(error) if it.stop_grace_s is None else Ending("killed", error=error)
        self._owner.end(it, ending)
