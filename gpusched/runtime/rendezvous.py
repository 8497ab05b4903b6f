"""A rendezvous for one machine that nobody else can reach.

torch's own handlers let the store listen on every interface, whatever ``MASTER_ADDR`` says (pytorch issue 173909).
Here a socket that already listens on 127.0.0.1 is handed to the store (``master_listen_fd``), so there is no port to
collide on and nothing to reach from outside. Ranks join as clients of the agent's store.

A ``late`` rendezvous serves the port only when told to: the elastic agent of a shim forks its ranks first, while it has
no store thread yet, and what a rank asks of the store in the meantime waits in the socket's queue.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import HashStore, Store, TCPStore
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

    def __init__(self, run_id: str, *, late: bool = False) -> None:
        self._run_id = run_id
        self._late = late
        self._listener: socket.socket | None = None
        self._store: TCPStore | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((LOOPBACK, 0))
        listener.listen(512)
        self._listener = listener
        where = RendezvousStoreInfo(LOOPBACK, listener.getsockname()[1])
        store: Store = HashStore() if self._late else self.serve()
        return RendezvousInfo(store, 0, 1, where)

    def serve(self) -> TCPStore:
        """Begin to answer on the port; the store takes over the socket."""
        assert self._listener is not None, "a rendezvous serves its port once"
        port = self._listener.getsockname()[1]
        self._store = TCPStore(
            host_name=LOOPBACK,
            port=port,
            is_master=True,
            wait_for_workers=False,
            timeout=_STORE_TIMEOUT,
            master_listen_fd=self._listener.detach(),
        )
        self._listener = None
        return self._store

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
