"""``launch: cold``: plain ``torchrun`` as a process of its own below a shim, perhaps with another interpreter.

    shim ──▶ PYTHON -m gpusched.runtime.cold ──▶ PYTHON cold.py ──exec──▶ PYTHON SCRIPT ARGS     (per rank)

The first is ``torchrun`` with the loopback rendezvous registered; the second gives a rank its streams, cores and
variables and then becomes ``python script``: the script runs as under torchrun itself, in an interpreter that has
imported nothing. No torch is imported here; the other interpreter finds ``gpusched`` (and nothing else of ours) through
a folder of the experiment that holds one link.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import gpusched
from gpusched.folder import files
from gpusched.processes import outcome
from gpusched.runtime.shim import Shim

TORCHRUN = -1
"""The place of torchrun's own process among the ranks a shim watches."""


def run_torchrun(shim: Shim) -> None:
    """Run the incarnation's ranks under torchrun until none is left."""
    codes = shim.paths.logs(shim.incarnation) / "codes.json"
    process = subprocess.Popen(
        _words(shim), env=_environment(shim, codes), cwd=shim.spec.cwd, start_new_session=True
    )
    shim.started({TORCHRUN: process.pid})
    news = shim.watch()
    shim.end_ranks()
    code = process.returncode = shim.codes.get(TORCHRUN, 0)  # the shim has reaped it
    if code < 0 and news == "left" and shim.word is None:
        # Not the trial's fault: nothing is said of how it ended, so it is relaunched from its last checkpoint.
        raise RuntimeError(f"torchrun was killed by {outcome.signal_name(-code)}")
    _take_codes(shim, codes)


def _words(shim: Shim) -> list[str]:
    spec = shim.spec
    options = {
        "nproc-per-node": shim.size,
        "max-restarts": 0,
        "local-addr": "127.0.0.1",
        "rdzv-endpoint": "localhost:0",
        "rdzv-id": f"gpusched-{shim.trial}-{shim.incarnation}",
        "monitor-interval": 0.05,
        "log-dir": os.devnull,
    }
    torchrun = [spec.python, "-m", "gpusched.runtime.cold"]
    torchrun += [f"--{name}={value}" for name, value in options.items()]
    rank = [spec.python, "-I", str(Path(__file__).with_name("cold.py"))]
    program = ["-m", spec.module] if spec.module else [spec.script]
    return [*torchrun, "--no-python", *rank, *program, *spec.args]


def _environment(shim: Shim, codes: Path) -> dict[str, str]:
    spec = shim.spec
    paths, number = shim.paths, shim.incarnation
    per_rank = [
        {
            "cpus": spec.rank_cpus[rank],
            "out": str(paths.log(number, rank, "out")),
            "err": str(paths.log(number, rank, "err")),
            "error": str(paths.error_file(number, rank)),
        }
        for rank in range(shim.size)
    ]
    path = [str(_gate(Path(spec.experiment_dir)))]
    if spec.module:
        path.append(str(Path(spec.script).parents[spec.module.count(".")]))
    if theirs := os.environ.get("PYTHONPATH"):
        path.append(theirs)
    return {
        **os.environ,
        "GPUSCHED_RANKS": json.dumps(per_rank),
        "GPUSCHED_CODES": str(codes),
        "PYTHONPATH": os.pathsep.join(path),
    }


def _gate(experiment: Path) -> Path:
    """A folder with ``gpusched`` in it and nothing else: not our own libraries, which may be another version's."""
    gate = experiment / ".python"
    gate.mkdir(mode=0o700, exist_ok=True)
    link, package = gate / "gpusched", Path(gpusched.__file__).parent
    if not link.is_symlink() or link.readlink() != package:
        # None, or of another installation, before a resume.
        aside = gate / f".{os.urandom(8).hex()}"
        aside.symlink_to(package)
        aside.replace(link)
    return gate


def _take_codes(shim: Shim, path: Path) -> None:
    """Take the exit codes of the ranks, which torchrun alone knows; where it failed itself, why."""
    code = shim.codes.pop(TORCHRUN, 0)
    found = files.read_json(path) or {}
    shim.codes.update({int(rank): exit_code for rank, exit_code in found.items()})
    if code == 0:
        shim.codes.update({rank: 0 for rank in range(shim.size) if rank not in shim.codes})
    elif not shim.codes:
        last = files.last_line(shim.paths.shim_log(shim.incarnation))
        shim.launch_error = f"torchrun ended with code {code}: {last or 'it said nothing'}"
