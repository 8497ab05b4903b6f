"""From a ``Launch`` command to the frame that makes the warm server fork, and the daemon's end of that server.

The frame takes folders, hyperparameters, devices and environment. The server (``gpusched/runtime/warm.py``) is started
before anything else is, as importing torch takes a second, in a session of its own, so that no terminal ends it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gpusched
from gpusched.core.commands import Launch
from gpusched.devices.base import Devices
from gpusched.devices.choose import parse_devices
from gpusched.errors import InputError
from gpusched.executors.hub import Peer
from gpusched.executors.live import Setting
from gpusched.folder import files
from gpusched.folder.files import private_folder, write_aside
from gpusched.folder.lock import Fence
from gpusched.folder.reports import last_seq
from gpusched.processes.identity import MARK, MARK_WIDTH_BYTES
from gpusched.protocol import (
    FromServer,
    Launched,
    LaunchFailed,
    LaunchSpec,
    Ready,
    Remark,
    ShimDied,
    from_server,
)
from gpusched.recipe.checks import check_script
from gpusched.recipe.recipe import Recipe
from gpusched.space.space import command_line

TETHER_S = 120.0
"""Time for which a trial continues without a daemon; ``GPUSCHED_TETHER_S`` overrides it (for tests, mostly)."""
MOST_FALSE_STARTS = 3
_START = """import json, sys
sys.path.append({root!r})
from gpusched.runtime.warm import main
sys.exit(main(**json.loads(sys.argv[1])))"""

_FOREIGN = re.compile(
    r"PET_.*|TORCHELASTIC_.*|(GROUP_|LOCAL_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|GPUSCHED_.*"
)
"""Variables of a torchrun (``PET_*`` are its defaults) or a trial around us that must not reach a trial."""


def seed_of(seed: int, trial: int) -> int:
    """The seed of a trial: depends on the experiment's and on the trial's number alone; below 2**31."""
    digest = hashlib.sha256(f"{seed}/{trial}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


@cache
def _require_python(script: Path, _changed_ns: int) -> None:
    """Raise InputError if the script does not compile; it is read anew once it has changed, or is not right yet."""
    for _, problem in check_script(script, script.parent, None):
        raise InputError(problem)


def prepare(setting: Setting, command: Launch, devices: Devices) -> tuple[LaunchSpec, int]:
    """Make folders, ``hparams.json`` and the frame; return the frame and the number of the trial's last report.

    Raises DeviceError for devices that are gone, InputError or OSError for a script that is being edited or is gone, so
    that no trial fails by it, and OSError; also on a node that was given up since it was asked.
    """
    recipe, paths = setting.recipe, setting.paths.trial(command.trial)
    Fence(paths.fence if setting.node else None, command.incarnation).check()
    script = recipe.cwd / recipe.script
    changed_ns = script.stat().st_mtime_ns
    if recipe.python is None:
        _require_python(script, changed_ns)
    placement = devices.place(command.devices)
    private_folder(paths.logs(command.incarnation))
    own = private_folder(paths.own)
    content: dict[str, Any] = {"trial": command.trial}
    content["seed"] = seed_of(recipe.seed, command.trial)
    content["hparams"] = dict(command.hparams)
    # All that is there was told before the incarnation before this one ended.
    seq, known_seq = last_seq(paths.reports), setting.seq_of(command.trial)
    if known_seq > seq:  # the disk refused to keep some
        seq = content["seq"] = known_seq
    # Not synced: the journal has it all, and a power cut ends every launch.
    write_aside(paths.hparams, json.dumps(content).encode() + b"\n").replace(paths.hparams)
    spec = LaunchSpec(
        trial=command.trial,
        incarnation=command.incarnation,
        dir=str(paths.root),
        experiment_dir=str(setting.paths.root),
        script=str(script),
        args=command_line(recipe.args, command.hparams, command.trial, str(own)),
        cwd=str(own if recipe.cwd == Path("private") else recipe.cwd),
        env={
            "NCCL_SOCKET_IFNAME": "lo",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": str(placement.threads_per_rank),
            # torchelastic would set 1, whose abort can itself hang; 3 tears the process down without it.
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
            # The recipe outranks these defaults, but does not choose devices.
            **given_env(recipe),
            **placement.environment,
            "GPUSCHED_DIR": str(setting.paths.root),
            "GPUSCHED_TRIAL": str(command.trial),
            "GPUSCHED_TRIAL_DIR": str(own),
            "GPUSCHED_INCARNATION": str(command.incarnation),
            "GPUSCHED_DEVICE": devices.kind,
            "GPUSCHED_LEAVE_GRACE_S": str(recipe.leave_grace_s),
            **({"GPUSCHED_NODE": setting.node} if setting.node else {}),
        },
        rank_cpus=[list(one) for one in placement.rank_cpus],
        python=str(recipe.python or sys.executable),
        epoch=setting.epoch,
        tether_s=float(os.environ.get("GPUSCHED_TETHER_S", TETHER_S)),
        leave_grace_s=recipe.leave_grace_s,
        module=recipe.module or "",
    )
    return spec, seq


def devices_of(recipe: Recipe, experiment: Path, known: Sequence[str], **options: Any) -> Devices:
    """Find a recipe's devices; those in ``known`` where the experiment continues. Raises DeviceError, InputError."""
    spec = recipe.devices
    options |= {"experiment": experiment, "atoms_per_gpu": recipe.atoms_per_gpu}
    if known and known[0].startswith("cpu:"):
        spec = f"cpu:{len(known)}"  # the machine may have fewer cores now
    elif known:
        spec, options["known"] = "cuda" if spec == "auto" else spec, known
    return parse_devices(spec, is_our_torch=recipe.python is None, **options)


