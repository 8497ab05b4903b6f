"""What the installed torch was built for, found out without importing it."""

from __future__ import annotations

import ast
from importlib import metadata, util
from pathlib import Path


def installed_torch_cuda() -> tuple[str, str] | None:
    """(torch's version, the CUDA version it was built for or "") without importing it; None if it is not installed."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
    found = util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        return None
    try:
        source = (Path(found.submodule_search_locations[0]) / "version.py").read_text()
        tree = ast.parse(source)
    except (OSError, SyntaxError):
        return version, ""
    for node in tree.body:  # `cuda: Optional[str] = '12.8'`, or None
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else (node.targets[0] if isinstance(node, ast.Assign) else None)
        )
        if isinstance(target, ast.Name) and target.id == "cuda":
            value = node.value if isinstance(node, ast.AnnAssign | ast.Assign) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                return version, value.value
    return version, ""


def why_no_gpu() -> str:
    """Why scripts that use this interpreter's torch can use no GPU; empty if they can, or there is no torch."""
    version, cuda = installed_torch_cuda() or ("", "")
    if cuda or not version:
        return ""
    return f"torch {version} is built for CPUs only"
