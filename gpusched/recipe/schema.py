"""The keys of a recipe: names, types, defaults and what each means, as a pydantic model.

The one list of keys: validation, nearest-name hints, the JSON schema for editors and the reference page are made from
it or checked against it. ``space``, ``policy`` and what depends on the machine are checked elsewhere. Imported only
where a recipe is read; the daemon does not pay for pydantic.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from gpusched.recipe import values

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_DURATION = {"type": ["string", "number"], "examples": ["90s", "10m", "1h30m"]}
_ARGUMENT = {"type": ["string", "number"]}
_DEVICES = {
    "anyOf": [
        {
            "type": "string",
            "pattern": "^(auto|cpu(:[0-9]+)?|cuda(:[0-9]+(,[0-9]+)*)?|(GPU|MIG)-.+)$",
        },
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
    ]
}
_SCALING = {
    "anyOf": [
        {"enum": list(values.SCALINGS)},
        {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}},
    ]
}
_POWER = {"enum": [1, 0.5, 0, "linear", "sqrt", "none"]}

Duration = Annotated[float, BeforeValidator(values.duration), WithJsonSchema(_DURATION)]
Deadline = Annotated[
    float,
    BeforeValidator(values.deadline),
    WithJsonSchema({"type": ["string", "number"], "examples": ["10m", "18:30"]}),
]
Argument = Annotated[str, BeforeValidator(values.argument), WithJsonSchema(_ARGUMENT)]
Environment = Annotated[
    dict[str, str | None],
    BeforeValidator(values.environment),
    WithJsonSchema(
        {"type": "object", "additionalProperties": {"anyOf": [_ARGUMENT, {"type": "null"}]}}
    ),
]
Devices = Annotated[Any, BeforeValidator(values.devices), WithJsonSchema(_DEVICES)]
Scaling = Annotated[Any, BeforeValidator(values.scaling), WithJsonSchema(_SCALING)]
Power = Annotated[float, BeforeValidator(values.power), WithJsonSchema(_POWER)]
Sizes = Annotated[
    list[int],
    BeforeValidator(values.sizes),
    WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 1}}),
]
Module = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", max_length=200)]
FilePath = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]


class Strict(BaseModel):
    """No unknown keys, no conversions: ``true`` is not 1, ``"1"`` is not 1, and nothing is infinite."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _shorthand(value: object) -> object:
    return value if isinstance(value, dict) else {"power": value}


class LrScaling(Strict):
    """How the learning rate follows the number of atoms."""

    power: Power = Field(
        default=1.0, description="Learning rate x atoms^power: linear (1), sqrt (0.5) or none (0)."
    )
    warmup_epochs: float = Field(
        default=5, ge=0, le=1000, description="Epochs over which the factor ramps after a resize."
    )
    ramp: Literal["warmup", "ten_percent"] = Field(
        default="warmup", description="Gradual warm-up, or at most 10% a step (HyperSched 6.3)."
    )


class RecipeModel(Strict):
    """A gpusched recipe: one hyperparameter search with a deadline."""

    name: str | None = Field(
        default=None,
        pattern=NAME,
        description="Name of the experiment; by default the recipe's file name.",
    )
    script: FilePath = Field(
        description="The training script, relative to the recipe.", examples=["train.py"]
    )
    args: list[Argument] = Field(
        default=[],
        max_length=1000,
        description="Arguments of the script; ${lr} stands for the trial's value of lr.",
    )
    cwd: FilePath | None = Field(
        default=None,
        description="Working directory of the script; by default the recipe's folder. `private`: each trial runs in a "
        "folder of its own (`trial.folder`), where no other trial finds its files.",
    )
    deadline: Deadline = Field(
        description="How long the search may take from the start on, or until when: 18:30.",
        examples=["10m"],
    )
    metric: str = Field(
        description="Which of the reported numbers is searched for.",
        min_length=1,
        max_length=128,
        pattern=r"^[^\x00-\x1f\x7f]+$",
        examples=["accuracy"],
    )
    mode: Literal["max", "min"] = Field(
        default="max", description="Whether more or less of the metric is better."
    )
    space: Any = Field(
        description="The search space: each hyperparameter and what it may be.",
        examples=["{lr: {loguniform: [1e-4, 1]}}"],
    )
    try_first: list[dict[str, Any]] = Field(
        default=[],
        max_length=1000,
        description="Configurations to begin with; what they leave out is drawn.",
    )
    policy: Any = Field(
        default="hypersched", description="The policy's name, or a map of its name and options."
    )
    devices: Devices = Field(
        default="auto",
        description="What to run on: auto, cpu, cpu:N, cuda, cuda:0,2, or GPU UUIDs.",
    )
    gpus_per_atom: int = Field(default=1, ge=1, le=64, description="GPUs in one atom.")
    gpu_ids: Literal["uuid", "index"] = Field(
        default="uuid",
        description="What CUDA_VISIBLE_DEVICES holds; index is for scripts that parse it.",
    )
    max_atoms: int | None = Field(
        default=None, ge=1, le=65536, description="Most atoms a trial may have; by default all."
    )
    sizes: Sizes = Field(
        default=[], description="Numbers of atoms a trial may have; by default any."
    )
    batch: Literal["per_atom", "global"] = Field(
        default="per_atom",
        description="Whether the batch size is that of each atom or of all together.",
    )
    lr_scaling: Annotated[
        LrScaling,
        BeforeValidator(_shorthand),
        Field(description="How the learning rate follows the atoms; a power alone will do."),
    ] = LrScaling()
    scaling: Scaling = Field(
        default="auto",
        description="Throughput on a atoms, s(a): learnt (auto), a formula, or a table.",
    )
    launch: Literal["warm", "cold"] = Field(
        default="warm",
        description="Fork from a warm interpreter, or start plain torchrun for each launch.",
    )
    python: FilePath | None = Field(
        default=None, description="Another Python interpreter for the script; needs launch: cold."
    )
    preload: list[Module] = Field(
        default=[], max_length=1000, description="Modules that the warm interpreter imports once."
    )
    prestart: bool = Field(
        default=True,
        description="Whether a resize sets its new ranks up beside those that train; CPU slots only.",
    )
    env: Environment = Field(default={}, description="Environment variables for the script.")
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="Seed of the configurations and of training."
    )
    sampler: Literal["random", "grid", "independent"] = Field(
        default="random",
        description="Where configurations come from: drawn, each once; listed; or drawn independently.",
    )
    repeats: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="How often each configuration of a finite space is tried, each time with another seed.",
    )
    max_trials: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Most configurations to draw; by default no limit.",
    )
    max_failures: int = Field(
        default=3,
        ge=1,
        le=1_000_000,
        description="Failed trials, before any succeeded, that end the search.",
    )
    grace: Duration = Field(default=5.0, description="From SIGTERM to SIGKILL.")
    keep_checkpoints: int = Field(
        default=2, ge=1, le=1000, description="Checkpoints kept for each trial."
    )
    startup_limit: Duration | None = Field(
        default=None,
        description="How long a launch may take to its first report; by default 10 minutes.",
    )
    hang_limit: Duration | None = Field(
        default=None,
        description="How long a trial may be silent; by default 60 s or five of its steps.",
    )
    target: float | None = Field(
        default=None,
        description="A metric that is good enough: the search ends when a trial reaches it.",
    )
