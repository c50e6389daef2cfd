"""The conformance suite's part for groups, on the reference device that forms them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug.backend import Device, forms_groups
from ggplug.graph import Graph
from ggplug.memory import GraphAllocator, compute_poisoned
from ggplug.nodes.groups import UNGROUPED
from ggplug.registry import REGISTRY
from ggplug.tensor import Tensor
from ggplug_testing import FakeDevice, Leafs, ReferenceDevice
from ggplug_testing.cases import graph_cases
from ggplug_testing.cases.chains import CHAINS, Context, group_cases
from ggplug_testing.devices.fusing import FusingDevice
from ggplug_testing.judging.comparison import compare
from ggplug_testing.running.groups import run_group_case, run_groups
from tests.mutation import FAULTS


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
def test_a_device_that_computes_groups_right_passes(step: int) -> None:
    findings = run_groups(FusingDevice(), cases=[*group_cases(), *graph_cases()][::step])
    assert [str(finding) for finding in findings if finding.bad] == []
    assert sum(finding.verdict == "passed" for finding in findings) > 400 // step


def test_a_discrete_device_that_works_late_passes() -> None:
    device = FakeDevice(execution="late", order="shuffled", seed=3, inner=FusingDevice(), alignment=64)
    chosen = random.Random(4).sample(group_cases(), 60)
    findings = run_groups(device, cases=chosen)
    assert [str(finding) for finding in findings if finding.bad] == []
    assert sum(finding.verdict == "passed" for finding in findings) > 30


def test_a_group_that_fails_is_reported_with_the_name_of_its_kernel() -> None:
    (fault,) = (each for each in FAULTS if each.name == "overwrites the factor of a norm")
    case = next(each for each in group_cases() if each.label == "norm, scale, shift, source 1 computed alone")
    with fault.device() as device, device.init() as stream:
        assert run_group_case(device, stream, case).reason.startswith("in 1 group (_compute), ")


def test_a_device_that_forms_no_groups_gets_a_report_of_that() -> None:
    (finding,) = run_groups(ReferenceDevice())
    assert finding.verdict == "declined"
    assert "every node alone" in finding.reason


def test_every_chain_is_one_group_or_more_for_some_device() -> None:
    device = FusingDevice()
    stream = device.init()
    by_label = {case.label: case for case in group_cases()}
    declined = {
        name
        for name in CHAINS
        if name in by_label and run_group_case(device, stream, by_label[name]).verdict == "declined"
    }
    # these must not be groups, or have no pattern
    assert declined == {
        "norm of the cache, stored",
        "gated products of two inputs",
        "product, its halves gated, residual",
    }


# -- random graphs of such chains ---------------------------------------------------------------------


def random_chains(rng: random.Random, seed: int) -> tuple[Graph, Leafs]:
    """A graph of several chains, some on the results of others, with outputs, views and second readers inside."""
    leafs = Leafs(seed)
    made: list[Tensor] = []
    # results in blocks are no sources of other chains
    names = [name for name in CHAINS if not any(word in name for word in ("cache", "stored", "blocks"))]

    class Linked(Context):
        """Sources are results of earlier chains where the shape fits."""

        def source(self, *ne: int, layout: Any = None) -> Tensor:
            fits = [tensor for tensor in made if tensor.ne[: len(ne)] == ne and tensor.size == np.prod(ne)]
            if fits and rng.random() < 0.7:
                return rng.choice(fits)
            return super().source(*ne, layout=layout)

        def __call__(self, result: Tensor) -> Tensor:
            chance = rng.random()
            if chance < 0.04:
                result.set_output()
            elif chance < 0.08:
                made.append(gg.neg(result))
            elif chance < 0.12:
                made.append(gg.reshape(result, *result.ne[: result.rank]))
            return result

    for _ in range(rng.randrange(2, 5)):
        context = Linked(leafs, computed=rng.random() < 0.5)
        # results stay near one, so that errors do not grow from chain to chain
        last = CHAINS[rng.choice(names)](context)
        made.append(gg.tanh(last) if rng.random() < 0.7 else last)
    outputs = [*rng.sample(made, min(len(made), 2)), made[-1]]
    return Graph(*(tensor.set_output() for tensor in outputs)), leafs


def compute_both_ways(device: Device, count: int, first: int = 0) -> int:
    """Computes random graphs in groups, poisoned between groups, and node by node; how many groups there were."""
    formed = 0
    with device.init() as stream:
        for seed in range(first, first + count):
            graph, leafs = random_chains(random.Random(seed), seed)
            if not all(map(device.supports_op, graph.nodes)):
                continue
            groups = device.groups(graph)
            formed += len(groups.members)
            results = []
            with GraphAllocator(device.buffer_type) as allocator:
                for wanted, compute in ((UNGROUPED, stream.compute), (groups, None)):
                    allocation = allocator.allocate(graph, groups=wanted)
                    for leaf in graph.leafs:
                        leaf.root.set_bytes(leafs.values[leaf.root])
                    if compute is None:
                        compute_poisoned(stream, graph, allocation)
                    else:
                        compute(graph, allocation)
                    results.append([output.numpy() for output in graph.outputs])
            for alone, together, output in zip(*results, graph.outputs, strict=True):
                found = compare(together, alone, 1e-6)
                assert found, f"graph {seed}: {output!r}: {found.reason}"
    return formed


def test_random_graphs_of_chains_equal_their_nodes_one_by_one() -> None:
    assert compute_both_ways(FusingDevice(), 60) > 100


@pytest.mark.long
@pytest.mark.parametrize("name", ["reference", "CPU", "OpenCL0"])
def test_5000_random_graphs_of_chains_equal_their_nodes_one_by_one(name: str) -> None:
    if name == "reference":
        device: Device = FusingDevice()
    else:
        device = next((each for each in REGISTRY.devices() if each.name == name), None)  # type: ignore[assignment]
        if device is None:
            pytest.skip(f"no device {name}")
        if not forms_groups(device):
            pytest.skip(f"{name} computes every node alone")
    assert compute_both_ways(device, 5000) > 5000
