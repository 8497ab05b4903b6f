"""``doctor --cluster``: what the nodes said of themselves, judged."""

from __future__ import annotations

from typing import Any

import pytest

from gpusched import __version__
from gpusched.cli.cluster import cluster_checks, nodes_table
from gpusched.executors.cluster.ray import NodeLook

GPU = {"index": "0", "uuid": "GPU-0", "name": "Scripted GPU"}
GOOD: dict[str, Any] = {
    "address": "192.0.2.1",
    "ray_gpus": 1,
    "cpus": 8,
    "ray": "2.60.0",
    "python": "3.11.7",
    "gpusched": __version__,
    "gpus": (GPU,),
}


def judged(**changes: Any) -> list[tuple[str, str]]:
    """Judge a good node and one with these changes; return state and text of the second's findings."""
    looks = [NodeLook(name="a", **GOOD), NodeLook(name="b", **{**GOOD, **changes})]
    token, first, *findings = cluster_checks(True, looks)
    assert (token.state, first.name, first.state) == ("ok", "a", "ok")
    assert all(check.name == "b" for check in findings)
    return [(check.state, f"{check.detail} | {check.advice}") for check in findings]


@pytest.mark.parametrize(
    ("changes", "state", "said"),
    [
        ({"ray": "", "trouble": "timed out"}, "fail", "did not answer: timed out"),
        ({"gpusched": "", "trouble": "No module"}, "fail", "No module | install gpusched under"),
        ({"gpusched": "0.0.1"}, "fail", "gpusched 0.0.1 is installed there"),
        (
            {"shared": "/runs: Permission denied"},
            "fail",
            "not shared with this node: Permission denied",
        ),
        ({"ray_gpus": 0, "gpus": ()}, "warn", "this node has no GPU, other nodes have"),
        ({"ray_gpus": 3}, "fail", "Ray counts 3 GPUs there, the driver 1 | see `nvidia-smi`"),
    ],
)
def test_a_finding_of_a_node_says_what_to_do(
    changes: dict[str, Any], state: str, said: str
) -> None:
    ((found, text),) = judged(**changes)
    assert found == state
    assert said in text


def test_a_cluster_of_nodes_without_gpus_and_without_a_token() -> None:
    look = NodeLook(name="a", **{**GOOD, "ray_gpus": 0, "gpus": ()})
    token, node = cluster_checks(False, [look])
    assert token.state == "fail"
    assert "RAY_AUTH_MODE=token" in token.advice
    assert node.state == "ok"


def test_the_table_has_a_line_a_node() -> None:
    head, line = nodes_table([NodeLook(name="a", **GOOD)]).splitlines()
    assert head.split()[:3] == ["node", "address", "devices"]
    assert line.split("  ")[0] == "a"
    assert "1 x Scripted GPU" in line
    assert line.endswith("yes")
