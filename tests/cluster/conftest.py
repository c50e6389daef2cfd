"""A cluster of three nodes on this machine, which lasts as long as the tests of this folder."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from ggplug.backend import Device

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
NODES = ("a", "b", "c")
STORE = 200 << 20
"""Bytes of each node's object store."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's own code
        import ray
        from ray.cluster_utils import Cluster

        options = {"num_cpus": 1, "object_store_memory": STORE}
        head = {**options, "include_dashboard": False, "node_name": NODES[0]}
        made = Cluster(initialize_head=True, head_node_args=head)
        try:
            for name in NODES[1:]:
                made.add_node(**options, node_name=name)
            ray.init(address=made.address, log_to_driver=False, logging_level="error")
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


@pytest.fixture(scope="session")
def devices(cluster: Any) -> dict[str, Device]:
    """The devices of the nodes, by name."""
    import ggplug_ray

    return {device.name: device for device in ggplug_ray.connect(cluster.address)}
