"""The page for programs, docs/agents.md."""

from __future__ import annotations

from pathlib import Path

from gpusched import cli

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "agents.md").read_text()


def test_the_ten_calls_are_commands() -> None:
    block = PAGE.partition("```sh\n")[2].partition("```")[0]
    calls = [line.split() for line in block.splitlines()]
    assert len(calls) == 10
    assert all(call[0] == "gpusched" and call[1] in cli.COMMANDS for call in calls)
    assert all("--json" in call for call in calls)
