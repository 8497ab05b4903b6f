"""The recipe: the one list of its keys, and a user's values for them, checked and complete.

``Recipe`` needs no YAML, so that the daemon, which reads ``resolved.json``, does not pay for it. The reader of recipe
files (``load``) goes by this list, and ``docs/recipe.md`` is compared with it.
``resolved`` writes every key out, defaults included.
"""

# ruff: noqa: RUF009 - ``key`` is ``dataclasses.field`` with more to say

from __future__ import annotations

import functools
import os
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import msgspec

from gpusched.errors import DamagedState, InputError
from gpusched.policies import OF_ONE_SIZE
from gpusched.recipe import messages, values

if TYPE_CHECKING:
    from gpusched.samplers.sequence import InTurn

DEFAULT_POLICY = "hypersched"
DEFAULT_SAMPLER = "random"

#: So many trials of an earlier search are tried first.
AFTER_FIRST = 3
#: Keys whose value is a name, or a map of a name and options.
NAMED = ("policy", "sampler")

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key of the recipe file.

    ``field``, ``type``, ``default`` (``...``: needed): of the field of ``Recipe``. ``path``: the key, by default the
    name of the field. ``reader``: turns what people write into the value (None: a value of the type of the field).
    ``is_found``: where the file has none, the reader of the file finds a value.
    """

    field: str
    type: Any
    default: Any
    path: str
    reader: values.Reader | None = None
    example: str = ""
    is_found: bool = False

    @property
    def is_needed(self) -> bool:
        return self.default is ... and not self.is_found

    def read(self, value: object) -> Any:
        """Return what stands in the file as the field's value. Raises ValueError."""
        if value is None and (self.is_found or type(None) in typing.get_args(self.type)):
            return None
        return self.reader(value) if self.reader else messages.typed(value, self.type)


