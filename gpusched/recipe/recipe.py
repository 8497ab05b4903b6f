"""The recipe: the one list of its keys, and what a user asks for by them, checked and complete.

``Recipe`` needs neither pydantic nor YAML, so that the daemon, which reads ``resolved.json``, pays for neither
(pydantic would add 10 MB and 0.2 s to its start). The reader of recipe files and the schema for editors are made from
this list (``schema``), and ``docs/recipe.md`` is compared with it. ``resolved`` writes every key out, defaults
included: a resumed experiment must not change with a newer version's defaults.
"""

# ruff: noqa: RUF009 - ``key`` is ``dataclasses.field`` with more to say

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from gpusched.core.rules import RULES_VERSION
from gpusched.errors import DamagedState, InputError

if TYPE_CHECKING:
    from gpusched.samplers.sequence import Sampler

DEFAULT_POLICY = "hypersched"
DEFAULT_SAMPLER = "random"


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the recipe file, beside the type and the default of its field.

    ``path``: where the key stands, if not under the field's name. ``read``: the function of ``values`` that turns what
    people write into the value. ``older``: the value in experiments made before there was this key. ``is_found``: where
    the file has none, the reader finds a value. ``limits``: as pydantic's ``Field`` takes them.
    """

    meaning: str
    path: str = ""
    read: str = ""
    example: str = ""
    older: object = ...
    is_found: bool = False
    limits: Mapping[str, Any] = field(default_factory=dict)


def key(meaning: str, default: Any = MISSING, **about: Any) -> Any:
    """Declare a field of ``Recipe`` with its ``Key``."""
    described = Key(meaning, **about)
    if default == {}:
        return field(default_factory=dict, metadata={"key": described})
    return field(default=default, metadata={"key": described})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A checked recipe. Times in seconds, paths absolute."""

    name: str = key(
        "Name of the experiment; by default the recipe's file name.",
        is_found=True,
        limits={"pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
    )
    script: Path = key("The training script, relative to the recipe.", example="train.py")
    args: tuple[str, ...] = key(
        "Arguments of the script; ${lr} stands for the trial's value of lr.",
        (),
        read="argument",
        limits={"max_length": 1000},
    )
    cwd: Path = key(
        "Working directory of the script; by default the recipe's folder. `private`: each trial runs in a folder of "
        "its own (`trial.folder`), where no other trial finds its files.",
        is_found=True,
    )
    deadline_s: float = key(
        "How long the search may take from the start on, or until when: 18:30.",
        path="deadline",
        read="deadline",
        example="10m",
    )
    metric: str = key(
        "Which of the reported numbers is searched for.",
        example="accuracy",
        limits={"min_length": 1, "max_length": 128, "pattern": r"^[^\x00-\x1f\x7f]+$"},
    )
    mode: Literal["max", "min"] = key("Whether more or less of the metric is better.", "max")
    space: Mapping[str, Any] = key(
        "The search space: each hyperparameter and what it may be.",
        read="anything",
        example="{lr: {loguniform: [1e-4, 1]}}",
    )
    try_first: tuple[Mapping[str, Any], ...] = key(
        "Configurations to begin with; what they leave out is drawn.",
        (),
        older=(),
        limits={"max_length": 1000},
    )
    policy_name: str = key(
        "The policy's name, or a map of its name and options.",
        DEFAULT_POLICY,
        path="policy.name",
        read="anything",
    )
    policy_options: Mapping[str, Any] = key("The options of the policy.", {}, path="policy.*")
    devices: str | tuple[str, ...] = key(
        "What to run on: auto, cpu, cpu:N, cuda, cuda:0,2, or GPU UUIDs.", "auto", read="devices"
    )
    gpus_per_atom: int = key("GPUs in one atom.", 1, limits={"ge": 1, "le": 64})
    gpu_ids: Literal["uuid", "index"] = key(
        "What CUDA_VISIBLE_DEVICES holds; index is for scripts that parse it.", "uuid"
    )
    max_atoms: int | None = key(
        "Most atoms a trial may have; by default all.", None, limits={"ge": 1, "le": 65536}
    )
    sizes: tuple[int, ...] = key(
        "Numbers of atoms a trial may have; by default any.", (), read="sizes"
    )
    batch: Literal["per_atom", "global"] = key(
        "Whether the batch size is that of each atom or of all together.", "per_atom"
    )
    lr_power: float = key(
        "Learning rate x atoms^power: linear (1), sqrt (0.5), none (0) or auto (sqrt for Adam and its like).",
        1.0,
        path="lr_scaling.power",
        read="power",
    )
    lr_warmup_epochs: float = key(
        "Epochs over which the factor ramps after a resize.",
        5.0,
        path="lr_scaling.warmup_epochs",
        limits={"ge": 0, "le": 1000},
    )
    lr_ramp: Literal["warmup", "ten_percent"] = key(
        "Gradual warm-up, or at most 10% an epoch (HyperSched 6.3).",
        "warmup",
        path="lr_scaling.ramp",
    )
    scaling: str | Mapping[int, float] = key(
        "Throughput on a atoms, s(a): learnt (auto), a formula, or a table.", "auto", read="scaling"
    )
    launch: Literal["warm", "cold"] = key(
        "Fork from a warm interpreter, or start plain torchrun for each launch.", "warm"
    )
    python: Path | None = key(
        "Another Python interpreter for the script; needs launch: cold.", None
    )
    preload: tuple[str, ...] = key(
        "Modules that the warm interpreter imports once.",
        (),
        read="module",
        limits={"max_length": 1000},
    )
    prestart: bool = key(
        "Whether a resize sets its new ranks up beside those that train; CPU slots only.",
        True,
        older=True,
    )
    env: Mapping[str, str | None] = key(
        "Environment variables for the script.", {}, read="environment"
    )
    seed: int = key("Seed of the configurations and of training.", 0, limits={"ge": 0, "lt": 2**63})
    sampler_name: str = key(
        "Where configurations come from: a sampler's name, or a map of its name and options.",
        DEFAULT_SAMPLER,
        path="sampler.name",
        read="anything",
        older="independent",
    )
    sampler_options: Mapping[str, Any] = key(
        "The options of the sampler.", {}, path="sampler.*", older={}
    )
    repeats: int = key(
        "How often each configuration of a finite space is tried, each time with another seed.",
        1,
        older=1,
        limits={"ge": 1, "le": 1000},
    )
    log_to: Mapping[str, Any] = key(
        "Other tools that show each trial as a run, live: names, or maps of name and options.",
        {},
        read="anything",
        example="[tensorboard, {mlflow: {uri: sqlite:///mlflow.db}}]",
        older={},
    )
    rules_version: int = key(
        "Version of the decision rules; a resumed experiment keeps the one it began with.",
        RULES_VERSION,
        older=1,
        limits={"ge": 1, "le": RULES_VERSION},
    )
    max_trials: int | None = key(
        "Most configurations to draw; by default no limit.", None, limits={"ge": 1, "le": 1_000_000}
    )
    max_failures: int = key(
        "Failed trials, before any succeeded, that end the search.",
        3,
        limits={"ge": 1, "le": 1_000_000},
    )
    grace_s: float = key("From SIGTERM to SIGKILL.", 5.0, path="grace", read="duration")
    keep_checkpoints: int = key("Checkpoints kept for each trial.", 2, limits={"ge": 1, "le": 1000})
    save_every_s: float = key(
        "Most training that a trial loses when the machine dies: at the latest then it is saved, within the 3% of its "
        "time that saves may cost.",
        300.0,
        path="save_every",
        read="duration",
        older=300.0,
    )
    startup_limit_s: float | None = key(
        "How long a launch may take to its first report; by default 10 minutes.",
        None,
        path="startup_limit",
        read="duration",
    )
    hang_limit_s: float | None = key(
        "How long a trial may be silent; by default 60 s or five of its steps.",
        None,
        path="hang_limit",
        read="duration",
    )
    trial_limit_s: float | None = key(
        "Most training time of one trial, which is complete then; by default any.",
        None,
        path="trial_limit",
        read="duration",
        older=None,
    )
    checkpoints_max_bytes: int | None = key(
        "Most room for all checkpoints: above it those of trials that are over go, the oldest first; by default any.",
        None,
        path="checkpoints_max",
        read="size",
        older=None,
    )
    target: float | None = key(
        "A metric that is good enough: the search ends when a trial reaches it.", None
    )

    def resolved(self) -> dict[str, Any]:
        """Return every key as plain values: JSON-able, and a recipe that loads back as an equal one."""
        data: dict[str, Any] = {}
        for name, (path, _, _) in _places().items():
            value = _plain(getattr(self, name))
            branch = data
            for part in path[:-1]:
                branch = branch.setdefault(part, {})
            if path[-1] == "*":
                branch.update(value)
            else:
                branch[path[-1]] = value
        return data

    @classmethod
    def from_resolved(cls, resolved: Mapping[str, Any]) -> Self:
        """Return the recipe that ``resolved`` describes, unchecked: it was checked before it was written.

        Raises DamagedState if keys are missing or unknown, as in a folder written by another version.
        """
        try:
            left = {name: dict(v) if name in _BRANCHES else v for name, v in resolved.items()}
            values: dict[str, Any] = {}
            for name, (path, hint, about) in _places().items():
                branch = left if len(path) == 1 else left.get(path[0], {})
                if path[-1] == "*":
                    value = {key: _tuples(option) for key, option in branch.items()}
                    branch.clear()
                elif about.older is ...:
                    value = _typed(branch.pop(path[-1]), hint)
                else:
                    value = _typed(branch.pop(path[-1], about.older), hint)
                values[name] = value
            unknown = [name for name, v in left.items() if v or name not in _BRANCHES]
            if unknown:
                raise KeyError(*unknown)
            return cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"the resolved recipe is damaged or of another version: {error!r}"
            raise DamagedState(message) from None

    def for_disk(self) -> Self:
        """Return the recipe without the values of ``env`` that must not be written (``env``)."""
        from gpusched.recipe.env import for_disk

        return replace(self, env=for_disk(self.env))

    def to_yaml(self) -> str:
        """Return the resolved recipe as a recipe file."""
        from gpusched.recipe.yaml import write_yaml

        return write_yaml(self.resolved())

    def worker_settings(self) -> dict[str, Any]:
        """Return ``worker.json``: what a worker needs to know of the recipe (docs/contracts.md)."""
        names = ("metric", "mode", "seed", "batch", "lr_power", "lr_warmup_epochs", "lr_ramp")
        return {
            **{name: getattr(self, name) for name in names},
            "max_steps": self.policy_options.get("R"),
            "keep_checkpoints": self.keep_checkpoints,
        }

    @property
    def has_memory(self) -> bool:
        """True if the sampler learns, and is asked for one configuration after the other."""
        from gpusched.samplers import sequence

        return self.sampler_name not in sequence.NAMES

    def configurations(self) -> Sampler:
        """Return the sequence of this recipe's configurations; at random in the place of a sampler with a memory."""
        from gpusched.samplers import sequence
        from gpusched.space.space import parse_space

        name = DEFAULT_SAMPLER if self.has_memory else self.sampler_name
        space = parse_space(self.space)
        return sequence.make(name, space, self.seed, self.try_first, self.repeats)

    @property
    def atoms_named(self) -> int | None:
        """Number of atoms that ``devices`` names; None where that depends on the machine."""
        if isinstance(self.devices, tuple):
            return len(self.devices) // self.gpus_per_atom
        kind, _, rest = self.devices.partition(":")
        if kind == "cpu" and rest:
            return int(rest)
        return len(rest.split(",")) // self.gpus_per_atom if rest else None

    def too_many_atoms(self, total: int) -> list[tuple[tuple[str, ...], str]]:
        """Return the keys that ask for more atoms than there are, each with a message."""
        found: list[tuple[tuple[str, ...], str]] = []
        there_are = f"there are {total}" if total != 1 else "there is 1"
        if total < 1:
            found.append((("gpus_per_atom",), f"no atom of {self.gpus_per_atom} GPUs can be made"))
        elif self.sizes and min(self.sizes) > total:
            found.append(
                (("sizes",), f"the smallest trial has {min(self.sizes)} atoms; {there_are}")
            )
        elif self.max_atoms is not None and self.max_atoms > total:
            found.append((("max_atoms",), f"{self.max_atoms} atoms for one trial; {there_are}"))
        wanted = self.policy_options.get("atoms")
        if isinstance(wanted, int) and wanted > max(total, 1):
            found.append((("policy", "atoms"), f"{wanted} atoms for one trial; {there_are}"))
        return found

    def require_atoms(self, total: int) -> None:
        """Raise InputError if the recipe asks for more atoms than the ``total`` that were found."""
        found = self.too_many_atoms(total)
        if found:
            lines = [f"{'.'.join(path)}: {message}" for path, message in found]
            raise InputError("\n".join(lines))


#: Keys whose value is a map of keys.
_BRANCHES = ("policy", "sampler", "lr_scaling")


@functools.cache
def _places() -> dict[str, tuple[tuple[str, ...], Any, Key]]:
    """Return each field's place in the file, its type, and its ``Key``."""
    hints = typing.get_type_hints(Recipe)
    found = {}
    for item in fields(Recipe):
        about: Key = item.metadata["key"]
        found[item.name] = (tuple((about.path or item.name).split(".")), hints[item.name], about)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _typed(value: Any, hint: Any) -> Any:
    """Return a plain value as the field of this type holds it."""
    kinds = {typing.get_origin(kind) or kind for kind in (hint, *typing.get_args(hint))}
    if Path in kinds and value is not None:
        return Path(value)
    if tuple in kinds and isinstance(value, list):
        return tuple(value)
    if Mapping[int, float] in typing.get_args(hint) and isinstance(value, Mapping):
        return {int(atoms): s for atoms, s in value.items()}
    return value


def _tuples(value: Any) -> Any:
    """Turn lists into tuples, at any depth, so that a policy's options cannot be changed."""
    if isinstance(value, list | tuple):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    return value
