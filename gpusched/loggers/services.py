"""Loggers that hand runs to MLflow, Weights & Biases or Trackio; a run is found again by its name."""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpusched.loggers.base import Logger, Point, Search, nothing
from gpusched.text import flat

#: MLflow takes no more metrics, or parameters, in one call.
_METRICS_MAX, _PARAMS_MAX = 1000, 100
_MLFLOW_STATUS = {"completed": "FINISHED", "failed": "FAILED"}


class Mlflow(Logger):
    """Runs of an MLflow experiment that is called as the recipe. ``uri``: a server or ``sqlite:///FILE``."""

    def __init__(self, search: Search, *, uri: str = "", experiment: str = "") -> None:
        from mlflow.tracking import MlflowClient

        super().__init__(search)
        uri = uri or f"sqlite:///{search.folder / 'mlflow.db'}"
        _make_whole(uri)
        self._client = MlflowClient(uri)
        name = experiment or search.name
        known = self._client.get_experiment_by_name(name)
        self._experiment = known.experiment_id if known else self._client.create_experiment(name)
        self._runs: dict[int, str] = {}

    def begin(self, trial: int, hparams: Mapping[str, object]) -> Callable[[str], int]:
        from mlflow.entities import Param

        client, name = self._client, self.search.run_name(trial)
        found = client.search_runs([self._experiment], f"tags.`gpusched.run` = '{name}'")
        if found:
            run = self._runs[trial] = found[0].info.run_id
            client.set_terminated(run, "RUNNING")
            keys = found[0].data.metrics
            has = {key: max(m.step for m in client.get_metric_history(run, key)) for key in keys}
            return lambda name: has.get(_mlflow_name(name), -1)
        made = client.create_run(
            self._experiment,
            start_time=int(self.search.began_s * 1000),
            run_name=name,
            tags={"gpusched.run": name, "gpusched.folder": str(self.search.folder)},
        )
        run = self._runs[trial] = made.info.run_id
        params = [Param(_mlflow_name(key), str(value)) for key, value in flat(hparams)]
        for first in range(0, len(params), _PARAMS_MAX):
            client.log_batch(run, params=params[first : first + _PARAMS_MAX])
        return nothing

    def write(self, trial: int, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(_mlflow_name(name), value, int(point.at_s * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for first in range(0, len(metrics), _METRICS_MAX):
            self._client.log_batch(self._runs[trial], metrics[first : first + _METRICS_MAX])

    def end(self, trial: int, state: str, score: float | None) -> None:
        run = self._runs[trial]
        self._client.set_tag(run, "gpusched.state", state)
        if score is not None:
            self._client.set_tag(run, "gpusched.best", str(score))
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

    def begin(self, trial: int, hparams: Mapping[str, object]) -> Callable[[str], int]:
        import wandb

        name = self.search.run_name(trial)
        identity = f"{zlib.crc32(str(self.search.folder).encode()):08x}-{trial}"
        is_offline = self._about["mode"] == "offline"
        if is_offline:  # a run on the disk cannot be gone on with: it is written again
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
        last = run.step - 1 if run.resumed else -1
        return lambda name: last

    def write(self, trial: int, points: Sequence[Point]) -> None:
        for point in points:
            self._runs[trial].log({**point.values, "_timestamp": point.at_s}, step=point.step)

    def end(self, trial: int, state: str, score: float | None) -> None:
        run = self._runs[trial]
        run.summary.update({"gpusched.state": state, "gpusched.best": score})
        run.finish(exit_code=1 if state == "failed" else 0)

    def close(self) -> None:
        for run in self._runs.values():
            run.finish()


class Trackio(Logger):
    """Runs of a Trackio project that is called as the recipe, on this machine alone.

    Written by Trackio's store, as its own importers do: the client's thread drops what it had not written when killed.
    """

    def __init__(self, search: Search, *, project: str = "", dir: str = "") -> None:
        super().__init__(search)
        root = Path(dir).expanduser() if dir else search.folder / "trackio"
        root.mkdir(parents=True, exist_ok=True)
        os.environ["TRACKIO_DIR"] = str(root)  # read when Trackio is imported
        from trackio.sqlite_storage import SQLiteStorage

        self._store, self._project = SQLiteStorage, project or search.name
        self._hparams: dict[int, Mapping[str, object]] = {}

    def begin(self, trial: int, hparams: Mapping[str, object]) -> Callable[[str], int]:
        self._hparams[trial] = hparams
        last = self._store.get_last_step(self._project, self.search.run_name(trial))
        return lambda name: -1 if last is None else last

    def write(self, trial: int, points: Sequence[Point], **about: object) -> None:
        """Add points, whose identity lets none be there twice, and replace what is told about the run."""
        name = self.search.run_name(trial)
        self._store.bulk_log(
            self._project,
            name,
            metrics_list=[dict(point.values) for point in points],
            steps=[point.step for point in points],
            timestamps=[datetime.fromtimestamp(point.at_s, UTC).isoformat() for point in points],
            log_ids=[f"{name}/{point.step}" for point in points],
            config={**self._hparams[trial], **about, "_Group": self.search.folder.name},
        )

    def end(self, trial: int, state: str, score: float | None) -> None:
        last = self._store.get_last_step(self._project, self.search.run_name(trial))
        if last is not None:  # this point is there; the state is new
            about = {"gpusched.state": state, "gpusched.best": score}
            self.write(trial, [Point(last, self.search.began_s, {})], **about)
