"""Write constraints.txt: the exact version of everything gpusched needs, as installed here.

Run it in an environment whose tests pass: ``python scripts/pin.py``. What is installed but not
needed by gpusched or one of its extras is left out. Local version labels (``+cpu``) are dropped,
so that the pins hold on a GPU machine too.
"""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# Exact versions of everything, written by scripts/pin.py. A release is tested with these;
# pyproject.toml says what it may run with.
"""


def wanted() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        lines += extra
    return [Requirement(line) for line in lines]


def closure(requirements: list[Requirement]) -> dict[str, str]:
    """Name -> version of the requirements and everything they need here."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = list(requirements)
    while queue:
        requirement = queue.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        package = distribution(requirement.name)
        found[name] = package.version.split("+")[0]
        for line in package.requires or ():
            child = Requirement(line)
            if child.marker is None or any(
                child.marker.evaluate({"extra": extra}) for extra in (extras or {""})
            ):
                queue.append(child)
    return found


def main() -> int:
    try:
        versions = closure(wanted())
    except PackageNotFoundError as error:
        print(f"not installed here: {error}; run `make test` first", file=sys.stderr)
        return 2
    lines = [f"{name}=={version}" for name, version in sorted(versions.items())]
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(lines) + "\n")
    print(f"constraints.txt: {len(lines)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
