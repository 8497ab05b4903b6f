"""Check this machine: what stands in the way of a search, or will, and what to do about each. Changes nothing.

Exit code 0 if a search can run, 4 if something must be mended first.
"""

from __future__ import annotations

import argparse

from gpusched.cli import common
from gpusched.errors import DeviceError
from gpusched.folder import find

SIGNS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_dir(parser)
    common.add_json(parser, "print one JSON object a line")


def run(args: argparse.Namespace) -> int:
    from gpusched.doctor.machine import doctor_checks

    folder = find.runs_folder(args.dir).absolute()
    while not folder.exists():
        folder = folder.parent
    checks = doctor_checks(folder)
    for check in checks:
        if args.json:
            common.print_json(check.to_json())
            continue
        said = f"{check.name}: {check.detail}"
        print(common.paragraph(said, f"{SIGNS[check.state]}  ", " " * 6))
        if check.advice:
            print(common.paragraph(check.advice, " " * 8, " " * 8))
    failed = sum(check.state == "fail" for check in checks)
    return DeviceError.exit_code if failed else 0
