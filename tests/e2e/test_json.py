"""Every command prints with ``--json``, in real searches, the keys that docs/agents.md names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched import cli
from tests.e2e.sandbox import Sandbox

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "agents.md").read_text()
Printed = dict[str, list[str]]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Printed]:
    """The lines that each command printed in the course of one search that is steered, ended and gone on with."""
    box = Sandbox(tmp_path_factory.mktemp("json"))
    told: Printed = {}

    def call(*words: str | Path, code: int = 0) -> None:
        starts_a_daemon = words[0] in ("run", "resume")
        result = (box.gpusched if starts_a_daemon else box.call)(*words, "--json")
        assert result.code == code or words == ("doctor",), result.text
        told.setdefault(str(words[0]), []).extend(result.out.splitlines())

    recipe = box.recipe("good.py", policy={"name": "fifo", "R": 100_000}, max_trials=2)
    call("validate", recipe)
    call("validate", "missing.yaml", code=2)
    call("run", recipe, "--detach")
    box.wait_for(
        lambda view: len(view["trials"]) == 2 and all(t["step"] > 2 for t in view["trials"])
    )
    call("pause", "0")
    call("try", "x=0.5")
    call("unpause", "0")
    for line in ("status", "ls", "best", "explain 0", "logs 1", "deadline +1m"):
        call(*line.split())
    call("stop", "--trial", "1")
    call("stop")
    call("resume", "--detach")
    box.wait_for(lambda view: view["state"] == "running")
    call("cancel")
    for line in ("export", "export --trials", "report", "gc", "watch"):
        call(*line.split())
    short = box.recipe("counted.py", max_trials=1, policy={"name": "fifo", "R": 2})
    call("run", short, "--dir", "short")
    call("simulate", "--seeds", "1", "--deadline", "5")
    call("doctor")
    yield told
    assert box.processes() == []


#: ``gpus`` prints nothing without a GPU (``tests/doctor/test_machine.py``), ``whatif`` takes seconds (``tests/sim``).
ELSEWHERE = {"gpus", "whatif"}


def named() -> Iterator[tuple[list[str], set[str]]]:
    """Yield each row of the page's table: the commands, and the keys that it names."""
    for line in PAGE.splitlines():
        commands, _, keys = line.removeprefix("| ").partition(" | ")
        if line.startswith("| `"):
            yield re.findall(r"`([a-z]+)", commands), set(re.findall(r"`([a-z_]+)`", keys))


def test_every_command_prints_the_keys_that_the_page_names(printed: Printed) -> None:
    """In one test, so that one process makes the search."""
    assert printed.keys() == cli.COMMANDS.keys() - ELSEWHERE
    for commands, keys in named():
        lines = [line for command in commands for line in printed.get(command, ())]
        found = {key for line in lines for key in json.loads(line)}
        assert keys <= found or not set(commands) - ELSEWHERE, commands


def test_the_ten_calls_are_commands() -> None:
    block = PAGE.partition("```sh\n")[2].partition("```")[0]
    calls = [line.split() for line in block.splitlines()]
    assert len(calls) == 10
    assert all(call[0] == "gpusched" and call[1] in cli.COMMANDS for call in calls)
    assert all("--json" in call for call in calls)
