"""What commands print with ``--json``: documented, as schemas, for every command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from gpusched import cli

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "agents.md").read_text()


def rows() -> dict[str, set[str]]:
    """The page's table: the keys that it names, by command."""
    found: dict[str, set[str]] = {}
    for line in PAGE.splitlines():
        commands, _, keys = line.removeprefix("| ").partition(" | ")
        for command in re.findall(r"`([a-z]+)", commands) if line.startswith("| `") else ():
            found.setdefault(command, set()).update(re.findall(r"`([a-z_]+)`", keys))
    return found


def test_help_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == set(cli.COMMANDS)
    assert told["best"]["prints"][0]["$defs"]["BestModel"]["required"][:2] == [
        "experiment",
        "trial",
    ]
    assert all(about["help"] and about["prints"] for about in told.values())


def test_commands_that_look_import_little() -> None:
    """``status`` and ``ls`` answer at once: neither the driver, nor the policies, nor YAML are imported."""
    program = "import sys, gpusched.cli as c; c.command('status'); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    there = set(done.stdout.split())
    assert "gpusched.cli.look" in there
    assert not there & {"gpusched.driver.assemble", "gpusched.policies", "ruamel.yaml", "numpy"}


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_the_page_names_keys_that_are_printed(command: str) -> None:
    kinds = cli.command(command).prints
    assert kinds
    there = {name for kind in kinds for name in typing.get_type_hints(kind)}
    named = rows().get(command, set())
    assert named, f"docs/agents.md has no row for {command}"
    assert named <= there


def test_the_ten_calls_are_commands() -> None:
    block = PAGE.partition("```sh\n")[2].partition("```")[0]
    calls = [line.split() for line in block.splitlines()]
    assert len(calls) == 10
    assert all(call[0] == "gpusched" and call[1] in cli.COMMANDS for call in calls)
    assert all("--json" in call for call in calls)
