"""SEER (SoCC'21), section 6: an elastic pool against fixed clusters of the same budget.

The workload is HyperSched's Score(k) with steps of 0.1 minutes, a resize takes ten seconds, and training scales as in
HyperSched's Table 3. A fixed cluster has budget / deadline atoms all the time; SEER, elastic grid search and elastic
Hyperband pay for what they use. As in the paper p_min is 1, p_max 4, eta 4 and t_min a minute. The pool rents single
atoms that are there at once; what is paid for is the time they are used.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpusched.core.rules import Rules
from gpusched.policies.seer import Options as SeerOptions
from gpusched.policies.seer import Seer
from gpusched.sim.physics import Delays
from gpusched.sim.setup import Setup
from gpusched.sim.study import Result
from papers import elastic, study
from papers.study import Study, best

SEEDS = 20
STEP_MIN = 0.1
DELAYS = Delays(launch_s=10.0, resize_s=10.0)
MINUTE_STEPS = {"r": 10, "R": 500, "eta": 4.0}
MODELS = ("resnet18", "resnet50")
#: Of an instance of four V100 an hour, in dollars: p3.8xlarge, on demand, us-east-1.
PRICE = 12.24
#: More than any plan needs.
UNLIMITED = 10**9
KEYS = ("label", "atoms", "deadline", "scaling")
ELASTIC = ("seer", "e_grid", "e_hyperband")


def _paid_s(result: Result) -> float:
    """Atom-seconds to pay for: of an elastic pool those that were used, of a fixed cluster all."""
    used = result.policy in ELASTIC
    return result.device_s if used else result.atoms * result.ended_at_s


MEASURES = {
    "score": best,
    "trials": lambda result: float(result.trials),
    "cost_min": lambda result: _paid_s(result) / 60.0,
    "dollars": lambda result: _paid_s(result) / 3600.0 * PRICE / 4,
}


def _situations(quick: bool) -> list[tuple[int, int]]:
    """(atoms of the fixed cluster, deadline in minutes): figure 4 a, then 4 b."""
    if quick:
        return [(8, 15)]
    return [(16, 15), (16, 30), (16, 60), (8, 30), (32, 30)]


def setups(quick: bool) -> list[Setup]:
    return _setups(quick, MODELS, MINUTE_STEPS)


def setups_endless(quick: bool) -> list[Setup]:
    """Without R, as the networks of the paper call for: a trial gets better as long as it trains."""
    return _setups(quick, MODELS[:1], {**MINUTE_STEPS, "R": None})


def _setups(quick: bool, models: Sequence[str], steps: dict[str, Any]) -> list[Setup]:
    found = []
    for model in models[:1] if quick else models:
        for atoms, minutes in _situations(quick):
            for seed in range(2 if quick else SEEDS):
                common = {
                    "workload": f"synthetic:{60 * STEP_MIN:g}",
                    "deadline_s": 60.0 * minutes,
                    "scaling": model,
                    "delays": DELAYS,
                    "seed": seed,
                }
                found += _policies(atoms, minutes, steps, common)
    return found


def _policies(
    atoms: int, minutes: int, steps: dict[str, Any], common: dict[str, Any]
) -> list[Setup]:
    """The pool is as large as SEER's plan ever needs: it buys atoms when it needs them."""
    budget: dict[str, Any] = {"B": float(atoms * minutes), "eta": 4.0, "t_min": 1.0}
    rules = Rules(deadline_s=60.0 * minutes, max_atoms=4)
    plan, words = Seer(SeerOptions(**budget)).plan_for(rules, UNLIMITED, rules.deadline_s)
    assert plan is not None, words
    peaks = {"seer": plan.peak}
    options = {"B": budget["B"], "p_min": 1, "p_max": 4, "t_min": 1.0, "T": minutes}
    for policy in ("e_grid", "e_hyperband"):
        peaks[policy] = elastic.peak(elastic.Options(**options).plan(policy))
    if steps["R"] is None:
        budget["R"] = options["R"] = None
    one = {"R": None}
    named = {"label": f"{atoms}"}
    ideal = [
        Setup(
            policy=policy,
            options=budget if policy == "seer" else options,
            max_atoms=4,
            atoms=peak,
            **common,
            **named,
        )
        for policy, peak in peaks.items()
    ]
    return [
        *ideal,
        Setup(
            policy="fifo",
            options=one,
            atoms=atoms,
            sizes=(atoms,),
            max_trials=1,
            **common,
            **named,
        ),
        *(
            Setup(policy=policy, options=steps, atoms=atoms, **common, **named)
            for policy in ("asha", "hypersched")
        ),
    ]


NAMES = {"fifo": "random (one trial)", "e_grid": "E-Grid", "e_hyperband": "E-Hyperband"}


def draw(results: Sequence[Result], folder: Path, name: str = "seer") -> list[str]:
    title = "SEER, elastic, against fixed clusters of the same budget (Score(k), Table 3 scaling)"
    found = study.points(results, MEASURES, ("policy", "label", "deadline", "scaling"))
    study.write(folder, name, title, found)
    return _said(found)


def _said(found: Sequence[dict[str, object]]) -> list[str]:
    said = []
    places = dict.fromkeys((p["scaling"], p["label"], p["deadline"]) for p in found)
    for scaling, label, deadline in places:
        here = [
            p
            for p in found
            if (p["scaling"], p["label"], p["deadline"]) == (scaling, label, deadline)
        ]
        here.sort(key=lambda point: -float(str(point["score"])))
        scores = [
            f"{p['policy']} {p['score']:.3f} ± {p['score_half_width']:.3f} ({p['trials']:.0f} trials, "
            f"{p['cost_min']:.0f} min, ${p['dollars']:.0f})"
            for p in here
        ]
        said.append(f"  {scaling} {label} x {float(str(deadline)) / 60:g} min: {', '.join(scores)}")
    return said


STUDIES = [
    Study("seer", setups, draw),
    Study("seer-endless", setups_endless, functools.partial(draw, name="seer-endless")),
]
