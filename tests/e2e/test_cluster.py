"""The command line on a cluster, whose nodes are processes of this machine."""

from __future__ import annotations

import psutil

from tests.e2e.sandbox import Sandbox


def test_more_atoms_than_the_largest_node_has_are_refused_and_the_nodes_let_go(
    sandbox: Sandbox,
) -> None:
    """Their processes used to wait for a quarter of an hour, and kept what was reserved."""
    (disk := sandbox.root / "tmp").mkdir()
    recipe = sandbox.recipe("good.py", devices="auto", max_atoms=3)
    refused = sandbox.gpusched("run", recipe, "--cluster", "local:2x2", TMPDIR=str(disk))
    assert refused.code == 2
    assert refused.err == (
        "gpusched: max_atoms: 3 atoms for one trial; a trial runs on one node, and the largest has 2: ask for fewer\n"
    )
    (homes,) = disk.glob("gpusched-*")
    assert not [*homes.iterdir()]
    folder = str(sandbox.experiment)
    assert not [
        p.pid for p in psutil.process_iter(["cmdline"]) if folder in (p.info["cmdline"] or [])
    ]
