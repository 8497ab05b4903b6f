"""Loggers that write files: TensorBoard's event files, and one table. What is on the disk says what they have."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpusched.loggers.base import Logger, Point, Search
from gpusched.text import flat

COLUMNS = ("trial", "step", "at_s", "name", "value")


class TensorBoard(Logger):
    """A folder a trial for ``tensorboard --logdir``, by default ``tensorboard/`` in the experiment's folder."""

    def __init__(self, search: Search, *, dir: str = "") -> None:
        super().__init__(search)
        self._root = (
            Path(dir).expanduser() / search.folder.name if dir else search.folder / "tensorboard"
        )
        self._writers: dict[int, Any] = {}

    def begin(self, trial: int, hparams: Mapping[str, object]) -> Callable[[str], int]:
        from tensorboard.plugins.hparams.plugin_data_pb2 import SessionStartInfo
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = self._root / f"{trial:04d}"
        has = _steps_on_disk(folder) if folder.is_dir() else {}
        self._writers[trial] = EventFileWriter(str(folder), flush_secs=3600)
        if not has:
            begun = SessionStartInfo(start_time_secs=self.search.began_s)
            for name, value in flat(hparams):
                if isinstance(value, int | float):  # True and False are numbers to Python
                    begun.hparams[name].number_value = value
                else:
                    begun.hparams[name].string_value = str(value)
            self._add(trial, _session("start", begun), 0, self.search.began_s)
        return lambda name: has.get(name, -1)

    def write(self, trial: int, points: Sequence[Point]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for point in points:
            values = [
                Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()
            ]
            self._add(trial, Summary(value=values), point.step, point.at_s)

    def _add(self, trial: int, summary: Any, step: int, at_s: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writers[trial].add_event(Event(summary=summary, step=step, wall_time=at_s))

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def end(self, trial: int, state: str, score: float | None) -> None:
        from tensorboard.plugins.hparams import api_pb2
        from tensorboard.plugins.hparams.plugin_data_pb2 import SessionEndInfo

        status = api_pb2.STATUS_FAILURE if state == "failed" else api_pb2.STATUS_SUCCESS
        ended = SessionEndInfo(status=status)
        self._add(trial, _session("end", ended), 0, self.search.began_s)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def _session(which: str, info: Any) -> Any:
    """Return the start or the end of a run for the HPARAMS tab; TensorBoard's own function needs TensorFlow."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    about = metadata.create_summary_metadata(HParamsPluginData(**{f"session_{which}_info": info}))
    return Summary(value=[Summary.Value(tag=f"_hparams_/session_{which}_info", metadata=about)])


def _steps_on_disk(folder: Path) -> dict[str, int]:
    """Return the last step of each value; a record that was cut off by a kill does not count."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 1})
    found.Reload()
    return {tag: found.Scalars(tag)[-1].step for tag in found.Tags()["scalars"]}


class Csv(Logger):
    """One table with a line a value, by default ``log.csv`` in the experiment's folder."""

    def __init__(self, search: Search, *, file: str = "") -> None:
        super().__init__(search)
        self._path = Path(file).expanduser() if file else search.folder / "log.csv"
        self._has: dict[int, dict[str, int]] = {}
        whole = _whole_lines(self._path)
        for trial, step, _, name, _ in csv.reader(whole[1:]):
            self._has.setdefault(int(trial), {})[name] = int(step)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("r+" if whole else "w", newline="", encoding="utf-8")
        self._file.seek(0)
        self._file.truncate(sum(len(line.encode()) for line in whole))
        self._file.seek(0, 2)
        self._writer = csv.writer(self._file, lineterminator="\n")
        if not whole:
            self._writer.writerow(COLUMNS)

    def begin(self, trial: int, hparams: Mapping[str, object]) -> Callable[[str], int]:
        has = self._has.get(trial, {})
        return lambda name: has.get(name, -1)

    def write(self, trial: int, points: Sequence[Point]) -> None:
        for point in points:
            for name, value in point.values.items():
                self._writer.writerow((trial, point.step, round(point.at_s, 3), name, value))

    def flush(self) -> None:
        self._file.flush()

    def end(self, trial: int, state: str, score: float | None) -> None:
        pass  # the state of a trial is not a step: `gpusched status --json` has it

    def close(self) -> None:
        self._file.close()


def _whole_lines(path: Path) -> list[str]:
    """Return the lines of a file but for a last one that was cut off by a kill."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [line for line in file if line.endswith("\n")]
