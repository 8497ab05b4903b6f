"""The warm server: imports torch once, then forks a shim per incarnation.

Speaks with the daemon on the socket pair whose descriptor it is given (frames: ``protocol``). Rules:

* Single-threaded whenever it forks; never touches CUDA (a forked child could not use it any more).
* It imports torchrun's elastic agent, then, module by module, what DDP and optimizers import lazily and the recipe's
  ``preload:``. Launches wait for all of it, as each of their ranks would pay for those imports itself.
* Then, while nothing is asked for, its memory moves into huge pages: a fork copies an entry per page, and the end of a
  process frees them again. With 4 KiB pages four ranks begin after 0.16 to 0.20 s, in place of 0.10 s (two cores).
* It is a subreaper. A shim that dies before its tree is empty leaves its processes to this server, which kills them
  before it says that the shim is dead.
* It lives until the daemon's end is closed *and* the last shim is gone; after that end is closed it launches nothing.

Cold it is the same without torch; shims then run ``torchrun`` as a process of its own.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import resource
import socket
import sys
import traceback
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from gpusched import failpoints
from gpusched.processes.identity import (
    Bell,
    become_subreaper,
    children,
    descendants,
    identify,
    kill_each,
    reap_all,
    start_time,
)
from gpusched.protocol import (
    BadFrame,
    Frame,
    Inbox,
    Launched,
    LaunchFailed,
    LaunchSpec,
    Ready,
    Remark,
    ShimDied,
    encode,
    to_server,
)
from gpusched.runtime.forked import fork_ranks, put_title

NEEDED = (
    "gpusched.runtime.agent",
    "gpusched.worker.start",
    "gpusched.worker.loader",
    "gpusched.worker.state",
)
"""Needed before any launch: torchrun's agent, and what ``gpusched.init`` and a trial's methods import."""

HEAVY = (
    "sympy",
    "torch.fx.experimental.symbolic_shapes",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch._inductor",
    "torch._dynamo",
    "torch.nn.parallel",
    "torch.utils.serialization.config",
)
"""Imported by DDP, FSDP and every torch optimizer at first use, in pieces that each take a fraction of a second."""

OPEN_FILES = 65_536
_EXIT_UNFORKED = 71
"""Exit status of a shim that could not fork its ranks."""
_NO_PROCESS = "no process can be forked: a limit of processes (`ulimit -u`, a container's) or of memory is reached"
_STRAY_PATIENCE_S = 0.02
_READ_BYTES = 1 << 20

_MADV_COLLAPSE = 25
_HUGE_BYTES = 2 << 20
_PIECE_BYTES = 16 * _HUGE_BYTES
"""Moved in one turn of the loop, which takes a few milliseconds."""


class WarmServer:
    """``imports``: modules that are still to be imported, in this order; those in ``preload`` are the recipe's."""

    def __init__(
        self, line: socket.socket, imports: Sequence[str], preload: Sequence[str], *, is_cold: bool
    ) -> None:
        self._line: socket.socket | None = line
        self._inbox = Inbox(to_server)
        self._preload = frozenset(preload)
        self._imports = deque(imports)
        self._is_cold = is_cold
        self._asked: deque[LaunchSpec] = deque()
        self._shims: dict[int, LaunchSpec] = {}
        self._dead: dict[int, int] = {}
        self._pieces: Iterator[tuple[int, int]] = iter(())
        self._bell = Bell()

    def serve(self) -> None:
        """Serve until the daemon has let go and no shim is left."""
        become_subreaper()
        self._bell.put_up()
        if not self._imports:
            self._say(Ready())
        while True:
            self._reap()
            if self._line is None and not self._shims and not self._dead:
                return
            piece = None if self._asked or self._imports else next(self._pieces, None)
            if piece is not None:
                use_huge_pages(*piece)
            unfinished = self._asked or self._imports or piece is not None
            self._listen(_STRAY_PATIENCE_S if self._dead else 0.0 if unfinished else None)
            if self._imports:
                self._import_next()
            elif self._asked:
                self._launch_next()

    # ------------------------------------------------------------------ the daemon's line

    def _listen(self, timeout_s: float | None) -> None:
        line = -1 if self._line is None else self._line.fileno()
        if self._bell.wait(line, timeout_s):
            self._read()

    def _read(self) -> None:
        assert self._line is not None
        try:
            data = self._line.recv(_READ_BYTES)
            self._asked += self._inbox.feed(data)
        except (OSError, BadFrame):
            data = b""
        if not data:
            self._hang_up()

    def _hang_up(self) -> None:
        """Drop all that is asked for and not begun: the daemon is gone."""
        if self._line is not None:
            self._line.close()
        self._line = None
        self._asked.clear()
        self._imports.clear()

    def _say(self, frame: Frame) -> None:
        if self._line is not None:
            try:
                self._line.sendall(encode(frame))
            except OSError:
                self._hang_up()

    # ------------------------------------------------------------------ imports

    def _import_next(self) -> None:
        """Import the next module, and say so if one of ``preload`` failed; any of torch's may be missing."""
        module = self._imports.popleft()
        if module in self._preload:
            # The last line if it ends this process.
            print(f"importing {module} of `preload`", flush=True)
        try:
            importlib.import_module(module)
        except BaseException as problem:
            if module in self._preload:
                why = f"{type(problem).__name__}: {problem}"
                self._say(Remark(f"preload: {module} is not preloaded: {why}"))
        if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
            raise SystemExit(
                f"importing {module} of `preload` initialises CUDA, which ranks could then not use"
            )
        if not self._imports:
            settle()
            self._pieces = huge_page_pieces()
            self._say(Ready())

    # ------------------------------------------------------------------ launching

    def _launch_next(self) -> None:
        spec = self._asked.popleft()
        self._listen(0.0)  # a launch for a daemon that has gone meanwhile must not begin
        if self._line is None:
            return
        # Text that an import printed must not end up in every rank's log.
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError:
            self._say(LaunchFailed(spec.trial, spec.incarnation, _NO_PROCESS))
            return
        if pid == 0:
            self._be_shim(spec)
        failpoints.reach("server.forked")
        self._shims[pid] = spec
        self._say(Launched(spec.trial, spec.incarnation, pid, start_time(pid)))

    def _be_shim(self, spec: LaunchSpec) -> None:
        """In the forked child; never returns."""
        status = 70
        try:
            self._bell.take_down()
            if self._line is not None:
                self._line.close()
            status = _run(spec, is_cold=self._is_cold)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stderr.flush()
            os._exit(status)

    # ------------------------------------------------------------------ the dead

    def _reap(self) -> None:
        """Note shims that ended, and kill until live shims alone are below this process."""
        ended, _ = reap_all()
        self._dead |= {pid: status for pid, status in ended.items() if pid in self._shims}
        if not self._dead or self._kill_strays():
            return
        for pid, status in self._dead.items():
            spec = self._shims.pop(pid)
            if os.waitstatus_to_exitcode(status) == _EXIT_UNFORKED:
                self._say(LaunchFailed(spec.trial, spec.incarnation, _NO_PROCESS))
            else:
                self._say(ShimDied(spec.trial, spec.incarnation, pid, status))
        self._dead.clear()

    def _kill_strays(self) -> int:
        """Kill children whose shim is dead, as a live shim keeps its tree. Return the count."""
        strays = [
            pid for pid in children(os.getpid()) if pid not in self._shims or pid in self._dead
        ]
        below = [pid for stray in strays for pid in (stray, *descendants(stray))]
        return kill_each(identify(below))


