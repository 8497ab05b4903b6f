"""A rendezvous for one machine that nobody else can reach.

torch's own handlers let the store listen on every interface, whatever ``MASTER_ADDR`` says (pytorch issue 173909).
Here a socket that already listens on 127.0.0.1 is handed to the store (``master_listen_fd``), so there is no port to
collide on and nothing to reach from outside. Ranks join as clients of the agent's store.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
)
from torch.distributed.elastic.rendezvous.api import (
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

LOOPBACK = "127.0.0.1"
NAME = "gpusched-loopback"
_STORE_TIMEOUT = timedelta(minutes=30)


class LoopbackRendezvous(RendezvousHandler):
    """Exactly one agent, rank 0 of 1."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def next_rendezvous(self) -> RendezvousInfo:
        with socket.create_server((LOOPBACK, 0), backlog=512) as listener:
            where = RendezvousStoreInfo(LOOPBACK, listener.getsockname()[1])
            store = TCPStore(
                host_name=LOOPBACK,
                port=where.master_port,
                is_master=True,
                wait_for_workers=False,
                timeout=_STORE_TIMEOUT,
                master_listen_fd=listener.detach(),  # the store closes it
            )
        return RendezvousInfo(store, 0, 1, where)

    def get_backend(self) -> str:
        return NAME

    @property
    def use_agent_store(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None: ...

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def register() -> None:
    """Make it known to ``torchrun --rdzv-backend`` under ``NAME``."""

    def create(parameters: RendezvousParameters) -> RendezvousHandler:
        return LoopbackRendezvous(parameters.run_id)

    rendezvous_handler_registry.register(NAME, create)
