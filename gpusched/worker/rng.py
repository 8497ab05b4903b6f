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
    if len(_seeded) == len(_LIBRARIES):
        return
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


def capture() -> dict[str, Any]:
    """Return the state of every generator, as values that ``torch.load(weights_only=True)`` takes."""
    (version, internal, gauss), numpy_state, torch_state, cuda_state = _states()
    if numpy_state is not None:
        name, keys, position, has_gauss, cached = numpy_state
        numpy_state = [name, keys.tolist(), int(position), int(has_gauss), float(cached)]
    python = [version, list(internal), gauss]
    return {"python": python, "numpy": numpy_state, "torch": torch_state, "cuda": cuda_state}


def restore(state: dict[str, Any]) -> None:
    """Put the generators back to what ``capture`` saw."""
    version, internal, gauss = state["python"]
    numpy_state = state["numpy"]
    if numpy_state is not None and (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = numpy_state
        numpy_state = (name, numpy.array(keys, dtype=numpy.uint32), *rest)
    python = (version, tuple(internal), gauss)
    _put_back((python, numpy_state, state["torch"], state["cuda"]))


class OwnGenerators:
    """A context with generators of its own, seeded at the first entry and kept from one entry to the next."""

    def __init__(self, seed: int) -> None:
        self._seed: int | None = seed
        self._inside: tuple[Any, ...] = ()
        self._outside: tuple[Any, ...] = ()

    def __enter__(self) -> None:
        self._outside = _states()
        if self._seed is not None:
            seed_everything(self._seed)
            self._seed = None
        else:
            _put_back(self._inside)

    def __exit__(self, *error: object) -> None:
        self._inside = _states()
        _put_back(self._outside)


def _states() -> tuple[Any, ...]:
    """States of the generators of Python, numpy, torch and this rank's GPU, as these give them; None: not in use."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    uses_gpu = torch is not None and torch.cuda.is_initialized()
    return (
        random.getstate(),
        numpy.random.get_state() if numpy is not None else None,
        torch.get_rng_state() if torch is not None else None,
        torch.cuda.get_rng_state() if torch is not None and uses_gpu else None,
    )


def _put_back(states: tuple[Any, ...]) -> None:
    python, numpy_state, torch_state, cuda_state = states
    random.setstate(python)
    if numpy_state is not None and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(numpy_state)
    if (torch := sys.modules.get("torch")) is not None:
        if torch_state is not None:
            torch.set_rng_state(torch_state)
        if cuda_state is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(cuda_state)
