"""A Ray cluster on this machine for tests: ``ray.cluster_utils.Cluster`` with a raylet for each argument (CPUs:GPUs).

Prints the address and the processes as one line of JSON; ends with all of them when its input does. A line of input
``add CPUs:GPUs`` adds a node.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ray.cluster_utils import Cluster


def add(cluster: Cluster, size: str) -> dict[str, Any]:
    cpus, gpus = (int(part) for part in size.split(":"))
    node = cluster.add_node(num_cpus=cpus, num_gpus=gpus, include_dashboard=False)
    processes = {
        name: [one.process.pid for one in some] for name, some in node.all_processes.items()
    }
    return {"address": cluster.address, "id": node.node_id, "pids": processes}


def main(sizes: list[str]) -> None:
    cluster = Cluster(shutdown_at_exit=True)
    for size in sizes:
        print(json.dumps(add(cluster, size)), flush=True)
    for line in sys.stdin:
        print(json.dumps(add(cluster, line.split()[1])), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
