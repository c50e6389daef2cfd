"""Placement by predicted time over the corpus of graphs: right results, the copies that were predicted, and no more
splits than by ggml's rules."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import corpus
import numpy as np
import pytest
from cost_model.fixed_rates import random_costs

import ggplug as gg
from ggplug.backend import Device
from ggplug.cli.graph import results_of
from ggplug.errors import DeviceNotFoundError
from ggplug.hookspecs import HOOKS, hookimpl
from ggplug.ops.base import OPS
from ggplug.saved import LoadedGraph
from ggplug_testing import FakeDevice
from ggplug_testing.judging.expected import Expected
from ggplug_testing.judging.results import Judging

GRAPHS = corpus.graphs()


class Copies:
    """Counts what the scheduler copies before each split."""

    def __init__(self) -> None:
        self.nbytes = 0

    def __enter__(self) -> Self:
        HOOKS.register(self)
        return self

    def __exit__(self, *exc: object) -> None:
        HOOKS.unregister(self)

    @hookimpl
    def ggplug_split_copied(self, nbytes: int) -> None:
        self.nbytes += nbytes


def cpu_alone() -> list[Device]:
    return [gg.device("CPU")]


def opencl() -> list[Device]:
    try:
        return [gg.device("OpenCL0"), gg.device("CPU")]
    except DeviceNotFoundError as error:
        pytest.skip(str(error))


def fake() -> list[Device]:
    return [FakeDevice("fake", inner=gg.device("CPU")), gg.device("CPU")]


def two_fakes() -> list[Device]:
    return [FakeDevice(name, inner=gg.device("CPU")) for name in ("fake0", "fake1")] + cpu_alone()


SETS = {"CPU": cpu_alone, "OpenCL0, CPU": opencl, "fake, CPU": fake, "fake0, fake1, CPU": two_fakes}


def results(graph: LoadedGraph, scheduler: gg.Scheduler) -> list[np.ndarray]:
    scheduler.allocate(graph)
    graph.set_inputs()
    scheduler.compute(graph)
    return [each.numpy() for each in results_of(graph)]


def values_of(graph: LoadedGraph) -> dict[gg.Tensor, bytes]:
    """The bytes of a graph's leafs before it is computed."""
    with gg.Scheduler([gg.device("CPU")]) as scheduler:
        scheduler.allocate(graph)
        graph.set_inputs()
        return {leaf: leaf.tobytes() for leaf in graph.leafs if leaf.view_src is None}


def sets_its_own_rows(node: gg.Tensor) -> bool:
    """Whether rows are copied within one memory: what they become depends on the order of the copies, which no device
    promises.  PoCL's copies one after the other, Intel's OpenCL several at once; the float64 reference reads all first.
    """
    if not isinstance(node.op, gg.ops.SetRows):
        return False
    table, rows = node.src[:2]
    assert table is not None
    assert rows is not None
    return table.root is rows.root


def are_right(
    graph: LoadedGraph, values: dict[gg.Tensor, bytes], wanted: Sequence[np.ndarray], found: Sequence[np.ndarray]
) -> bool:
    """Whether results are those of the CPU, bit for bit or within the bounds that are derived from the leafs."""
    differing = [
        (tensor, after)
        for tensor, before, after in zip(results_of(graph), wanted, found, strict=True)
        if before.tobytes() != after.tobytes()
    ]
    if not differing:
        return True
    if any(sets_its_own_rows(node) for node in graph.nodes):
        return True
    judging = Judging(Expected(graph, values))
    return all(
        bool(judging.compared(after.reshape(tensor.ne[::-1]).astype(np.float64), tensor, judging.expected.allowed))
        for tensor, after in differing
    )


def check(names: Sequence[str], devices: Callable[[], list[Device]], folder: Path) -> None:
    """Computes graphs with random times of the devices, so that many nodes leave the stream of the rules."""
    chaotic, moved = [], 0
    for name in names:
        used = devices()
        fakes = [device for device in used if isinstance(device, FakeDevice)]
        costs = random_costs(random.Random(name), used, sorted(OPS))
        with (
            corpus.load(name, GRAPHS[name], folder, used[0]) as graph,
            gg.Scheduler(used) as ruled,
            gg.Scheduler(used, policy=costs) as scheduler,
        ):
            explained = scheduler.explain(graph)
            assert len(explained.splits) <= len(ruled.split(graph)), name
            moved += any(row.reason == "fastest" for row in explained.rows)
            scheduler.allocate(graph)
            graph.set_inputs()
            for device in fakes:
                device.forget()
            with Copies() as copies:
                scheduler.compute(graph)
            assert copies.nbytes == explained.bytes_copied, name
            counted = {device.name: device.total("receive").calls for device in fakes}
            wanted_copies = Counter(copy.target for copy in explained.copies)
            assert counted == {device.name: wanted_copies[device.name] for device in fakes}, name
            found = [each.numpy() for each in results_of(graph)]
        with corpus.load(name, GRAPHS[name], folder, gg.device("CPU")) as graph:
            values = values_of(graph)
            with gg.Scheduler(cpu_alone()) as scheduler:
                wanted = results(graph, scheduler)
            if not are_right(graph, values, wanted, found):
                chaotic.append(name)
    assert not chaotic
    assert moved or len(devices()) == 1 or len(names) < 20


@pytest.mark.parametrize("devices", SETS)
def test_some_graphs_are_placed_well(devices: str, tmp_path: Path) -> None:
    check(list(GRAPHS)[:: 20 if "fake" in devices else 60], SETS[devices], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("devices", SETS)
def test_all_graphs_are_placed_well(devices: str, tmp_path: Path) -> None:
    check(list(GRAPHS), SETS[devices], tmp_path)
