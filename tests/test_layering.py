"""The rooms of gpusched and the direction of imports, as the list in ``docs/architecture.md`` draws them."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rig import run_python

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "gpusched"
PICTURE = ROOT / "docs" / "architecture.md"

PURE_ROOMS = ("core", "policies")
PURE_STANDARD_LIBRARY = {
    *("__future__", "abc", "array", "bisect", "collections", "contextlib", "copy", "dataclasses"),
    *("difflib", "enum", "fractions", "functools", "hashlib", "heapq", "importlib", "itertools"),
    *("json", "math", "numbers", "operator", "random", "re", "statistics", "string", "textwrap"),
    *("types", "typing"),
}
"""No clock and no I/O: neither time, datetime, os, subprocess, socket nor pathlib."""
PURE_LIBRARIES = {
    "core": {"msgspec", "sortedcontainers"},
    "policies": {"msgspec", "numpy", "scipy", "sortedcontainers"},
}
SEEDED_NUMPY = {"Generator", "BitGenerator", "PCG64", "Philox", "SeedSequence", "RandomState"}

TORCH_ROOMS = {"worker", "runtime", "lightning", "transformers", "accelerate"}


@dataclass(frozen=True)
class Import:
    file: Path
    line: int
    module: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.module}"

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    @property
    def room(self) -> str:
        """The room of gpusched that is imported; empty for another package, or for ``gpusched`` itself."""
        return self.module.split(".")[1] if self.module.startswith("gpusched.") else ""


def room_of(file: Path) -> str:
    """``gpusched/core/rung.py`` -> ``core``; ``gpusched/errors.py`` -> ``errors``."""
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


@functools.cache
def nodes_of(file: Path) -> list[ast.AST]:
    """All of a file's syntax tree: each file is parsed once, and none where no test asks."""
    return list(ast.walk(ast.parse(file.read_text(), str(file))))


def imports_of(file: Path) -> Iterator[Import]:
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import"
            assert node.module is not None
            names = tuple(alias.name for alias in node.names)
            if node.module == "gpusched":  # `from gpusched import policies` names a room
                for name in names:
                    if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file():
                        yield Import(file, node.lineno, f"gpusched.{name}")
            else:
                yield Import(file, node.lineno, node.module, names)


SOURCES = [f for f in sorted(PACKAGE.rglob("*.py")) if f.parent != PACKAGE or f.name[0] != "_"]


@functools.cache
def all_imports() -> list[Import]:
    return [found for file in SOURCES for found in imports_of(file)]


def drawn() -> dict[str, set[str]]:
    """The picture: room -> the rooms it imports, from the top down."""
    block = PICTURE.read_text().partition("```rooms\n")[2].partition("```")[0]
    rows = (line.partition("→") for line in block.splitlines())
    return {room.strip(): set(below.split()) for room, _, below in rows}


def test_the_picture_is_the_imports() -> None:
    found: dict[str, set[str]] = {room_of(file): set() for file in SOURCES}
    for arrow in all_imports():
        if arrow.room and arrow.room != room_of(arrow.file):
            found[room_of(arrow.file)].add(arrow.room)
    picture = drawn()
    assert picture.keys() == found.keys(), "docs/architecture.md must list each room once"
    for room, below in found.items():
        undrawn = below - picture[room]
        new = [str(i) for i in all_imports() if room_of(i.file) == room and i.room in undrawn]
        assert not new, f"{room}: imports that docs/architecture.md does not draw: {new}"
        assert below == picture[room], f"{room}: drawn, and not imported: {picture[room] - below}"


def test_rooms_import_downwards_only() -> None:
    order = list(drawn())
    for room, below in drawn().items():
        up = [other for other in below if order.index(other) <= order.index(room)]
        assert not up, f"{room} imports {up}, which the picture draws above it"


def test_core_and_policies_have_no_clock_and_no_io() -> None:
    for found in all_imports():
        room = room_of(found.file)
        if room not in PURE_ROOMS:
            continue
        assert found.top in PURE_STANDARD_LIBRARY | PURE_LIBRARIES[room] | {"gpusched"}, str(found)
        if found.module == "random":
            assert found.names == ("Random",), f"{found}: of random only Random"
        if found.module.startswith("numpy.random"):
            assert set(found.names) <= SEEDED_NUMPY, f"{found}: numpy's global generator"


def test_core_and_policies_use_no_global_random_numbers() -> None:
    for file in SOURCES:
        if room_of(file) not in PURE_ROOMS:
            continue
        for used in re.findall(r"\b(?:np|numpy)\.random\.(\w+)", file.read_text()):
            assert used in SEEDED_NUMPY | {"default_rng"}, f"{file}: np.random.{used} is global"


def test_torch_is_imported_where_training_happens_alone() -> None:
    for found in all_imports():
        if found.top in ("torch", "torchvision"):
            assert room_of(found.file) in TORCH_ROOMS, str(found)


def test_a_room_says_what_is_where() -> None:
    """The package's own text names each of its files: as ``name`` or as name.py."""
    for init in PACKAGE.rglob("*/__init__.py"):
        files = {file.stem for file in init.parent.glob("*.py")} - {"__init__"}
        if init.parent.name in ("cli", "policies"):  # a file is named as its command or its policy
            continue
        told = ast.get_docstring(ast.parse(init.read_text())) or ""
        named = {a or b for a, b in re.findall(r"``(\w+)[^`]*``|(\w+)\.py", told)}
        assert files <= named, f"{init.relative_to(ROOT)} does not name {files - named}"


IMPORT_EACH = """
import importlib, pkgutil
for room in ("cli", "recipe", "daemon", "dashboard", "devices", "executors", "sim"):
    name = f"gpusched.{room}"
    for found in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
"""
DOCTOR = """
from pathlib import Path
from gpusched.doctor.machine import doctor_checks
doctor_checks(Path.cwd())
"""
#: A program, and what it must not load.
LIGHT = {
    "the daemon's side": (IMPORT_EACH, {"torch"}),
    "doctor": (DOCTOR, {"torch"}),
    "status and ls, which answer at once": (
        "import gpusched.cli\ngpusched.cli.command('status')",
        {"gpusched.driver.assemble", "gpusched.policies", "ruamel.yaml", "numpy"},
    ),
    "views and lines": ("import gpusched.dashboard.view, gpusched.dashboard.lines", {"rich"}),
    "a shim, a rank and a daemon's start, without psutil's tens of milliseconds": (
        "import gpusched.runtime.warm, gpusched.runtime.shim, gpusched.worker.trial, gpusched.daemon.daemon",
        {"psutil", "pynvml"},
    ),
    "a search on one machine": (
        "import gpusched.cli, gpusched.daemon.daemon, gpusched.executors.local.executor",
        {"gpusched.executors.cluster", "cryptography", "ssl", "ray"},
    ),
}


@pytest.mark.parametrize("what", LIGHT)
def test_nothing_heavy_is_loaded_by(what: str) -> None:
    program, heavy = LIGHT[what]
    program += f"\nimport sys\nsys.exit(' '.join({heavy} & {{*sys.modules}}) or 0)"
    done = run_python("-c", program, folder=ROOT)
    assert done.returncode == 0, done.stderr
