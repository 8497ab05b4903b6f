"""From "the tree is empty" to "the device is free": asks the devices until they say so, or gives up.

Asked at once, then after 0.02 s and ever more slowly, up to once a second. After ``limit_s`` a device is quarantined
with what holds it. (The driver frees memory some time after a process is gone: ``reliability.md``, F19.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpusched.devices.base import Release
from gpusched.executors.base import FOREVER

_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _GROWTH = 0.02, 1.0, 1.5

Ask = Callable[[Sequence[str]], Sequence[Release]]


class Holder(Protocol):
    """Processes of ours that even SIGKILL has not ended yet."""

    def round(self) -> int:
        """Kill again; how many are left."""
        ...

    def describe(self) -> str: ...


@dataclass(slots=True)
class _Wait:
    since: float
    next_at: float
    pause_s: float = _FIRST_PAUSE_S


class Draining:
    """``ask`` is ``Devices.released``; times are of the caller's clock."""

    def __init__(self, ask: Ask, limit_s: float) -> None:
        self._ask = ask
        self._limit_s = limit_s
        self._waits: dict[str, _Wait] = {}
        self._holders: dict[str, Holder] = {}

    def hold(self, devices: Sequence[str], holder: Holder) -> None:
        """These are not released, whatever the devices say, while ``holder`` has processes left."""
        self._holders.update(dict.fromkeys(devices, holder))

    @property
    def next_at(self) -> float:
        """When ``step`` has something to do."""
        if not self._waits:
            return FOREVER
        return min(wait.next_at for wait in self._waits.values())

    def add(self, devices: Sequence[str], now: float) -> None:
        """Begin to wait for these; those waited for already go on as they were."""
        for device in devices:
            self._waits.setdefault(device, _Wait(now, now))

    def forget(self, device: str) -> None:
        """It was quarantined, or is in use again: whatever it does from now on is no release any more."""
        self._waits.pop(device, None)

    def step(self, now: float) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Which were released, and which are given up with what reason."""
        due = [device for device, wait in self._waits.items() if wait.next_at <= now]
        released: list[str] = []
        given_up: list[tuple[str, str]] = []
        for answer in map(self._unless_held, self._ask(due) if due else ()):
            wait = self._waits[answer.device]
            waited_s = now - wait.since
            if answer.released:
                released.append(answer.device)
            elif now >= wait.since + self._limit_s:  # not the difference: it may round to less
                why = f"not released after {waited_s:.0f} s: {_in_words(answer.holder)}"
                given_up.append((answer.device, why))
            else:
                wait.next_at = min(now + wait.pause_s, wait.since + self._limit_s)
                wait.pause_s = min(_LONGEST_PAUSE_S, wait.pause_s * _GROWTH)
                continue
            del self._waits[answer.device]
        return tuple(released), tuple(given_up)

    def _unless_held(self, answer: Release) -> Release:
        holder = self._holders.get(answer.device)
        if holder is None:
            return answer
        if holder.round():
            return Release(answer.device, released=False, holder=f"held by {holder.describe()}")
        del self._holders[answer.device]
        return answer


def _in_words(holder: str) -> str:
    """What is in the way: devices say it in a sentence, or name who it is."""
    if holder.startswith("pid "):
        return f"held by {holder}"
    return holder or "it is not said by what it is held"
