"""The tools that runs are handed to: TensorBoard, MLflow, Weights & Biases. Imported in the child alone.

The files on the disk, or the runs found again by their names, say which points a tool has.
"""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpusched.loggers import Logger, Point, Search
from gpusched.text import flat

#: MLflow takes no more metrics in one call.
_METRICS_MAX = 1000
_MLFLOW_STATUS = {"completed": "FINISHED", "failed": "FAILED"}


class TensorBoard(Logger):
    """A folder a trial for ``tensorboard --logdir``, by default ``tensorboard/`` in the experiment's folder."""

    def __init__(self, search: Search, *, dir: str = "") -> None:
        super().__init__(search)
        self._root = (
            Path(dir).expanduser() / search.folder.name if dir else search.folder / "tensorboard"
        )
        self._writers: dict[int, Any] = {}

    def begin(self, trial: int, hparams: Mapping[str, object]) -> int:
        from tensorboard.plugins.hparams.plugin_data_pb2 import SessionStartInfo
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = self._root / f"{trial:04d}"
        last = _step_on_disk(folder) if folder.is_dir() else -1
        self._writers[trial] = EventFileWriter(str(folder), flush_secs=3600)
        if last < 0:
            begun = SessionStartInfo(start_time_secs=self.search.began_s)
            for name, value in flat(hparams):
                if isinstance(value, int | float):  # True and False are numbers to Python
                    begun.hparams[name].number_value = value
                else:
                    begun.hparams[name].string_value = str(value)
            self._add(trial, _session("start", begun), 0, self.search.began_s)
        return last

    def write(self, trial: int, points: Sequence[Point]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for point in points:
            values = [
                Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()
            ]
            self._add(trial, Summary(value=values), point.step, point.at_s)
        self._writers[trial].flush()

    def _add(self, trial: int, summary: Any, step: int, at_s: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writers[trial].add_event(Event(summary=summary, step=step, wall_time=at_s))

    def end(self, trial: int, state: str, best: float | None) -> None:
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


def _step_on_disk(folder: Path) -> int:
    """Return the last step, -1 for none; a record that was cut off by a kill does not count."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 1})
    found.Reload()
    return max((found.Scalars(tag)[-1].step for tag in found.Tags()["scalars"]), default=-1)


class Mlflow(Logger):
    """Runs of an MLflow experiment that is called as the recipe. ``uri``: a server or ``sqlite:///FILE``."""

    def __init__(self, search: Search, *, uri: str = "", experiment: str = "") -> None:
        from mlflow.tracking import MlflowClient

        super().__init__(search)
        own = f"sqlite:///{search.folder / 'mlflow.db'}"
        uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or own
        _make_whole(uri)
        self._client = MlflowClient(uri)
        name = experiment or search.name
        known = self._client.get_experiment_by_name(name)
        self._experiment = known.experiment_id if known else self._client.create_experiment(name)
        self._runs: dict[int, str] = {}

    def begin(self, trial: int, hparams: Mapping[str, object]) -> int:
        from mlflow.entities import Param

        client, name = self._client, self.search.run_name(trial)
        found = client.search_runs([self._experiment], f"tags.`gpusched.run` = '{name}'")
        if found:
            run = self._runs[trial] = found[0].info.run_id
            client.set_terminated(run, "RUNNING")
            keys = found[0].data.metrics
            steps = (m.step for key in keys for m in client.get_metric_history(run, key))
            return max(steps, default=-1)
        made = client.create_run(
            self._experiment,
            start_time=int(self.search.began_s * 1000),
            run_name=name,
            tags={"gpusched.run": name, "gpusched.folder": str(self.search.folder)},
        )
        run = self._runs[trial] = made.info.run_id
        params = [Param(_mlflow_name(key), str(value)) for key, value in flat(hparams)]
        client.log_batch(run, params=params)
        return -1

    def write(self, trial: int, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        # As many steps in a call as it takes, each whole: the last that is there says which come next.
        most = max(1, _METRICS_MAX // max(len(point.values) for point in points))
        for first in range(0, len(points), most):
            metrics = [
                Metric(_mlflow_name(name), value, int(point.at_s * 1000), point.step)
                for point in points[first : first + most]
                for name, value in point.values.items()
            ]
            self._client.log_batch(self._runs[trial], metrics)

    def end(self, trial: int, state: str, best: float | None) -> None:
        run = self._runs[trial]
        self._client.set_tag(run, "gpusched.state", state)
        if best is not None:
            self._client.set_tag(run, "gpusched.best", str(best))
        self._client.set_terminated(run, _MLFLOW_STATUS.get(state, "KILLED"))


def _make_whole(uri: str) -> None:
    """Make the file of a SQLite database whole or not at all: MLflow cannot open one whose making was killed."""
    from mlflow.tracking import MlflowClient

    path = Path(uri.removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///") or "?" in uri or path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.unlink(missing_ok=True)
    MlflowClient(f"sqlite:///{unfinished}").search_experiments()
    unfinished.replace(path)


def _mlflow_name(name: str) -> str:
    return re.sub(r"[^\w\-. /:]", "_", name)


class Wandb(Logger):
    """Runs of a W&B project that is called as the recipe. ``mode``: offline (``wandb sync`` sends them) or online."""

    def __init__(
        self,
        search: Search,
        *,
        project: str = "",
        entity: str | None = None,
        mode: str = "offline",
        dir: str = "",
    ) -> None:
        super().__init__(search)
        self._root = Path(dir).expanduser() if dir else search.folder
        self._about = {"project": project or search.name, "entity": entity, "mode": mode}
        self._runs: dict[int, Any] = {}

    def begin(self, trial: int, hparams: Mapping[str, object]) -> int:
        import wandb

        name = self.search.run_name(trial)
        identity = f"{zlib.crc32(str(self.search.folder).encode()):08x}-{trial}"
        is_offline = self._about["mode"] == "offline"
        if is_offline:  # a run on the disk cannot be continued: the whole run is written again
            for before in (self._root / "wandb").glob(f"offline-run-*-{identity}"):
                shutil.rmtree(before, ignore_errors=True)
        self._root.mkdir(parents=True, exist_ok=True)
        run = self._runs[trial] = wandb.init(
            **self._about,
            id=identity,
            name=name,
            group=self.search.folder.name,
            config=dict(hparams),
            dir=str(self._root),
            reinit="create_new",
            resume=None if is_offline else "allow",
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )
        return run.step - 1 if run.resumed else -1

    def write(self, trial: int, points: Sequence[Point]) -> None:
        for point in points:
            self._runs[trial].log({**point.values, "_timestamp": point.at_s}, step=point.step)

    def end(self, trial: int, state: str, best: float | None) -> None:
        run = self._runs[trial]
        run.summary.update({"gpusched.state": state, "gpusched.best": best})
        run.finish(exit_code=1 if state == "failed" else 0)

    def close(self) -> None:
        for run in self._runs.values():
            run.finish()
