"""One rank without torch: for a script that does not use it and has one atom.

One rank has no others for torchrun's agent to agree with, and importing torch, which the agent is part of, is most of
the cost of a start. The rank finds the same environment, files and endings as under the agent (``agent.py``).
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from gpusched.protocol import LaunchSpec
from gpusched.runtime.birth import Body, Unborn, fork_ranks
from gpusched.runtime.shim import Shim, run_shim

_LOOPBACK = "127.0.0.1"


def be_shim(spec: LaunchSpec, body: Body) -> int:
    """Be the shim of an incarnation of one rank that is forked from this process; return the exit status."""
    unborn = fork_ranks(spec, body)
    return run_shim(spec, lambda shim: run_alone(shim, unborn))


def run_alone(shim: Shim, unborn: Sequence[Unborn]) -> None:
    """Have the rank run, and look after it until the rank has gone or is to go."""
    (rank,) = unborn
    paths, incarnation = shim.paths, shim.incarnation
    contract = torchrun_environment(shim.trial, incarnation)
    contract["TORCHELASTIC_ERROR_FILE"] = str(paths.error_file(incarnation, 0))
    streams = (str(paths.log(incarnation, 0, "out")), str(paths.log(incarnation, 0, "err")))
    rank.begin({**shim.environment, **contract, **shim.spec.rank_env[0]}, streams)
    shim.started({0: rank.pid})
    shim.watch_to_the_end()


def torchrun_environment(trial: int, incarnation: int) -> dict[str, str]:
    """Return the variables that torchrun's agent gives the only rank of a node."""
    with socket.socket() as free:
        free.bind((_LOOPBACK, 0))
        port = free.getsockname()[1]
    return {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0"),
        **dict.fromkeys(
            ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1"
        ),
        "ROLE_NAME": "trial",
        "MASTER_ADDR": _LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": f"gpusched-{trial}-{incarnation}",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
