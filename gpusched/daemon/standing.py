"""The standing of a search as people see it: the view that the dashboard draws, and the reasons for a trial's place.

Looking ends no search: what a policy raises when it is asked for people becomes a note.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gpusched.dashboard import model
from gpusched.dashboard import view as views
from gpusched.driver.assemble import Assembled
from gpusched.errors import InputError
from gpusched.policies.base import note_on_steps
from gpusched.text import first_line, no_trial


def view(
    assembled: Assembled, *, daemon_pid: int | None = None, now: float | None = None, **more: Any
) -> dict[str, Any]:
    """Return the standing of the search as JSON; cheap enough for twice a second."""
    state, policy = assembled.experiment.state, assembled.experiment.policy
    try:
        notes = (*policy.notes(state), *note_on_steps(policy.options, state))
    except Exception as error:
        notes = (f"the policy cannot say its notes: {first_line(str(error))}",)
    built = views.build(
        state,
        name=assembled.paths.root.name,
        policy=policy.name,
        metric=assembled.recipe.metric,
        folder=str(assembled.paths.root),
        daemon_pid=daemon_pid,
        now=state.now if now is None else now,
        rungs=[rung.milestone for rung in policy.rungs],
        idle=assembled.experiment.idle,
        notes=notes,
        **more,
    )
    return model.to_json(built)


def explain(assembled: Assembled, trial: int, now: float | None = None) -> dict[str, Any]:
    """Return ``{"data": .., "lines": [..]}``. Raises InputError for an unknown trial."""
    state = assembled.experiment.state
    if trial not in state.trials:
        raise InputError(no_trial(trial, len(state.trials)))
    from gpusched.core.explain import explain as explained

    explanation = explained(state, assembled.experiment.policy, trial, now)
    return {"data": asdict(explanation), "lines": explanation.lines()}
