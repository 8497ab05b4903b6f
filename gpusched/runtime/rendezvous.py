"""A rendezvous for one machine that nobody else can reach.

torch's own handlers let the store listen on every interface, whatever ``MASTER_ADDR`` says (pytorch issue 173909).
Here a socket that already listens on 127.0.0.1 is handed to the store (``master_listen_fd``), so there is no port to
collide on and nothing to reach from outside. Ranks join as clients of the agent's store.
"""

from __future__ import annotations

import socket

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo
from torch.distributed.elastic.rendezvous.api import (
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

LOOPBACK = "127.0.0.1"
NAME = "gpusched-loopback"
_STORE_TIMEOUT_S = 1800


class LoopbackRendezvous(StaticTCPRendezvous):
    """Exactly one agent, rank 0 of 1: torch's static rendezvous but for its store."""

    def __init__(self, run_id: str) -> None:
        super().__init__(LOOPBACK, 0, 0, 1, run_id, _STORE_TIMEOUT_S)

    def get_backend(self) -> str:
        return NAME

    def next_rendezvous(self) -> RendezvousInfo:
        with socket.create_server((LOOPBACK, 0), backlog=512) as listener:
            where = RendezvousStoreInfo(LOOPBACK, listener.getsockname()[1])
            store = TCPStore(
                host_name=LOOPBACK,
                port=where.master_port,
                is_master=True,
                wait_for_workers=False,
                timeout=self.timeout,
                master_listen_fd=listener.detach(),  # the store closes it
            )
        return RendezvousInfo(store, 0, 1, where)


def register() -> None:
    """Make it known to ``torchrun --rdzv-backend`` under ``NAME``."""
    rendezvous_handler_registry.register(NAME, lambda asked: LoopbackRendezvous(asked.run_id))
