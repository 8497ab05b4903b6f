"""The direction of imports, read from the sources: ``core <- policies <- driver <- {sim, daemon} <- cli``.

A new module of gpusched needs a line in ``MAY_IMPORT``; think about which before you widen one.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "gpusched"

MACHINE = {"core", "errors", "journal", "executors", "dashboard", "paths", "trees"}
MACHINE |= {"failpoints", "epoch"}
"""What the parts that touch the machine or the screen share; nothing of policies, driver, daemon, cli, sim."""

SEARCH = MACHINE | {"policies", "space", "config", "driver"}
"""What it takes to run an experiment, live or simulated."""

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "failpoints": set(),
    "logcap": set(),
    "epoch": {"errors", "failpoints", "paths"},
    "paths": {"errors"},
    "reserve": set(),
    "garbage": {"core", "paths", "trees"},
    "core": {"core"},
    "policies": {"policies", "core", "errors"},
    "space": {"space", "errors"},
    "config": {"config", "space", "policies", "core", "errors", "paths"},
    "trees": {"trees", "errors", "paths"},
    "clock": {"trees", "errors"},
    "lock": {"errors"},
    "client": {"errors", "paths"},
    "journal": MACHINE | {"reserve"},
    "executors": MACHINE | {"reserve"},
    "dashboard": MACHINE,
    "driver": {"driver", "policies", "core", "executors", "journal", "paths", "errors", "space"}
    | {"failpoints"},
    "profiles": {"config", "core", "errors", "journal", "paths"},
    "assemble": SEARCH | {"profiles"},
    "launchpad": {"config", "clock", "errors", "paths", "profiles"},
    "session": {"assemble", "client", "errors", "paths"},
    "result": {"result", "session", "errors", "paths", "trees", "worker"},
    "recovery": SEARCH | {"assemble"},
    "forecaster": {"forecaster", "policies", "core", "errors"},
    "report": {"report", "dashboard", "core", "errors"},
    "sim": SEARCH | {"sim", "assemble", "forecaster", "clock"},
    "daemon": SEARCH
    | {"daemon", "assemble", "clock", "lock", "forecaster", "recovery", "reserve"}
    | {"garbage", "report", "logcap"},
    "cli": SEARCH
    | {
        "cli",
        "sim",
        "daemon",
        "assemble",
        "clock",
        "lock",
        "client",
        "garbage",
        "launchpad",
        "profiles",
        "report",
        "result",
        "session",
    },
    "__main__": {"cli"},
    "worker": {"worker", "trees", "core", "errors", "paths", "failpoints", "epoch", "logcap"},
}

PURE_PARTS = ("core", "policies")
PURE_STANDARD_LIBRARY = {
    *(
        "__future__",
        "abc",
        "array",
        "bisect",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "difflib",
    ),
    *("enum", "fractions", "functools", "hashlib", "heapq", "importlib", "itertools", "json"),
    *("math", "numbers", "operator", "random", "re", "statistics", "string", "textwrap", "types"),
    *("typing",),
}
"""No clock and no I/O: neither time, datetime, os, subprocess, socket nor pathlib."""

LIBRARIES = {
    "core": {"sortedcontainers"},
    "policies": {"numpy", "scipy", "sortedcontainers", "emcee"},
}
SEEDED_NUMPY = {"Generator", "BitGenerator", "PCG64", "Philox", "SeedSequence", "RandomState"}


@dataclass(frozen=True)
class Import:
    file: Path
    line: int
    module: str
    names: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


def part_of(module: str) -> str:
    """``gpusched.core.rung`` -> ``core``; ``gpusched.config_yaml`` -> ``config``: split-off files are of one part."""
    name = module.split(".")[1]
    return name if name in MAY_IMPORT else name.partition("_")[0]


def module_of(file: Path) -> str:
    names = list(file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imports_of(file: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import"
            assert node.module is not None
            names = tuple(alias.name for alias in node.names)
            if node.module == "gpusched":  # `from gpusched import space` names a part
                for name in names:
                    if name != "__version__":
                        yield Import(file, node.lineno, f"gpusched.{name}")
            else:
                yield Import(file, node.lineno, node.module, names)


SOURCES = sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")


@pytest.fixture(params=SOURCES, ids=lambda file: str(file.relative_to(PACKAGE)))
def source(request: pytest.FixtureRequest) -> Path:
    file: Path = request.param
    return file


def test_parts_import_downwards_only(source: Path) -> None:
    part = part_of(module_of(source))
    assert part in MAY_IMPORT, f"say in MAY_IMPORT what {source.relative_to(ROOT)} may import"
    for found in imports_of(source):
        if found.top != "gpusched" or found.module == "gpusched":  # to know where the package is
            continue
        target = part_of(found.module)
        assert target in MAY_IMPORT[part], f"{found.where}: {part} must not import {target}"


def test_core_and_policies_have_no_clock_and_no_io(source: Path) -> None:
    part = part_of(module_of(source))
    if part not in PURE_PARTS:
        return
    allowed = PURE_STANDARD_LIBRARY | LIBRARIES[part] | {"gpusched"}
    for found in imports_of(source):
        assert found.top in allowed, f"{found.where}: {found.module} is not pure"
        if found.module == "random":
            assert found.names == ("Random",), f"{found.where}: of random only Random"
        if found.module.startswith("numpy.random"):
            assert set(found.names) <= SEEDED_NUMPY, f"{found.where}: numpy's global generator"


def test_policies_use_no_global_random_numbers(source: Path) -> None:
    if part_of(module_of(source)) not in PURE_PARTS:
        return
    for node in ast.walk(ast.parse(source.read_text())):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Attribute):
            continue
        if node.value.attr == "random" and ast.unparse(node.value) in ("np.random", "numpy.random"):
            where = f"{source.relative_to(ROOT)}:{node.lineno}"
            seeded = node.attr in SEEDED_NUMPY | {"default_rng"}
            assert seeded, f"{where}: np.random.{node.attr} is global state"


def test_only_the_worker_imports_torch(source: Path) -> None:
    if part_of(module_of(source)) == "worker":
        return
    for found in imports_of(source):
        assert found.top not in ("torch", "torchvision"), f"{found.where}: imports {found.module}"


@pytest.mark.parametrize(
    "package", ["core", "dashboard", "executors", "report", "sim", "trees", "worker"]
)
def test_a_package_says_what_is_where(package: str) -> None:
    folder = PACKAGE / package
    told = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    named = set(re.findall(r"``(\w+)[^`]*``|(\w+)\.py", told))
    for file in set(folder.glob("*.py")) - {folder / "__init__.py"}:
        stem = file.stem
        assert (stem, "") in named or ("", stem) in named, (
            f"say in {package}/__init__.py what {stem} is"
        )


def test_the_rules_catch_what_they_should(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import time\n\ndef f():\n    from torch import nn\n    import gpusched.cli.run\n"
    )
    assert [found.top for found in imports_of(bad)] == ["time", "torch", "gpusched"]
    assert part_of("gpusched.cli.run") == "cli"
    assert part_of("gpusched.config_yaml") == "config"


@pytest.mark.parametrize("module", ["cli", "config", "daemon", "dashboard", "executors", "sim"])
def test_importing_the_daemon_side_does_not_load_torch(module: str) -> None:
    assert find_spec(f"gpusched.{module}"), "gone: name the daemon side's modules here"
    program = (
        f"import pkgutil, importlib, sys\n"
        f"module = importlib.import_module('gpusched.{module}')\n"
        f"for found in pkgutil.iter_modules(getattr(module, '__path__', [])):\n"
        f"    if found.name != '__main__':\n"
        f"        importlib.import_module('gpusched.{module}.' + found.name)\n"
        f"sys.exit('loaded torch' if 'torch' in sys.modules else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
