"""How an incarnation ended, from what its shim said or left, or from the silence of a shim that died."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpusched.core.events import Outcome
from gpusched.executors.local import oom
from gpusched.executors.local.incarnation import Incarnation
from gpusched.folder.files import read_json
from gpusched.processes import outcome


@dataclass(frozen=True, slots=True)
class Ending:
    """What ``TrialExited`` says. ``barred``: its configuration is not tried again."""

    outcome: Outcome
    step: int | None = None
    saved_step: int | None = None
    error: str | None = None
    barred: bool = False
    unbegun: bool = False


def lost(error: str) -> Ending:
    """The infrastructure's fault, not the trial's."""
    return Ending("lost", error=error)


def how_it_ended(
    it: Incarnation, record: Mapping[str, Any] | None, status: object = None
) -> Ending:
    """From the shim's word, else from ``exit.json``, else from a committed last word; else killed if we asked for it.

    ``status``: the wait status of a shim that is known to have died.
    """
    if record is None:
        record = it.exit_record()
    if record is None:
        word = outcome.last_word(it.paths, it.number)
        if word is not None:
            record = outcome.verdict(word=word, asked_to_stop=False, codes={}, error=None)
    if record is not None:
        error = outcome.error_text(record) or outcome.stuck_text(record)
        return Ending(record["outcome"], record["step"], record["saved_step"], error)
    if it.stop_grace_s is not None:
        return Ending("killed")
    return lost(_last_moments(it, status))


def blame_memory(
    it: Incarnation, ending: Ending, strangers: Callable[[Sequence[str]], Sequence[str]]
) -> Ending:
    """A trial that failed for want of memory says so, with its size. Any other ending as it is.

    The same configuration would fail again, so it is barred; but where strangers were on its GPUs the memory may have
    been theirs: then it is lost, and goes on elsewhere from its checkpoint (reliability F12).
    """
    if ending.outcome != "failed" or not ending.error:
        return ending
    kind = oom.memory_fault(ending.error)
    if kind is None:
        return ending
    company = tuple(strangers(it.devices)) if kind == "gpu" else ()
    hparams = (read_json(it.paths.hparams) or {}).get("hparams")
    message = oom.message(
        kind,
        ending.error,
        atoms=len(it.devices),
        hparams=hparams if isinstance(hparams, dict) else None,
        strangers=company,
    )
    if company:
        return replace(ending, outcome="lost", error=message)
    return replace(ending, error=f"{message}\n{ending.error}", barred=True)


def _last_moments(it: Incarnation, status: object) -> str:
    text = "its shim died"
    if isinstance(status, int):
        code = os.waitstatus_to_exitcode(status)
        text += f" ({outcome.signal_name(-code) if code < 0 else f'exit code {code}'})"
    lines = outcome.tail_of(it.paths.logs(it.number) / "shim.log").splitlines()
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f"{text}: {last.strip()}" if last else text
