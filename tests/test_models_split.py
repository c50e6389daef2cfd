"""A model whose weights are spread over two devices gives the same result, and what was explained is what ran."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import ggplug as gg
import ggplug_models
from ggplug.backend import Device
from ggplug.testing import FakeDevice

IDS = [[2, 9, 33, 120, 7, 3], [2, 250, 11, 3]]


def alternate(name: str, devices: Sequence[Device]) -> Device:
    """Even layers on the first device, odd ones and everything outside of layers on the second."""
    layer = name.split(".")[1] if name.startswith("blk.") else "1"
    return devices[int(layer) % 2]


@pytest.mark.parametrize("execution", ["now", "late", "thread"])
def test_layers_alternating_between_a_discrete_device_and_the_cpu_give_the_cpus_result(
    data: Path, execution: str
) -> None:
    cpu = gg.device("CPU")
    with ggplug_models.load(data / "bert.gguf", [cpu]) as whole:
        wanted = whole.embed_ids(IDS)
    fake = FakeDevice(execution=execution, inner=cpu)
    with ggplug_models.load(data / "bert.gguf", [fake, cpu], placement=alternate) as split:
        first = split.embed_ids(IDS)
        again = split.embed_ids(IDS)
    np.testing.assert_allclose(first, wanted, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(first, again)


def test_explained_copies_and_nodes_are_those_that_the_device_counted(data: Path) -> None:
    cpu = gg.device("CPU")
    fake = FakeDevice(inner=cpu)
    with ggplug_models.load(data / "bert.gguf", [fake, cpu], placement=alternate) as model:
        batch = model.build(2, 8)
        model.scheduler.allocate(batch.graph)
        batch.ids.set(np.ones(16, np.int32))
        batch.positions.set(np.tile(np.arange(8, dtype=np.int32), 2))
        batch.mask.set(0.0)
        batch.pool.set(1 / 8)
        explanation = model.scheduler.explain(batch.graph)
        fake.forget()
        model.scheduler.compute(batch.graph)
        model.scheduler.synchronize()

        on_fake = [row.op for row in explanation.rows if row.device == fake.name and row.split >= 0]
        assert fake.computed() == on_fake
        assert len(on_fake) > 20
        to_fake = sum(copy.nbytes for copy in explanation.copies if copy.target == fake.name)
        from_fake = sum(copy.nbytes for copy in explanation.copies if copy.target == "CPU")
        assert fake.total("set", "receive").bytes == to_fake
        assert fake.total("get").bytes == from_fake
        assert explanation.bytes_copied == to_fake + from_fake


def test_a_discrete_device_without_room_for_the_weights_says_so_and_leaves_nothing(data: Path) -> None:
    small = FakeDevice(memory=100_000)
    with pytest.raises(gg.OutOfMemoryError) as caught:
        ggplug_models.load(data / "bert.gguf", [small, gg.device("CPU")])
    assert caught.value.requested > 100_000
    assert small.memory().free == 100_000
