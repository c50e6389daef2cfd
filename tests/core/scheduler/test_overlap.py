"""What asynchronous devices compute is under way while others compute, and no delay changes a bit."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

import ggplug as gg
from ggplug.backend import Device
from ggplug.scheduler import Scheduler
from ggplug.tensor import Context, Tensor
from ggplug.types import BufferUsage
from ggplug_testing import FakeDevice, ReferenceDevice

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)


def weight(leafs: Context, device: Device, name: str) -> Tensor:
    """A weight that lies on a device, so that it computes the products."""
    made = leafs.new_tensor("f32", (8, 8), name)
    leafs.buffers.append(device.buffer_type.alloc(256))
    leafs.buffers[-1].usage = BufferUsage.WEIGHTS
    made.place(leafs.buffers[-1])
    return made.set(np.random.default_rng(len(name)).standard_normal((8, 8)))


def test_a_device_that_runs_on_works_while_the_host_computes_a_branch_that_comes_first_in_the_graph() -> None:
    gpu, pending = FakeDevice("gpu", execution="late"), []

    def on_host(out: np.ndarray, a: np.ndarray, *_: object) -> None:
        pending.append(gpu.queue.pending)
        np.negative(a, out=out)

    with Context("leafs") as leafs, Scheduler([gpu, ReferenceDevice("cpu")]) as scheduler:
        w = weight(leafs, gpu, "w")
        own, other = gg.map_custom1(gg.tensor(X), on_host, name="own"), gg.mul_mat(w, gg.tensor(X), name="other")
        graph = gg.Graph(gg.add(own, other))
        assert [node.name for node in graph.nodes[:2]] == ["own", "other"]
        scheduler.compute(graph)
        assert pending[0] > 0
        np.testing.assert_allclose(graph.outputs[0].numpy(), X @ w.numpy().T - X, rtol=1e-5)


def test_branches_of_two_devices_that_run_on_are_under_way_at_the_same_time() -> None:
    gpus = [FakeDevice(f"gpu{number}", execution="late") for number in range(2)]
    with Context("leafs") as leafs, Scheduler([*gpus, ReferenceDevice("cpu")]) as scheduler:
        x = gg.new_tensor("f32", (8, 3)).set_input()
        graph = gg.Graph(*(gg.silu(gg.mul_mat(weight(leafs, gpu, gpu.name), x)) for gpu in gpus))
        scheduler.allocate(graph)
        x.set(X)
        scheduler.compute_async(graph)
        assert all(gpu.queue.pending for gpu in gpus)


def test_an_explanation_names_the_splits_that_may_still_run() -> None:
    gpus = [FakeDevice(f"gpu{number}", execution="late") for number in range(2)]
    with Context("leafs") as leafs, Scheduler([*gpus, ReferenceDevice("cpu")]) as scheduler:
        x = gg.new_tensor("f32", (8, 3)).set_input()
        first, second = (gg.mul_mat(weight(leafs, gpu, gpu.name), x) for gpu in gpus)
        parts = scheduler.explain(gg.Graph(first, second))
        assert [(row.device, row.overlaps) for row in parts.splits] == [("gpu0", ()), ("gpu1", (0,))]
        assert "split 1 on gpu1: 1 nodes, while split 0 may still run" in str(parts)
        joined = scheduler.explain(gg.Graph(gg.add(first, second)))
        assert [(row.device, row.overlaps) for row in joined.splits][-1] == ("gpu1", ())
    with Scheduler([ReferenceDevice("cpu"), ReferenceDevice("other")]) as scheduler:
        a, b = gg.silu(x), gg.neg(x)
        scheduler.pin(b, scheduler.backends[1])
        assert [row.overlaps for row in scheduler.explain(gg.Graph(a, b)).splits] == [(), ()]


def test_a_chain_that_changes_between_devices_is_computed_in_the_graphs_order() -> None:
    gpu = FakeDevice("gpu", execution="late", declines=lambda node: "not here" if node.op.name == "neg" else "")  # type: ignore[union-attr]
    with Context("leafs") as leafs, Scheduler([gpu, ReferenceDevice("cpu")]) as scheduler:
        h = gg.tensor(X)
        for number in range(3):
            h = gg.neg(gg.mul_mat(weight(leafs, gpu, f"w{number}"), h))
        graph = gg.Graph(h)
        assert [row.op for row in scheduler.explain(graph).rows] == [node.op.name for node in graph.nodes if node.op]


def branches(leafs: Context, devices: Sequence[Device]) -> gg.Graph:
    """Two branches on each device, which read each other's results and a cache into which they write."""
    x = gg.tensor(X)
    cache = leafs.new_tensor("f32", (8, 6), "cache")
    leafs.buffers.append(devices[0].buffer_type.alloc(256))
    cache.place(leafs.buffers[-1])
    cache.set_zero()
    found: list[Tensor] = []
    for number, device in enumerate([*devices, *devices]):
        h = gg.mul_mat(weight(leafs, device, f"w{'x' * number}"), found[-2] if number % 3 == 2 else x)
        found.append(gg.add(gg.silu(h), gg.mul_mat(weight(leafs, device, f"v{'x' * number}"), x)))
        if number % len(devices) == 0:
            held = gg.set_rows(cache, found[-1], gg.tensor(np.array([number % 6, 4, 1], np.int32)))
            found[-1] = gg.add(found[-1], gg.view(held, 8, 3, nb=(held.nb[1],), offset=held.nb[1]))
    total = found[0]
    for each in found[1:]:
        total = gg.add(gg.neg(total), each)
    return gg.Graph(total, *(each.set_output() for each in found[::2]))


def check(seed: int) -> None:
    rng = random.Random(seed)
    gpus = [FakeDevice(f"gpu{n}", execution="late", order="shuffled", seed=seed + n) for n in range(2)]
    devices: list[Device] = [*gpus, ReferenceDevice("cpu")]
    results = []
    for streams in (devices, [ReferenceDevice("cpu")]):
        with Context("leafs") as leafs, Scheduler(streams) as scheduler:
            graph = branches(leafs, [streams[n % len(streams)] for n in range(3)])
            scheduler.compute_async(graph)
            while streams is devices and any(gpu.queue.pending for gpu in gpus):
                if rng.random() < 0.1:
                    break  # the rest is done when results are read
                rng.choice(gpus).step(rng.randrange(1, 4))
            results.append([output.tobytes() for output in rng.sample(graph.outputs, len(graph.outputs))])
            results[-1].sort()
    assert results[0] == results[1], f"seed {seed}"


@pytest.mark.parametrize("seed", range(40))
def test_no_delay_changes_a_bit(seed: int) -> None:
    check(seed)


@pytest.mark.long
def test_1000_patterns_of_delays_change_no_bit() -> None:
    for seed in range(1000):
        check(seed)
