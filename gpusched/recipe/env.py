"""Secrets in a recipe's ``env``: values that may stand on the disk, and the source of the others (reliability F42).

Names are always written. A value is written only if it is on the allow-list: of a variable that tunes a library, or
plainly no secret (a number, a switch, a path). Every other value reaches the daemon through memory, and at ``resume``
is taken from the environment, or else from the recipe's own file, where the user keeps it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from gpusched.errors import InputError

Environment = Mapping[str, str | None]
"""None: a value that is not written here."""

_TUNING = re.compile(
    r"(OMP|KMP|MKL|OPENBLAS|NUMEXPR|VECLIB|GOTO|BLIS|NCCL|GLOO|UCX|CUDA|CUDNN|CUBLAS|NVIDIA|TORCH|PYTORCH|TRITON|XLA"
    r"|TF|JAX|TOKENIZERS|TRANSFORMERS|DATASETS|PYTHON|MALLOC|MPL|LC)_?[A-Z0-9_]*|HF_(HOME|HUB_OFFLINE|DATASETS_OFFLINE)"
    r"|LANG|TZ|TERM|TMPDIR|PATH|LD_LIBRARY_PATH|(WANDB|MLFLOW|COMET)_(MODE|PROJECT|DISABLED|SILENT)"
)
_SECRET = re.compile(
    r"(^|_)(TOKEN|KEY|SECRET|PASS|PASSWD|PASSWORD|PW|PWD|CRED\w*|AUTH\w*|PIN|DSN)S?($|_)", re.I
)
_PLAIN = re.compile(
    r"|[-+]?[0-9]{1,12}(\.[0-9]{1,12})?(e[-+]?[0-9]{1,3})?|true|false|yes|no|on|off|none|auto|debug|info|warning|error",
    re.I | re.ASCII,
)
_FOLDER = re.compile(r"(~|\.{1,2})?(/[A-Za-z0-9._+-]{1,64})+/?", re.ASCII)
_LONGEST = 1000


def may_be_written(name: str, value: str) -> bool:
    """Tell whether this value may stand on the disk."""
    if _SECRET.search(name) or len(value) > _LONGEST or "://" in value:
        return False
    known = _TUNING.fullmatch(name) is not None
    return known or _PLAIN.fullmatch(value) is not None or _FOLDER.fullmatch(value) is not None


def for_disk(environment: Environment) -> dict[str, str | None]:
    """Return all names, and the values that may be written."""
    return {
        name: value if value is not None and may_be_written(name, value) else None
        for name, value in environment.items()
    }


def from_elsewhere(wanted: Environment, file: Path | None) -> dict[str, str]:
    """Return values for the names in ``wanted`` that have none: from the environment, else from the recipe's file.

    Raises InputError naming all that are nowhere.
    """
    names = [name for name, value in wanted.items() if value is None]
    found = {name: os.environ[name] for name in names if name in os.environ}
    if len(found) < len(names) and file is not None:
        kept = _of_file(file)
        found |= {name: kept[name] for name in names if name in kept and name not in found}
    missing = [name for name in names if name not in found]
    if missing:
        where = f" nor in {file}" if file is not None else ""
        raise InputError(
            f"env: no value for {', '.join(missing)}: not in the environment{where}, and not kept on the disk; "
            f"set it in the environment of gpusched, as in {missing[0]}=... gpusched ..."
        )
    return found


def filled_in(recipe_env: Environment, given: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment, with the values that were ``given``. Raises InputError if one is nowhere."""
    known = {**recipe_env, **given}
    found = from_elsewhere(known, None)
    return {name: found[name] if value is None else value for name, value in known.items()}


def _of_file(file: Path) -> dict[str, str]:
    from gpusched.recipe.values import environment
    from gpusched.recipe.yaml import Unreadable, read_text, read_yaml

    try:
        data = read_yaml(read_text(file), str(file)).data
        values = environment(data.get("env") if isinstance(data, dict) else None)
    except (InputError, Unreadable, ValueError):
        return {}
    return {name: value for name, value in values.items() if value is not None}