def key(default: Any = MISSING, **about: Any) -> Any:
    """Declare a field of ``Recipe`` whose ``Key`` has more than a type and a default."""
    if default == {}:
        return field(default_factory=dict, metadata=about)
    return field(default=default, metadata=about)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A checked recipe; ``docs/recipe.md`` says what each key means. Times in seconds, paths absolute."""

    name: str = key(is_found=True, reader=values.name)
    script: Path = key(reader=values.path, example="train.py")
    module: str | None = None
    args: tuple[str, ...] = key((), reader=values.arguments)
    cwd: Path = key(is_found=True, reader=values.path)
    deadline_s: float = key(path="deadline", reader=values.deadline, example="10m")
    metric: str = key(reader=values.metric, example="accuracy")
    mode: Literal["max", "min"] = "max"
    space: Mapping[str, Any] = key(reader=values.anything, example="{lr: {loguniform: [1e-4, 1]}}")
    try_first: tuple[Mapping[str, Any], ...] = ()
    after: tuple[Mapping[str, Any], ...] = key((), reader=values.earlier)
    policy_name: str = key(DEFAULT_POLICY, path="policy", reader=values.anything)
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    devices: str = key("auto", reader=values.devices)
    cluster: str | None = None
    max_nodes: Count | None = None
    node_patience_s: float = key(20.0, path="node_patience", reader=values.duration)
    atoms_per_gpu: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    max_atoms: Count | None = None
    sizes: tuple[int, ...] = key((), reader=values.sizes)
    batch: Literal["per_atom", "global"] = "per_atom"
    #: The learning rate is multiplied by atoms^power; -1: 1 for SGD, 0.5 for Adam and its like.
    lr_power: float = key(-1.0, path="lr_scaling", reader=values.power)
    scaling: str | Mapping[int, float] = key("auto", reader=values.scaling)
    launch: Literal["warm", "cold"] = "warm"
    python: Path | None = key(None, reader=values.path)
    preload: tuple[str, ...] | None = None
    env: Mapping[str, str | None] = key({}, reader=values.environment)
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    sampler_name: str = key(DEFAULT_SAMPLER, path="sampler", reader=values.anything)
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    log_to: Mapping[str, Any] = key({}, reader=values.anything)
    max_trials: Count | None = None
    max_failures: Count = 3
    leave_grace_s: float = key(30.0, path="leave_grace", reader=values.duration)
    save_every_s: float = key(300.0, path="save_every", reader=values.duration)
    hang_limit_s: float | None = key(None, path="hang_limit", reader=values.duration)
    target: float | None = None

    def resolved(self) -> dict[str, Any]:
        """Return every key as plain values: as JSON, a recipe that loads back as an equal one."""
        plain = msgspec.to_builtins(self, str_keys=True, enc_hook=str)
        data = {name: plain[about.field] for name, about in keys().items()}
        return data | {name: {"name": data[name], **plain[f"{name}_options"]} for name in NAMED}

    @classmethod
    def from_resolved(cls, resolved: Mapping[str, Any]) -> Self:
        """Return the recipe that ``resolved`` describes, unchecked: ``resolved`` was checked before it was written.

        Raises DamagedState if keys are missing or unknown, as in a folder written by another version.
        """
        try:
            left = dict(resolved)
            found = {about.field: left.pop(name) for name, about in keys().items()}
            if left:
                raise KeyError(*left)
            for name in NAMED:
                options = dict(found[f"{name}_name"])
                found[f"{name}_name"] = options.pop("name")
                found[f"{name}_options"] = options
            return msgspec.convert(
                found, cls, str_keys=True, dec_hook=lambda kind, value: kind(value)
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"the resolved recipe is damaged or of another version: {error!r}"
            raise DamagedState(f"{message}; use the gpusched that wrote it") from None

    def with_environment(self) -> Self:
        """Return the recipe with the values of ``env`` that stand in the environment alone. Raises InputError."""
        missing = [n for n, value in self.env.items() if value is None and n not in os.environ]
        if missing:
            raise InputError(
                f"env: no value for {', '.join(missing)}: set it in the environment of gpusched, as in "
                f"{missing[0]}=... gpusched ..."
            )
        filled = {n: os.environ[n] if value is None else value for n, value in self.env.items()}
        return replace(self, env=filled)

    def worker_settings(self, atoms: int) -> dict[str, Any]:
        """Return ``worker.json`` of a search on so many atoms: the part of the recipe that a worker needs."""
        names = ("metric", "seed", "batch", "lr_power")
        is_resized = 1 not in (len(self.sizes), self.max_atoms, atoms)
        return {
            **{name: getattr(self, name) for name in names},
            "max_steps": self.policy_options.get("R"),
            "is_resized": is_resized and self.policy_name not in OF_ONE_SIZE,
            "passed": self.passed(),
        }

    def passed(self) -> list[str]:
        """Return the names of the hyperparameters that ``args`` pass to the script."""
        from gpusched.space.space import ALL, names_in, parse_space

        named = {name for argument in self.args for name in names_in(argument)}
        known = [name for name, _ in parse_space(self.space).describe()] if named else []
        return [name for name in known if name in named or ALL in named]

    @property
    def has_memory(self) -> bool:
        """True if the sampler learns, and is asked for one configuration after the other."""
        from gpusched.samplers import sequence

        return self.sampler_name not in sequence.NAMES

    @property
    def draw_seed(self) -> int:
        """The seed of what is drawn: another than the earlier search's, so that what it tried is not drawn again."""
        return self.seed + (10**9 if self.after else 0)

    def configurations(self) -> InTurn:
        """Return the sequence of this recipe's configurations; at random in the place of a sampler with a memory."""
        from gpusched.samplers import sequence
        from gpusched.space.space import parse_space

        space, name = parse_space(self.space), self.sampler_name
        good = [one["hparams"] for one in self.after[:AFTER_FIRST] if one["state"] != "failed"]
        if self.has_memory:
            name, good = DEFAULT_SAMPLER, []
        tried = [one["hparams"] for one in self.after]
        return sequence.InTurn(name, space, self.draw_seed, (*self.try_first, *good), tried)

    def require_atoms(self, total: int) -> None:
        """Raise InputError if no trial fits on the ``total`` atoms that there are."""
        if self.sizes and min(self.sizes) > total:
            there_are = f"there are {total}" if total != 1 else "there is 1"
            if self.cluster is not None:
                there_are = f"a trial runs on one node, and the largest has {total}"
            smallest = f"the smallest trial has {min(self.sizes)} atoms"
            raise InputError(f"sizes: {smallest}; {there_are}: add a smaller size")


@functools.cache
def keys() -> dict[str, Key]:
    """Return the keys by their names in the file."""
    types = typing.get_type_hints(Recipe, include_extras=True)
    found = {}
    for item in fields(Recipe):
        if item.name in (f"{name}_options" for name in NAMED):
            continue
        default = ... if item.default is MISSING else item.default
        if item.default_factory is not MISSING:
            default = item.default_factory()
        about: dict[str, Any] = {"path": item.name, **item.metadata}
        key = Key(field=item.name, type=types[item.name], default=default, **about)
        found[key.path] = key
    return found
