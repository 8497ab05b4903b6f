"""Commands about the machine: ``doctor`` and ``gpus``."""

from __future__ import annotations

import argparse
from typing import Any

from gpusched.cli import common
from gpusched.errors import DeviceError
from gpusched.folder import find
from gpusched.text import show_memory

SIGNS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


@common.command(common.DIR, lines="check")
def doctor(args: argparse.Namespace) -> int:
    """Check this machine: name each obstacle to a search, now or later, and its remedy. Changes nothing.

    Exit code 0 if a search can run, 4 if something must be mended first.
    """
    from gpusched.doctor.machine import doctor_checks

    has_failed = False
    for check in doctor_checks(find.runs_folder(args.dir).absolute()):
        has_failed |= check.state == "fail"
        if args.json:
            common.print_json(check)
            continue
        said = f"{check.name}: {check.detail}"
        print(common.paragraph(said, f"{SIGNS[check.state]}  ", " " * 6))
        if check.advice:
            print(common.paragraph(check.advice, " " * 8, " " * 8))
    return DeviceError.exit_code if has_failed else 0


# ---------------------------------------------------------------- gpus


@common.command(lines="GPU")
def gpus(args: argparse.Namespace) -> int:
    """Show the GPUs of this machine, their state and their holders.

    Below a GPU that cannot be used stands the reason: a foreign process (pid and user; never touched), a lease of
    another search, or a fault.
    """
    from gpusched.devices.cuda import gpu_states

    states, machine = gpu_states()
    rows = [state.to_json() for state in states]
    for note in machine.notes:
        common.note(note)
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
    return 0


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    use, temp, power = row["utilisation"], row["temperature_c"], row["power_w"]
    used = row["memory_used_bytes"]
    return (
        str(row["index"]),
        row["name"],
        "-" if use is None else f"{100 * use:.0f}%",
        "-" if used is None else show_memory(used, row["memory_total_bytes"]),
        "-" if temp is None else f"{temp:.0f} C",
        "-" if power is None else f"{power:.0f} W",
        "busy" if row["busy"] or row["leased_by"] else "free",
    )


def _details(row: dict[str, Any]) -> list[str]:
    """List who has the GPU and what is wrong with it, each thing once."""
    told = [f"leased by {row['leased_by']}"] if row["leased_by"] else []
    holders = (f"held by {holder}" for holder in row["holders"])
    for text in (row["busy"], *holders, *row["notes"]):
        known = text.removeprefix("held by ")
        if text and not any(known in detail for detail in told):
            told.append(text)
    return told
