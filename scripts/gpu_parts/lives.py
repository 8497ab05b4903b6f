"""Times of launches, ends and resizes: one trial at a time on one device."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gpu_parts.box import Box, Failed, spread
from gpusched.core.commands import Kill

__all__ = ["Failed", "endings", "groups", "resizes", "starts"]

ENDINGS = ("yield", "term", "kill", "hang")
HANG_GRACE_S = 0.5
TERM_GRACE_S = 5.0


def endings(*, device: str, rounds: int, until_s: float) -> Iterator[dict[str, Any]]:
    """End a trial in each way, ``rounds`` times: seconds until its processes are gone, and until its device is free.

    The ways take turns, so that all have as many rounds when time runs out (``until_s``, on the monotonic clock).
    """
    exits: dict[str, list[float]] = {how: [] for how in ENDINGS}
    releases: dict[str, list[float]] = {how: [] for how in ENDINGS}
    outcomes: dict[str, set[str]] = {how: set() for how in ENDINGS}
    with Box(device=device, hparams={"fill": 0.7}) as box:
        for _ in range(rounds):
            if time.monotonic() > until_s:
                break
            for how in ENDINGS:
                outcome, exit_s = end_once(box, how)
                exits[how].append(exit_s)
                releases[how].append(box.release())
                outcomes[how].add(outcome)
    late = "the parts before took all of --seconds"
    for how in ENDINGS:
        yield {
            "part": "endings",
            "how": how,
            "rounds_wanted": rounds,
            "grace_s": {"hang": HANG_GRACE_S, "term": TERM_GRACE_S}.get(how, 0.0),
            "outcomes": sorted(outcomes[how]),
            "processes_gone_s": spread(exits[how], late),
            "then_device_free_s": spread(releases[how]),
            "all_processes_gone_s": [round(value, 4) for value in exits[how]],
            "all_then_device_free_s": [round(value, 4) for value in releases[how]],
        }


def end_once(box: Box, how: str) -> tuple[str, float]:
    """Start a trial and end it this way; the outcome, and seconds until nothing of it is left."""
    trial = box.launch(scenario="hang" if how == "hang" else "train")
    report = box.first_report(trial, answer=how != "yield")
    pid = box.note(trial, "hangs" if how == "hang" else "started")["pid"]
    began_s = time.monotonic()
    if how == "yield":
        return box.leave(trial, report, save=True)[0].outcome, time.monotonic() - began_s
    if how == "kill":
        os.kill(pid, signal.SIGKILL)
    else:
        box.executor.execute(Kill(trial, 1, HANG_GRACE_S if how == "hang" else TERM_GRACE_S))
    return _exit(box, trial), time.monotonic() - began_s


def _exit(box: Box, trial: int) -> str:
    return box.exit(trial).outcome


def starts(*, device: str, rounds: int) -> Iterator[dict[str, Any]]:
    """From the launch to the script, the device's context, the process group and the first step, warm and cold."""
    for launch in ("warm", "cold"):
        with Box(device=device, launch=launch, hparams={}) as box:
            found = start_again_and_again(box, rounds)
        # The first launch of a warm server waits for the server.
        later = {name: spread(values[1:] or values) for name, values in found.items()}
        first = found["launch_to_first_report_s"][0]
        yield {"part": "starts", "launch": launch, "first_round_s": round(first, 4), **later}


def groups(*, devices: Sequence[str], rounds: int) -> Iterator[dict[str, Any]]:
    """The same, warm, of trials with 2, 4, .. ranks: as many as there are devices; said where there is one."""
    sizes = [2**power for power in range(1, 8) if 2**power <= len(devices)]
    if not sizes:
        yield {
            "part": "groups",
            "message": "not measured: a group takes two devices, and one is free",
        }
        return
    on_cpu = devices[0].startswith("cpu:")
    named = f"cpu:{len(devices)}" if on_cpu else ",".join(devices)
    with Box(device=named, hparams={}) as box:
        everything = box.devices
        box.devices = everything[:1]
        start_again_and_again(box, 1)  # waits for the server
        for size in sizes:
            box.devices = everything[:size]
            found = start_again_and_again(box, rounds)
            spreads = {name: spread(values) for name, values in found.items()}
            yield {"part": "groups", "ranks": size, **spreads}


def start_again_and_again(box: Box, rounds: int) -> dict[str, list[float]]:
    """Seconds of each stage of rank 0, and of the whole, by round."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        began_s = time.monotonic()
        trial = box.launch()
        report = box.first_report(trial, answer=False)
        reported_s = time.monotonic()
        marks = box.note(trial, "started")
        box.leave(trial, report, save=False)
        box.release()
        before = began_s
        for name in ("first", "imported", "context", "group", "step"):
            found.setdefault(f"{name}_s", []).append(marks[name] - before)
            before = marks[name]
        found.setdefault("launch_to_first_report_s", []).append(reported_s - began_s)
    return found


def resizes(*, device: str, rounds: int, rows: int) -> Iterator[dict[str, Any]]:
    """Yield with a checkpoint, confirm the release, relaunch and restore: what HyperSched calls To, on one rank."""
    found: dict[str, list[float]] = {}
    with Box(device=device, hparams={"rows": rows}) as box:
        for _ in range(rounds):
            trial = box.launch()
            report = box.first_report(trial, answer=False)
            began_s = time.monotonic()
            ending, save_s = box.leave(trial, report, save=True)
            exited_s = time.monotonic()
            release_s = box.release()
            released_s = time.monotonic()
            box.relaunch(trial, 2)
            again = box.first_report(trial, 2, answer=False)
            whole_s = time.monotonic() - began_s - again.report.step_time_s
            if again.step != (ending.saved_step or 0) + 1:
                raise Failed(f"restored at step {again.step}, saved {ending.saved_step}")
            for name, value in (
                ("save_s", save_s),
                ("exit_s", exited_s - began_s - save_s),
                ("release_s", release_s),
                ("start_and_restore_s", whole_s - (released_s - began_s)),
                ("whole_s", whole_s),
            ):
                found.setdefault(name, []).append(value)
            box.leave(trial, again, save=False)
            box.release()
    size_mb = round(rows * 4096 / 1e6)
    yield {"part": "resize", "state_mb": size_mb, **{n: spread(v) for n, v in found.items()}}
