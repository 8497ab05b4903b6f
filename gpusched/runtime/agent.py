"""torchrun's elastic agent inside a shim, with ranks forked from the warm image.

``LocalElasticAgent`` keeps torchrun's environment contract, its error files and its all-or-nothing meaning. Two of its
parts are replaced. The process context: ``ForkedRanks`` forks instead of spawning, and instead of polling it waits in
the shim's own loop, which also hears the daemon. And the rendezvous (``rendezvous.py``). The core relaunches, not the
agent.

The agent's only signal handlers would be those of ``PContext.start``, which is not called; the shim has its own.
"""

from __future__ import annotations

from contextlib import suppress
from signal import SIGTERM, Signals
from typing import Any

from torch.distributed.elastic.agent.server import WorkerSpec, api, local_elastic_agent
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import (
    LogsDest,
    LogsSpecs,
    PContext,
    RunProcsResult,
    SignalException,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from gpusched.runtime.forked import fork_ranks
from gpusched.runtime.rendezvous import LOOPBACK, LoopbackRendezvous
from gpusched.runtime.shim import Shim


class RankFiles(LogsSpecs):
    """The file of each rank's streams and error, as ``folder/paths.py`` has them."""

    def __init__(self, shim: Shim) -> None:
        super().__init__()
        self._shim = shim

    @property
    def root_log_dir(self) -> str:
        return str(self._shim.paths.logs(self._shim.incarnation))

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        paths, incarnation = self._shim.paths, self._shim.incarnation
        errors = {rank: str(paths.error_file(incarnation, rank)) for rank in envs}
        for rank, path in errors.items():
            envs[rank]["TORCHELASTIC_ERROR_FILE"] = path
        return LogsDest(
            stdouts={rank: str(paths.log(incarnation, rank, "out")) for rank in envs},
            stderrs={rank: str(paths.log(incarnation, rank, "err")) for rank in envs},
            error_files=errors,
        )


class ForkedRanks(PContext):
    """Ranks as forks of this process; see the module's text."""

    def __init__(self, shim: Shim, **agent: Any) -> None:
        wanted = ("name", "entrypoint", "args", "envs", "logs_specs")
        super().__init__(**{name: agent[name] for name in wanted})
        self._shim = shim

    def _start(self) -> None:
        for rank, forked in enumerate(self._shim.forked):
            environment = {**self._shim.spec.env, **self.envs[rank]}
            forked.begin(environment, (self.stdouts[rank], self.stderrs[rank]))
        self._shim.started(self.pids())

    def pids(self) -> dict[int, int]:
        return {rank: forked.pid for rank, forked in enumerate(self._shim.forked)}

    def _poll(self) -> RunProcsResult | None:
        shim = self._shim
        news = shim.watch()
        if news == "stop":
            raise SignalException("asked to stop", SIGTERM)
        if news == "overdue":
            shim.end_ranks()
        done = dict.fromkeys(self.pids())
        if shim.word is not None or not any(shim.codes.values()):
            return RunProcsResult(done, {}, self.stdouts, self.stderrs)
        failures = {
            rank: ProcessFailure(rank, pid, code, error_file="")
            for rank, pid in self.pids().items()
            if (code := shim.codes.get(rank))
        }
        return RunProcsResult({}, failures, self.stdouts, self.stderrs)

    def _close(self, death_sig: Signals, timeout: int = 30) -> None:
        self._shim.end_ranks()


def run_agent(shim: Shim) -> None:
    """Run the incarnation's ranks, forked already, under the elastic agent until none is left."""
    run_id = f"gpusched-{shim.trial}-{shim.incarnation}"

    def start_processes(**agent: Any) -> PContext:
        ranks = ForkedRanks(shim, **agent)
        ranks._start()
        return ranks

    # The agent has no other seam for its process context than this name of its module; this process is a shim and
    # runs one agent in its life.
    local_elastic_agent.start_processes = start_processes  # type: ignore[assignment]
    # Events would look the host's own name up, several times a launch: seconds where name service is broken.
    api._get_fq_hostname = lambda: LOOPBACK
    agent = LocalElasticAgent(
        WorkerSpec(
            role="trial",
            local_world_size=shim.size,
            entrypoint=fork_ranks,  # only its name is asked for
            args=(),
            rdzv_handler=LoopbackRendezvous(run_id),
            max_restarts=0,
            monitor_interval=1e-6,  # the waiting is done in ForkedRanks._poll
            local_addr=LOOPBACK,
        ),
        logs_specs=RankFiles(shim),
        start_method="fork",
    )
    with suppress(SignalException):  # of ForkedRanks, where the incarnation is to stop
        agent.run()
