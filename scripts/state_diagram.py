"""Write docs/states.md: the states of a trial and every transition, from the table in ``gpusched/core/trial.py``.

    python scripts/state_diagram.py [--check]

``--check`` writes nothing and fails if the page is out of date. What causes a transition is written down here; a
transition without a cause, or a cause without its transition, is an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from gpusched.core.trial import TRANSITIONS, TrialState

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"
S = TrialState

MEANINGS: Mapping[TrialState, str] = {
    S.PENDING: "drawn, not launched",
    S.STARTING: "launched and not up yet; or it waits until its devices are confirmed to be free",
    S.RUNNING: "its ranks train and report",
    S.YIELDING: "told to leave (`after` says what for), or killed before it was up",
    S.PAUSED: "no processes; goes on from its checkpoint when somebody decides so",
    S.COMPLETED: "has had all its steps, or its script came to its own end",
    S.STOPPED: "given up by the policy, by a person, or by the end of the experiment",
    S.FAILED: "its script failed, or it was lost too often without progress",
}

CAUSES: Mapping[tuple[TrialState, TrialState], str] = {
    (S.PENDING, S.STARTING): "first launch",
    (S.STARTING, S.STARTING): "lost before it was up",
    (S.STARTING, S.RUNNING): "up, or first report",
    (S.STARTING, S.YIELDING): "killed while starting",
    (S.STARTING, S.PAUSED): "paused while it waits, or no device is left",
    (S.STARTING, S.COMPLETED): "its script ended after a resume",
    (S.STARTING, S.STOPPED): "stopped while it waits",
    (S.STARTING, S.FAILED): "failed before it was up",
    (S.RUNNING, S.YIELDING): "resize, pause, stop or complete is decided",
    (S.RUNNING, S.STARTING): "lost, or left without being asked; goes on from its checkpoint",
    (S.RUNNING, S.COMPLETED): "its script ended",
    (S.RUNNING, S.FAILED): "failed",
    (S.YIELDING, S.STARTING): "resize",
    (S.YIELDING, S.PAUSED): "pause",
    (S.YIELDING, S.COMPLETED): "complete, or its script ended",
    (S.YIELDING, S.STOPPED): "stop",
    (S.YIELDING, S.FAILED): "failed while it left",
    (S.PAUSED, S.STARTING): "resumed",
    (S.PAUSED, S.STOPPED): "stopped, or the experiment ends",
    (S.PAUSED, S.COMPLETED): "complete",
    (S.STOPPED, S.PAUSED): "the search goes on after its end, which alone had stopped it",
    (S.COMPLETED, S.PAUSED): "the search goes on to a higher target than the one it had reached",
}


def page() -> str:
    """The page as it should be. Raises ValueError where causes and table disagree."""
    edges = {(origin, to) for origin, ways in TRANSITIONS.items() for to in ways}
    if edges != set(CAUSES):
        wrong = sorted(f"{a.value} -> {b.value}" for a, b in edges ^ set(CAUSES))
        raise ValueError(f"say in CAUSES, and only there, what causes {', '.join(wrong)}")
    lines = [
        "# The states of a trial",
        "",
        "Generated from the transition table in `gpusched/core/trial.py` by `scripts/state_diagram.py`. Anything not",
        "in it raises, with the trial's story.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> pending",
        *(
            f"    {origin.value} --> {to.value}: {CAUSES[origin, to]}"
            for origin in S
            for to in S
            if (origin, to) in edges
        ),
        *(f"    {state.value} --> [*]" for state in S if state.is_final),
        "```",
        "",
        "| state | what it means | processes | devices |",
        "| --- | --- | --- | --- |",
        *(f"| {state.value} | {MEANINGS[state]} | {_processes(state)} |" for state in S),
        "",
    ]
    return "\n".join(lines)


def _processes(state: TrialState) -> str:
    if state is S.STARTING:
        return "unless it waits | held, or draining for it"
    return "yes | held" if state.is_live else "no | none"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date")
    args = parser.parse_args()
    text = page()
    if not args.check:
        PAGE.write_text(text)
        return 0
    if not PAGE.exists() or PAGE.read_text() != text:
        print(f"{PAGE} is out of date: run python scripts/state_diagram.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
