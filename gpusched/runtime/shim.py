"""The shim: looks after one incarnation of one trial from its first process to "nothing is left".

It is a session leader and a subreaper, so whatever the trial starts (double forks and new sessions included) stays its
descendant, and "no child left" (``ECHILD``) means the tree is empty. It outlives the daemon and never waits for it.

This file knows nothing of torch. How ranks are started is the business of ``agent.py`` (torchrun's elastic agent in
this process) or ``torchrun.py`` (torchrun in a process of its own). Either starts ranks, then calls
``Shim.watch`` until there is news and ``Shim.end_ranks`` when the ranks are to go.

When ranks go: once the last word is committed they may tidy up for ``leave_grace_s`` of the recipe; those that linger
get ``GRACE_S`` after SIGTERM, and it is said. If a rank fails, the others (which hang in collectives) get it too. What
they leave behind (loaders, orphans) gets ``LEFTOVER_GRACE_S``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from gpusched import failpoints
from gpusched.folder.files import sync, write_aside, write_unfailingly
from gpusched.folder.lock import Fence, read_epoch
from gpusched.folder.paths import TrialPaths
from gpusched.processes import outcome, stacks
from gpusched.processes.claim import add_ranks, make_claim, sweep_shared_memory
from gpusched.processes.identity import (
    Bell,
    Identity,
    become_subreaper,
    descendants,
    identify,
    in_sessions,
    kill_each,
    mark_of,
    read_file,
    reap_all,
    send_signal,
    start_time,
)
from gpusched.protocol import Exited, LaunchSpec, RankError, ShimHello, Word, encode
from gpusched.runtime.forked import ForkedRank, put_mark, put_title, redirect
from gpusched.runtime.orders import Orders

News = Literal["running", "left", "failed", "stop", "overdue"]

TICK_S = 1.0
GRACE_S = 2.0
LEFTOVER_GRACE_S = 1.0

EXIT_FENCED = 75
EXIT_BROKEN = 70


class Shim:
    """One incarnation's processes. ``spec``: what the daemon asked for; ``forked``: ranks that are forked already."""

    def __init__(self, spec: LaunchSpec, forked: Sequence[ForkedRank] = ()) -> None:
        self.spec = spec
        self.forked = forked
        self.trial = spec.trial
        self.incarnation = spec.incarnation
        self.size = len(spec.rank_cpus)
        self.paths = TrialPaths(Path(spec.dir))
        self.me = Identity(os.getpid(), start_time(os.getpid()) or 0)
        self.codes: dict[int, int] = {}
        self.launch_error: str | None = None
        self._stuck = ""
        self._overran_s: float | None = None
        self._rank_of: dict[int, int] = {}
        self._news: News = "running"
        self._word: Word | None = None
        self._leave_by_s = float("inf")
        self._oom_kills = 0
        on_cluster = "GPUSCHED_NODE" in spec.env
        self._fence = Fence(self.paths.fence if on_cluster else None, self.incarnation)
        hello = ShimHello(self.trial, self.incarnation, self.me.pid, self.me.start_time)
        self.orders = Orders(spec, self.paths, hello, self._fence)
        self._bell = Bell()
        self._began_s = time.time()

    def prepare(self) -> bool:
        """Become the tree's root; False if this incarnation was claimed before."""
        with suppress(PermissionError):
            os.setsid()
        if read_epoch(self.spec.experiment_dir) > self.orders.epoch:
            return False  # the daemon that asked for it is not the one any more
        if self._fence.is_raised:
            return False  # its node was given up meanwhile
        failpoints.reach("claim.before")
        if not make_claim(self.paths.shim(self.incarnation), self.me):
            return False
        failpoints.reach("claim.after")
        become_subreaper()
        put_mark(mark_of(self.spec.experiment_dir, self.trial, self.incarnation))
        put_title(f"gpusched: trial {self.trial}.{self.incarnation}")
        redirect(self.paths.shim_log(self.incarnation), 1, 2)
        os.environ.update(self.spec.env)
        self._bell.put_up()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        return True

    def started(self, rank_pids: Mapping[int, int]) -> None:
        """Take over the ranks that have been started (cold: the one process that runs them, as rank -1)."""
        self._rank_of = {pid: rank for rank, pid in rank_pids.items()}
        self.orders.connect()
        self._oom_kills = _oom_kills()
        with suppress(OSError):
            add_ranks(self.paths.shim(self.incarnation), self.me, identify(rank_pids.values()))

    # ------------------------------------------------------------------ waiting

    def watch(self) -> News:
        """Wait until something has to be done about the ranks."""
        while True:
            self._reap()
            self._news = self._look()
            if self._news != "running":
                return self._news
            now = time.monotonic()
            self._pass(min(TICK_S, self._leave_by_s - now))

    def _look(self) -> News:
        if self.orders.stop_grace_s is not None:
            return "stop"
        if len(self.codes) == len(self._rank_of):
            return "left"
        now = time.monotonic()
        if self.word is not None:
            if self._leave_by_s == float("inf"):
                self._leave_by_s = now + self.spec.leave_grace_s
            if now < self._leave_by_s:
                return "running"
            self._overran_s = self.spec.leave_grace_s
            return "overdue"
        return "failed" if any(self.codes.values()) else "running"

    @property
    def word(self) -> Word | None:
        """Last word, once it is committed."""
        if self._word is None:
            self._word = outcome.last_word(self.paths, self.incarnation)
        return self._word

    def _pass(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` for children that end, and the daemon."""
        self.orders.mind_the_daemon()
        if self._bell.wait(self.orders.fileno(), max(0.0, timeout_s)):
            self.orders.read()

    def _on_signal(self, number: int, _frame: object) -> None:
        self.orders.stop()

    def _reap(self) -> bool:
        """Reap children that ended. True if the tree is empty."""
        ended, is_empty = reap_all()
        for pid, status in ended.items():
            if (rank := self._rank_of.get(pid)) is not None:
                self.codes[rank] = os.waitstatus_to_exitcode(status)
        return is_empty

    # ------------------------------------------------------------------ ending

    def end_ranks(self) -> None:
        """End the ranks, with the grace that fits the news of them."""
        grace_s = {"stop": self.orders.stop_grace_s or 0.0, "left": LEFTOVER_GRACE_S}
        self.end(grace_s.get(self._news, GRACE_S))

    def end(self, grace_s: float) -> None:
        """Send SIGTERM to the ranks' sessions, after ``grace_s`` SIGKILL to the tree; return when the tree is empty."""
        if self._reap():
            return
        if self.orders.hangs:
            self._look_where_it_hangs()
        began = time.monotonic()
        deadline = began + grace_s
        sessions = [pid for pid, rank in self._rank_of.items() if rank not in self.codes]
        leftovers_told = False
        if sessions:
            _tell(identify(in_sessions(sessions)))
        while not self._reap():
            if self.orders.stop_grace_s is not None:
                deadline = min(deadline, began + self.orders.stop_grace_s)
            if len(self.codes) == len(self._rank_of) and not leftovers_told:
                leftovers_told = True
                deadline = min(deadline, time.monotonic() + LEFTOVER_GRACE_S)
                _tell(identify(descendants(self.me.pid)))
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self._kill_tree()
                return
            self._pass(min(TICK_S, left_s))

    def _look_where_it_hangs(self) -> None:
        self.orders.hangs = False
        running = {rank: pid for pid, rank in self._rank_of.items() if rank not in self.codes}
        running.pop(-1, None)
        try:
            places = stacks.places(running, lambda r: self.paths.stacks(self.incarnation, r))
            self._stuck = stacks.describe(places)
        except Exception:
            traceback.print_exc()

    def _kill_tree(self) -> None:
        """Kill until the tree is empty: fast forkers are met in the next round, the uninterruptible are waited for."""
        pause_s = 0.01
        while not self._reap():
            kill_each(identify(descendants(self.me.pid)))
            self._pass(pause_s)
            pause_s = min(TICK_S, pause_s * 1.5)

    def finish(self) -> None:
        """Leave ``exit.json`` and tell the daemon that the tree is empty."""
        with suppress(OSError):  # the log's disk may be full
            for name in sweep_shared_memory(self._began_s):
                print(f"removed /dev/shm/{name}, which the trial left behind", flush=True)
        stopped = self.orders.stop_grace_s is not None
        codes = {rank: code for rank, code in self.codes.items() if rank >= 0}
        bad = {rank: code for rank, code in codes.items() if code}
        error = None
        if self.word is None and not stopped:
            starved = _oom_kills() > self._oom_kills
            error = outcome.first_error(self.paths, self.incarnation, self.size, bad, starved)
            if error is None and self.launch_error is not None:
                error = RankError(self.launch_error)
        record = outcome.verdict(word=self.word, asked_to_stop=stopped, codes=codes, error=error)
        record.stuck, record.overran_s = self._stuck, self._overran_s
        path = self.paths.exit(self.incarnation)
        failpoints.reach("exit.before")
        try:
            write_aside(path, encode(record)).replace(path)
        except OSError:
            traceback.print_exc()
        failpoints.reach("exit.written")
        self.orders.tell(Exited(record))
        failpoints.reach("exit.told")
        with suppress(OSError):  # synced when no process waits for it
            sync(path)
            sync(path.parent)


def _tell(processes: list[Identity]) -> None:
    """Send SIGTERM, and SIGCONT after it, so that a stopped process can act on it."""
    for number in (signal.SIGTERM, signal.SIGCONT):
        for process in processes:
            send_signal(process, number)


def _oom_kills() -> int:
    for line in (read_file("/proc/vmstat", 1 << 16) or b"").splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return 0


def run_shim(spec: LaunchSpec, run: Callable[[Shim], None], forked: Sequence[ForkedRank]) -> int:
    """Be the shim of ``spec`` until no process is left; return the exit status. ``run`` starts the ranks."""
    write_unfailingly()
    shim = Shim(spec, forked)
    try:
        if not shim.prepare():
            return EXIT_FENCED
        run(shim)
        shim.end(shim.orders.stop_grace_s or 0.0)
        shim.finish()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        shim.orders.stop(0.0)
        shim.end(0.0)  # and tell nothing: something is wrong with this process itself
        return EXIT_BROKEN
    return 0
