"""Show the GPUs of this machine, their state, and who holds them; close one for a reset, use a quarantined one again.

Below a GPU that cannot be used stands the reason: a foreign process (pid and user; never touched), a lease of another
experiment, or a fault.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

from gpusched.cli import common
from gpusched.daemon import session
from gpusched.errors import GpuschedError
from gpusched.folder.paths import ExperimentPaths
from gpusched.text import show_memory


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--readmit",
        metavar="DEVICE",
        help="use this quarantined device of EXP again, if the device is clean",
    )
    parser.add_argument(
        "--let-go",
        metavar="DEVICE",
        help="close this device of EXP for the driver, so that `nvidia-smi --gpu-reset` finds it free",
    )
    common.add_experiment(parser, option=True)
    common.add_json(parser, "print one JSON object a line")


def run(args: argparse.Namespace) -> int:
    for verb, device in (("let_go", args.let_go), ("readmit", args.readmit)):
        if device is not None:
            answer = session.ask(common.experiment(args), verb, device=device)
            return common.tell(args, {"device": device, "answer": answer}, answer)
    from gpusched.devices.gpus import gpu_states

    states, notes = gpu_states()
    rows = [state.to_json() for state in states]
    known = _standings({row["experiment"] for row in rows})
    for row in rows:
        row["standing"] = _standing(row["uuid"], known.get(row["experiment"], []))
    if args.json:
        for row in rows:
            common.print_json(row)
        return 0
    head = ("gpu", "name", "use", "memory", "temp", "power", "state")
    lines = common.table(head, map(_row, rows), ("gpu", "use", "memory", "temp", "power"))
    first, *others = lines.splitlines()
    print(first)
    for line, row in zip(others, rows, strict=True):
        print(line)
        for detail in _details(row):
            print(common.paragraph(detail, " " * 5, " " * 7))
    for note in notes:
        common.note(note)
    return 0


def _standings(folders: set[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the devices of each experiment that has a lease, as its daemon sees them."""
    found = {}
    for folder in filter(None, folders):
        paths = ExperimentPaths(Path(folder))
        with contextlib.suppress(GpuschedError, OSError):
            if paths.is_experiment:
                found[folder] = session.view(paths)["devices"]
    return found


def _standing(uuid: str, devices: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return state, trial, reason and load of the last minute; a GPU may be one of several in a device."""
    for device in devices:
        if uuid in device["id"].split("+"):
            return {key: device.get(key) for key in ("state", "trial", "reason", "history")}
    return None


def _state(row: dict[str, Any]) -> str:
    standing = row["standing"]
    if standing is None:
        return "busy" if row["busy"] or row["leased_by"] else "free"
    trial = f" (trial {standing['trial']})" if standing["trial"] is not None else ""
    return f"{'busy' if _is_strangers(row) else standing['state']}{trial}"


def _reason(row: dict[str, Any]) -> str:
    """Return why the experiment does not use the GPU, without the GPU's name once more."""
    said: str = (row["standing"] or {}).get("reason") or ""
    return said.removeprefix(f"GPU {row['place']}: ")


def _is_strangers(row: dict[str, Any]) -> bool:
    """Tell whether the GPU is out of use because somebody is on it, rather than for a fault."""
    return _reason(row).startswith(("held by ", "leased by "))


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    use, temp, power = row["utilisation"], row["temperature_c"], row["power_w"]
    used = row["memory_used_bytes"]
    return (
        row["place"],
        row["name"],
        "-" if use is None else f"{100 * use:.0f}%",
        "-" if used is None else show_memory(used, row["memory_total_bytes"]),
        "-" if temp is None else f"{temp:.0f} C",
        "-" if power is None else f"{power:.0f} W",
        _state(row),
    )


def _details(row: dict[str, Any]) -> list[str]:
    """List who has the GPU and what is wrong with it, each thing once."""
    told = [f"leased by {row['leased_by']}"] if row["leased_by"] else []
    told += [reason] if (reason := _reason(row)) else []
    for text in (row["busy"], *(f"held by {holder}" for holder in row["holders"]), *row["notes"]):
        known = text.removeprefix("held by ")
        if text and not any(known in detail for detail in told):
            told.append(text)
    return told
