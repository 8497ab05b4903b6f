"""From the order to stop to an empty process tree: the ladder, and who climbs it when others are dead.

0. A launch that no shim has claimed yet is forbidden, and has ended.
1. The shim is told to stop: SIGTERM to its ranks, after the grace SIGKILL to the tree.
2. ``kill_margin_s`` later the shim itself is killed, unless it has said that its tree is empty.
3. Whatever the reason, when a shim has died the server that forked it kills what is left and says so; if that server
   is gone (or silent), the daemon hunts for what is left (``Hunt``).
4. Processes that are left ``unkillable_after_s`` later, even SIGKILL does not end (a driver that hangs): the
   incarnation ends on paper without them, and its devices are released as ever: only when they are proven empty.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from functools import partial

from gpusched.core.events import Outcome
from gpusched.executors.local.endings import how_it_ended
from gpusched.executors.local.incarnation import Incarnation, Shared
from gpusched.executors.local.server import Server
from gpusched.processes.claim import Hunt
from gpusched.processes.identity import Identity, send_signal

_SERVER_PATIENCE_S = 5.0
_HUNT_EVERY_S = 0.05


class Stopping:
    """Ways to end an incarnation; every method may be called when the incarnation has ended meanwhile."""

    def __init__(self, shared: Shared, server: Server) -> None:
        self._shared = shared
        self._hub = shared.setting.hub
        self._paths = shared.setting.paths
        self._limits = shared.limits
        self._timers = shared.timers
        self._server = server
        self._end = shared.end

    def watch(self, incarnation: Incarnation, shim: Identity) -> bool:
        """Notice when the shim of an incarnation ends. False if it has ended."""
        return incarnation.watch_shim(self._hub, shim, partial(self.shim_gone, incarnation))

    def kill(self, incarnation: Incarnation, grace_s: float, *, stacks: bool = False) -> None:
        """Begin to end an incarnation, or shorten its grace. ``stacks``: it hangs, and must say where."""
        if incarnation.stop_grace_s is not None and grace_s >= incarnation.stop_grace_s:
            return
        incarnation.stop_grace_s, incarnation.stacks = grace_s, stacks
        if self._server.withdraw(incarnation.spec) or self._forbid(incarnation):
            self._end(incarnation, incarnation.exited("killed"))
            return
        incarnation.tell_shim()
        patience_s = grace_s + self._limits.kill_margin_s
        self._timers.after(patience_s, partial(self.kill_shim, incarnation))
        self._timers.after(
            patience_s + self._limits.unkillable_after_s, partial(self._give_up, incarnation)
        )

    def _forbid(self, incarnation: Incarnation) -> bool:
        """Forbid a launch that the server has not begun, as imports may take minutes. False if a shim claimed it."""
        if incarnation.shim is not None:
            return False
        with suppress(OSError):  # a full disk
            return not incarnation.claim_or_forbid()
        return False

    def limit_birth(self, incarnation: Incarnation) -> None:
        """Limit the time from the fork of a shim to its ranks.

        One that sleeps (stopped, say) must not hold devices until a start is overdue, which takes minutes as ranks may
        import and load for long.
        """
        self._timers.after(self._limits.birth_s, partial(self.expect_ranks, incarnation))

    def expect_ranks(self, incarnation: Incarnation) -> None:
        """Kill a shim that has forked no rank by now."""
        claim = incarnation.claim()
        if incarnation.rank_peer is None and not (claim is not None and claim.ranks):
            self.kill_shim(incarnation)

    def kill_shim(self, incarnation: Incarnation) -> None:
        """End a shim that does not do as it was told; the processes it owned are then hunted."""
        if self._shared.has(incarnation) and incarnation.shim is not None:
            send_signal(incarnation.shim, signal.SIGKILL)

    def shim_gone(self, incarnation: Incarnation) -> None:
        """Deal with the end of a shim: the server, or else the daemon, kills what is left."""
        incarnation.unwatch_shim(self._hub)
        forked_by = incarnation.launched_by
        if forked_by is not None and forked_by == self._server.pid:
            self._timers.after(_SERVER_PATIENCE_S, partial(self.hunt, incarnation))
        else:
            self.hunt(incarnation)

    def hunt(self, incarnation: Incarnation) -> None:
        """Kill what an incarnation left behind, then end it."""
        if self._shared.has(incarnation):
            self._round(incarnation, self._hunt(incarnation))

    def _hunt(self, incarnation: Incarnation) -> Hunt:
        return Hunt(self._paths, incarnation.trial, incarnation.number)

    def _round(self, incarnation: Incarnation, hunt: Hunt) -> None:
        if not self._shared.has(incarnation):
            return
        if not hunt.round():
            self._end(incarnation, how_it_ended(incarnation, None))
        elif hunt.since_s > self._limits.unkillable_after_s:
            self._give_up(incarnation)
        else:
            self._timers.after(_HUNT_EVERY_S, partial(self._round, incarnation, hunt))

    def _give_up(self, incarnation: Incarnation) -> None:
        if not self._shared.has(incarnation):
            return
        outcome: Outcome = "lost" if incarnation.stop_grace_s is None else "killed"
        left = self._hunt(incarnation).describe()
        self._end(incarnation, incarnation.exited(outcome, f"{left} cannot be killed"))
