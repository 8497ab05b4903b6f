"""The page for programs, docs/agents.md, and what a command imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpusched import cli

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "agents.md").read_text()


def test_commands_that_look_import_little() -> None:
    """``status`` and ``ls`` answer at once: neither the driver, nor the policies, nor YAML are imported."""
    program = "import sys, gpusched.cli as c; c.command('status'); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    there = set(done.stdout.split())
    assert "gpusched.cli.look" in there
    assert not there & {"gpusched.driver.assemble", "gpusched.policies", "ruamel.yaml", "numpy"}


def test_the_ten_calls_are_commands() -> None:
    block = PAGE.partition("```sh\n")[2].partition("```")[0]
    calls = [line.split() for line in block.splitlines()]
    assert len(calls) == 10
    assert all(call[0] == "gpusched" and call[1] in cli.COMMANDS for call in calls)
    assert all("--json" in call for call in calls)
