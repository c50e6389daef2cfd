"""A Ray cluster of three nodes on this machine, and the processes of devices in it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")
PATIENCE = 600
"""Seconds for nodes to list their devices: processes of Ray start slowly on a busy machine."""
NODES = ("a", "b", "c")
OPTIONS = {"num_cpus": 1, "object_store_memory": 200 << 20}
"""Of each node."""


@contextmanager
def three_nodes() -> Iterator[Any]:
    """A cluster of three nodes, which this process has joined, until the end of the block."""
    patience = {"GGPLUG_LOAD_TIMEOUT": os.environ.get("GGPLUG_LOAD_TIMEOUT", str(PATIENCE))}
    with warnings.catch_warnings(), patch.dict(os.environ, patience):
        warnings.simplefilter("ignore")  # of Ray's own code
        import ray
        from ray.cluster_utils import Cluster

        head = {**OPTIONS, "include_dashboard": False, "node_name": NODES[0]}
        made = Cluster(initialize_head=True, head_node_args=head)
        try:
            for name in NODES[1:]:
                add_node(made, name)
            ray.init(address=made.address, log_to_driver=False, logging_level="error")
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


def add_node(cluster: Any, name: str, tries: int = 3) -> Any:
    """Adds a node to a cluster, which Ray gives half a minute to start; a busy machine may need more."""
    try:
        return cluster.add_node(**OPTIONS, node_name=name)
    except Exception:
        if tries == 1:
            raise
    return add_node(cluster, name, tries - 1)


def processes_of(cluster: Any, kind: str) -> list[int]:
    """The numbers of the processes of a class on all nodes of a cluster: DeviceHost, ActorHost."""
    raylets = {each.process.pid for node in cluster.list_all_nodes() for each in node.all_processes.get("raylet", ())}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, status = (folder / "cmdline").read_bytes(), (folder / "stat").read_text(encoding="utf-8")
        except OSError:
            continue  # it has ended
        if name.startswith(f"ray::{kind}".encode()) and int(status.rpartition(")")[2].split()[1]) in raylets:
            found.append(int(folder.name))
    return sorted(found)