# ---------------------------------------------------------------- the environment


def given_env(recipe: Recipe) -> dict[str, str]:
    """Return the variables that the recipe sets and that have a value."""
    return {name: value for name, value in recipe.env.items() if value is not None}


def environment_for_trials(recipe: Recipe) -> dict[str, str]:
    """Ours without what would confuse a trial, with what the recipe sets."""
    ours = {name: value for name, value in os.environ.items() if not _FOREIGN.fullmatch(name)}
    given = given_env(recipe)
    # The warm server runs elsewhere than the script.
    if given.get("PYTHONPATH") and recipe.cwd.is_absolute():
        given["PYTHONPATH"] = files.absolute_each(given["PYTHONPATH"], recipe.cwd)
    # The order of a set of names, a vocabulary say, is the same in every launch.
    return {"PYTHONHASHSEED": str(recipe.seed % 2**32), **ours, **given}


# ---------------------------------------------------------------- the warm server


class Server:
    """The warm server, whichever process that is now; it keeps launches until all is imported.

    ``on_frame`` gets what the process says of launches, ``on_gone`` is called when it has died.
    """

    def __init__(
        self,
        setting: Setting,
        on_frame: Callable[[Launched | LaunchFailed | ShimDied], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._setting = setting
        self._log = setting.paths.root / "warm.log"
        self._on_frame = on_frame
        self._on_gone = on_gone
        #: Time at which all was imported; 0: it is not yet.
        self.ready_at = 0.0
        self._peer: Peer | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._old: list[subprocess.Popen[bytes]] = []
        self._false_starts = 0

    def want(self) -> None:
        """Start a server, unless one has been started.

        Raises ``InputError`` where it died ``MOST_FALSE_STARTS`` times before all was imported: no torch, mostly.
        """
        if self._process is not None:
            return
        self._old = [process for process in self._old if process.poll() is None]
        if self._false_starts >= MOST_FALSE_STARTS:
            raise InputError(
                f"{sys.executable}: trials cannot be started: {files.last_line(self._log) or 'it said nothing'}\n"
                f"  Check that this interpreter can `import torch` (`gpusched doctor`); all of it is in {self._log}"
            )
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            self._process = self._spawn(theirs)
        self.ready_at = 0.0
        self._peer = self._setting.hub.greet(ours)
        self._peer.hear(from_server, self._heard)
        self._peer.on_end = self._ended

    def _spawn(self, line: socket.socket) -> subprocess.Popen[bytes]:
        recipe = self._setting.recipe
        script = recipe.cwd / recipe.script
        root = str(Path(gpusched.__file__).parent.parent)
        given = {
            "line": line.fileno(),
            "path": str(script.parents[(recipe.module or "").count(".")]),
            "preload": recipe.preload,
            "is_cold": recipe.launch == "cold",
        }
        words = [sys.executable, "-P", "-c", _START.format(root=root), json.dumps(given)]
        environment = environment_for_trials(recipe)
        environment[MARK] = " " * MARK_WIDTH_BYTES
        environment["GPUSCHED_DIR"] = str(self._setting.paths.root)
        with self._log.open("ab") as log:
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,  # of all that it forks, too
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=[line.fileno()],
                start_new_session=True,
                umask=files.users_umask,
            )

    def launch(self, spec: LaunchSpec) -> None:
        """Ask for a launch. Raises as ``want`` does. ``on_gone`` tells of a server that did not take it."""
        self.want()
        if self._peer is not None:
            self._peer.send(spec)

    def close(self, *, idle: bool = False) -> None:
        """Let go. The server lives on until its last shim is gone; ``idle`` says that no shim is left, so the
        server ends at once, even while importing.
        """
        if self._peer is not None:
            self._peer.on_end = None
            self._peer.close()
        for process in (self._process, *self._old):
            if process is not None:
                if idle and process.poll() is None:
                    process.terminate()
                # The process may outlive the daemon, by design.
                process.returncode = process.poll() or 0

    def _heard(self, frame: FromServer) -> None:
        match frame:
            case Ready():
                self._false_starts, self.ready_at = 0, self._setting.clock()
            case Remark():
                self._setting.say(frame.text)
            case _:
                self._on_frame(frame)

    def _ended(self) -> None:
        self._peer = None
        if self._process is not None:
            self._old.append(self._process)
            self._process = None
        if not self.ready_at:
            self._false_starts += 1
            self._setting.say(f"the warm server could not start: {files.last_line(self._log)}")
        self._on_gone()
