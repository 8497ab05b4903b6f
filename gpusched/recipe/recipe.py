"""The recipe: what a user asks for, checked and complete.

``load_recipe`` reads a recipe file and tells all its problems at once. What comes out is a plain frozen dataclass
without pydantic or YAML behind it, so the daemon, which reads ``resolved.json``, pays for neither. ``resolved`` writes
every key out, defaults included: a resumed experiment must not change with a newer version's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from gpusched.errors import DamagedState, InputError

if TYPE_CHECKING:
    from gpusched.samplers.sequence import Sampler

#: Keys of a recipe file whose name in ``Recipe`` carries a unit.
_DURATIONS = ("deadline", "grace", "startup_limit", "hang_limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A checked recipe. Times in seconds, paths absolute; ``docs/recipe.md`` says what each key means."""

    name: str
    script: Path
    args: tuple[str, ...]
    cwd: Path
    deadline_s: float
    metric: str
    mode: Literal["max", "min"]
    space: Mapping[str, Any]
    policy_name: str
    policy_options: Mapping[str, Any]
    devices: str | tuple[str, ...]
    gpus_per_atom: int
    gpu_ids: Literal["uuid", "index"]
    max_atoms: int | None
    sizes: tuple[int, ...]
    batch: Literal["per_atom", "global"]
    lr_power: float
    lr_warmup_epochs: float
    lr_ramp: Literal["warmup", "ten_percent"]
    scaling: str | Mapping[int, float]
    launch: Literal["warm", "cold"]
    python: Path | None
    preload: tuple[str, ...]
    env: Mapping[str, str | None]
    seed: int
    max_trials: int | None
    max_failures: int
    grace_s: float
    keep_checkpoints: int
    startup_limit_s: float | None
    hang_limit_s: float | None
    target: float | None
    prestart: bool = True
    try_first: tuple[Mapping[str, Any], ...] = ()
    sampler: str = "random"
    repeats: int = 1

    def resolved(self) -> dict[str, Any]:
        """Every key of the recipe as plain values: JSON-able, and a recipe that loads back as an equal one."""
        data: dict[str, Any] = {}
        for field in fields(self):
            name, value = field.name, _plain(getattr(self, field.name))
            if name in ("policy_name", "policy_options"):
                inner = {"name": value} if name == "policy_name" else value
                data.setdefault("policy", {}).update(inner)
            elif name.startswith("lr_"):
                data.setdefault("lr_scaling", {})[name.removeprefix("lr_")] = value
            else:
                data[name.removesuffix("_s")] = value
        return data

    @classmethod
    def from_resolved(cls, resolved: Mapping[str, Any]) -> Self:
        """The recipe that ``resolved`` describes, unchecked: it was checked before it was written.

        Raises DamagedState if keys are missing or unknown, as in a folder written by another version.
        """
        data = dict(resolved)
        try:
            for name in _DURATIONS:
                data[f"{name}_s"] = data.pop(name)
            options = dict(data.pop("policy"))
            data |= {"policy_name": options.pop("name"), "policy_options": _tuples(options)}
            data |= {f"lr_{name}": value for name, value in data.pop("lr_scaling").items()}
            for name in ("script", "cwd", "python"):
                data[name] = None if data[name] is None else Path(data[name])
            for name in ("args", "sizes", "preload", "devices"):
                data[name] = _tuples(data[name])
            data["try_first"] = tuple(data.get("try_first", ()))
            # Recipes without the key were drawn from with repetition; a resumed search must go on with that.
            data.setdefault("sampler", "independent")
            if not isinstance(data["scaling"], str):
                data["scaling"] = {int(atoms): s for atoms, s in data["scaling"].items()}
            return cls(**data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"the resolved recipe is damaged or of another version: {error!r}"
            raise DamagedState(message) from None

    def for_disk(self) -> Self:
        """Without the values of ``env`` that must not be written (``recipe/env.py``)."""
        from gpusched.recipe.env import for_disk

        return replace(self, env=for_disk(self.env))

    def to_yaml(self) -> str:
        """The resolved recipe as a recipe file."""
        from gpusched.recipe.write import write_yaml

        return write_yaml(self.resolved())

    def worker_settings(self) -> dict[str, Any]:
        """``worker.json``: what a worker needs to know of the recipe (docs/contracts.md)."""
        return {
            "metric": self.metric,
            "mode": self.mode,
            "seed": self.seed,
            "batch": self.batch,
            "lr_power": self.lr_power,
            "lr_warmup_epochs": self.lr_warmup_epochs,
            "lr_ramp": self.lr_ramp,
            "max_steps": self.policy_options.get("R"),
            "keep_checkpoints": self.keep_checkpoints,
        }

    def configurations(self) -> Sampler:
        """The sequence of this recipe's configurations."""
        from gpusched.samplers import sequence
        from gpusched.space.space import parse_space

        space = parse_space(self.space)
        return sequence.make(self.sampler, space, self.seed, self.try_first, self.repeats)

    @property
    def atoms_named(self) -> int | None:
        """How many atoms ``devices`` names; None where that depends on the machine."""
        if isinstance(self.devices, tuple):
            return len(self.devices) // self.gpus_per_atom
        kind, _, rest = self.devices.partition(":")
        if kind == "cpu" and rest:
            return int(rest)
        return len(rest.split(",")) // self.gpus_per_atom if rest else None

    def too_many_atoms(self, total: int) -> list[tuple[tuple[str, ...], str]]:
        """Keys that ask for more atoms than there are, and why that cannot be."""
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


def load_recipe(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    deadline: str | None = None,
    devices: str | None = None,
    policy: str | None = None,
    seed: int | str | None = None,
) -> Recipe:
    """Read and check a recipe file.

    ``overrides`` are ``key.key=value`` with a YAML value; the named arguments are the options of ``gpusched run`` of
    that name. A policy named by option keeps those options of the recipe's policy that it knows too.

    Raises RecipeError with all problems, each ``recipe.yaml:LINE: dotted.key: what is wrong; what to do``, and
    InputError if there is no such file or it is no text.
    """
    from gpusched.recipe.load import load

    flags = {"policy": policy, "deadline": deadline, "devices": devices, "seed": seed}
    return load(Path(path), overrides, flags)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _tuples(value: Any) -> Any:
    """Lists become tuples, at any depth: a recipe is not to be changed."""
    if isinstance(value, list | tuple):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    return value
