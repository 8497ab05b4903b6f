"""The best model so far: its metric, its configuration, and where its checkpoint lies."""

from __future__ import annotations

import argparse
import json
import zlib
from typing import Any

from gpusched.cli import common
from gpusched.errors import DamagedState, NoTrialSucceeded
from gpusched.paths import ExperimentPaths
from gpusched.trees.outcome import is_sound


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    common.add_experiment(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    paths = common.experiment(args)
    best = read(paths)
    if args.json:
        common.print_json(best)
        return 0
    print(
        f"{best['metric']} {common.number(best['value'])}: trial {best['trial']} at step {best['step']}"
    )
    for key, value in common.flat(best["hparams"]):
        print(f"  {key} = {value}")
    print(f"checkpoint: {best['checkpoint']}")
    return 0


def read(paths: ExperimentPaths) -> dict[str, Any]:
    """The best model, from ``best/`` (which always has its checkpoint). Raises NoTrialSucceeded if there is none."""
    folder = paths.best.resolve()
    try:
        text = (folder / "metric.json").read_bytes().strip()
        metric, drawn = json.loads(text), (folder / "hparams.json").read_bytes()
        crc = zlib.crc32(drawn)
        if not is_sound(text) or crc != metric.get("hparams_crc32", crc):
            raise ValueError("it is not as it was written")
        hparams = json.loads(drawn)
    except FileNotFoundError:
        raise NoTrialSucceeded(
            f"{paths.root.name}: no trial has saved a model yet; 'gpusched status' shows how they do"
        ) from None
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise DamagedState(
            f"{folder}: the best model's description cannot be read ({error})"
        ) from None
    return {
        "experiment": paths.root.name,
        "trial": metric["trial"],
        "metric": metric["metric"],
        "value": metric["value"],
        "step": metric["step"],
        "atoms": metric.get("atoms"),
        "hparams": hparams.get("hparams", {}),
        "checkpoint": str(folder / "checkpoint"),
    }