def _run(spec: LaunchSpec, *, is_cold: bool) -> int:
    """Be the shim of an incarnation; return the exit status.

    Ranks are forked before anything else: what a process writes is no longer shared with the warm image, and has to be
    copied at every fork from then on. And the ranks set themselves up while the shim does.
    """
    try:
        forked = () if is_cold else fork_ranks(spec)
    except OSError:
        return _EXIT_UNFORKED
    from gpusched.runtime.shim import run_shim

    if is_cold:
        from gpusched.runtime.torchrun import run_torchrun as run
    else:
        from gpusched.runtime.agent import run_agent as run
    return run_shim(spec, run, forked)


def settle() -> None:
    """Make forks cheap to leave. Call before the first fork, and again after further imports."""
    # There is no public way to ask for all finalizers; those of torch's own libraries cost 7 ms at every exit.
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False
    gc.freeze()


def huge_page_pieces() -> Iterator[tuple[int, int]]:
    """Yield start and length, in bytes, of the private memory of this process that fits into huge pages."""
    for row in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, _, *name = row.split(maxsplit=5)
        if not access.startswith("rw") or (name and name[0] != "[heap]"):
            continue
        start, end = (int(word, 16) for word in addresses.split("-"))
        start, end = -(-start // _HUGE_BYTES) * _HUGE_BYTES, end // _HUGE_BYTES * _HUGE_BYTES
        for at in range(start, end, _PIECE_BYTES):
            yield at, min(_PIECE_BYTES, end - at)


def use_huge_pages(start: int, length: int) -> None:
    """Have the kernel move this piece into huge pages now (Linux 6.1); where it cannot, nothing changes."""
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_COLLAPSE)


def raise_file_limit() -> None:
    """Let each rank open up to ``OPEN_FILES`` files: data loaders pass tensors as such, and 1024 are soon used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def main(
    line: int, path: str = "", preload: Sequence[str] | None = None, is_cold: bool = False
) -> int:
    """Serve on the descriptor ``line``. ``path``: the folder of the script, where preloaded modules may be.

    ``preload``: modules to import beside ours; an empty list: torch alone.
    """
    ours = socket.socket(fileno=line)
    ours.set_inheritable(False)
    raise_file_limit()
    gc.disable()
    if not is_cold:
        # OpenBLAS starts threads as it is loaded; a shim is forked without any.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        for module in NEEDED:
            importlib.import_module(module)
    settle()
    put_title(f"gpusched: {'cold' if is_cold else 'warm'} server")
    if path:
        sys.path.insert(0, path)
    wanted = preload or ()
    imports = () if is_cold or preload == [] else (*HEAVY, *wanted)
    WarmServer(ours, imports, wanted, is_cold=is_cold).serve()
    return 0
