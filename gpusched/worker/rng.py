"""Random number generators: the same on every rank while a script sets itself up, different once it trains.

Set-up must draw alike on all ranks (a ``random_split`` of the data must not differ); dropout and augmentation must not.
So ``seed_everything`` seeds all ranks alike, and ``diverge`` gives every rank but 0 a stream of its own when set-up is
over.

Only generators of libraries that are loaded are touched; a library that the script imports later is seeded later.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from gpusched.worker.data import derive_seed

_LIBRARIES: dict[str, Callable[[Any, int], object]] = {
    "numpy": lambda numpy, seed: numpy.random.seed(seed % (1 << 32)),
    "torch": lambda torch, seed: torch.manual_seed(seed),
}
_TORCH_DEFAULT = 67280421310721
_seeded: set[str] = set()


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators, as far as they are loaded."""
    random.seed(seed)
    for name, seed_library in _LIBRARIES.items():
        if (library := sys.modules.get(name)) is not None:
            seed_library(library, seed)
            _seeded.add(name)


def seed_newcomers(seed: int) -> None:
    """Seed libraries that were imported since ``seed_everything``, unless the script has seeded torch itself."""
    new = [name for name in _LIBRARIES if name in sys.modules and name not in _seeded]
    _seeded.update(new)
    if "torch" in new and sys.modules["torch"].initial_seed() != _TORCH_DEFAULT:
        return
    for name in new:
        _LIBRARIES[name](sys.modules[name], seed)


def diverge(seed: int, rank: int, step: int) -> None:
    """Give a rank without a saved state its own stream; rank 0 keeps that of the plain script."""
    if rank:
        seed_everything(derive_seed(seed, rank, step))


class OwnGenerators:
    """A context with generators of its own, seeded at the first entry and kept from one entry to the next."""

    def __init__(self, seed: int) -> None:
        self._seed: int | None = seed
        self._inside: tuple[Any, ...] = ()
        self._outside: tuple[Any, ...] = ()

    def __enter__(self) -> None:
        self._outside = states()
        if self._seed is not None:
            seed_everything(self._seed)
            self._seed = None
        else:
            put_back(self._inside)

    def __exit__(self, *error: object) -> None:
        self._inside = states()
        put_back(self._outside)


def states() -> tuple[Any, ...]:
    """Return the states of the generators of Python, numpy, torch and this rank's GPU; None: not in use."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (
        random.getstate(),
        numpy.random.get_state() if numpy is not None else None,
        torch.get_rng_state() if torch is not None else None,
        torch.cuda.get_rng_state() if torch is not None and torch.cuda.is_initialized() else None,
    )


def put_back(found: tuple[Any, ...]) -> None:
    """Put the generators back to what ``states`` has returned."""
    python, numpy_state, torch_state, cuda_state = found
    random.setstate(python)
    if numpy_state is not None and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(numpy_state)
    if (torch := sys.modules.get("torch")) is not None:
        if torch_state is not None:
            torch.set_rng_state(torch_state)
        if cuda_state is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(cuda_state)
