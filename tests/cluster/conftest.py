"""A cluster of three nodes on this machine, which lasts as long as the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from nodes import PATIENCE, three_nodes

from ggplug.backend import Device


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray")
    with three_nodes() as made:
        yield made


@pytest.fixture(scope="session")
def devices(cluster: Any) -> dict[str, Device]:
    """The devices of the nodes, by name."""
    import ggplug_ray

    return {device.name: device for device in ggplug_ray.connect(cluster.address, within=PATIENCE)}
