"""Nodes that GPUs compute together: which launches, where not and why, and what a captured graph depends on.

That groups are computed right is the conformance suite's part, on OpenCL and as CUDA.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("ggplug_simt")

from simt_groups import EXAMPLES, biased_product, f32, gated_products, norm_of_a_sum
from simt_stand_in import GPU, StandInDevice, StandInDriver

from ggplug import ops, types
from ggplug.graph import Graph
from ggplug.memory import Allocation, GraphAllocator, allocate_graph
from ggplug.scheduler import Scheduler
from ggplug.tensor import new_tensor
from ggplug_simt.cache import likely


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGPLUG_CACHE_DIR", str(tmp_path))


def launched(device: StandInDevice, graph: Graph) -> list[str]:
    return device.init().plan(graph, device.groups(graph)).kernel_names()


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_models_have_is_computed_in_groups(name: str) -> None:
    make, wanted = EXAMPLES[name]
    assert launched(StandInDevice(), make()) == wanted


@pytest.mark.parametrize("make", [biased_product, gated_products])
def test_many_columns_have_an_epilogue_too_unless_the_vendors_library_multiplies(make: Callable[[int], Graph]) -> None:
    graph = make(20)
    assert launched(StandInDevice(), graph)[-1].startswith("mul_mat_tiles")
    device = StandInDevice(driver=StandInDriver(dataclasses.replace(GPU, products=True)))
    names = launched(device, graph)
    assert "library_product" in names
    assert not [each for each in names if each.startswith("mul_mat")]
    reasons = {missed.reason for missed in device.groups(graph).missed}
    assert any("the vendor's library" in reason for reason in reasons), reasons


def test_explanations_say_why_a_product_has_no_epilogue() -> None:
    device = StandInDevice(driver=StandInDriver(dataclasses.replace(GPU, products=True)))
    with device.init() as stream:
        explained = str(Scheduler([stream]).explain(biased_product(20)))
    assert "the vendor's library, which takes products of more than 8 columns, takes no epilogue" in explained


def test_a_sum_that_is_needed_beyond_its_norm_is_stored_and_one_that_is_not_is_not() -> None:
    x, y = f32(40, 3), f32(40, 3)
    for needed in (False, True):
        total = ops.add(x, y)
        normed = ops.mul(ops.norm(total), f32(40)).set_output()
        graph = Graph(normed, total.set_output()) if needed else Graph(normed)
        device = StandInDevice()
        ((_, found),) = device.matches(graph, device.groups(graph))
        written = [each for each in found.launches[0].tensors if each.written]
        assert len(written) == 1 + needed
    (group, _), *_ = StandInDevice().matches(norm_of_a_sum(), StandInDevice().groups(norm_of_a_sum()))
    assert group.kept == (True, False, False, True)


def test_results_of_fewer_bits_inside_of_a_run_are_rounded_by_themselves() -> None:
    graph = Graph(ops.neg(ops.scale(new_tensor(types.F16, (40, 3)).set_input(), 0.3)).set_output())
    device = StandInDevice()
    groups = device.groups(graph)
    assert not groups
    assert [missed.reason for missed in groups.missed] == ["scale rounds to f16 within a group"]


# -- captured graphs -----------------------------------------------------------------------------------


def test_a_captured_graph_is_dropped_when_scratch_memory_or_a_group_changes() -> None:
    device = StandInDevice()
    device.stand_in.captures = True
    graph, larger = gated_products(), gated_products(5)
    groups = device.groups(graph)
    stream, allocation = device.init(), grouped(device, graph)
    plan = stream.plan(graph, groups)
    plan.rebind(graph, allocation)
    for _ in range(3):
        plan.compute()
    assert device.stand_in.did("replay") == [("replay", 2)] * 2
    before = device.used
    stream.plan(larger, device.groups(larger))
    assert device.used > before  # more scratch memory
    device.stand_in.log.clear()
    plan.compute()
    assert device.stand_in.did("launch", "replay") == [("replay", 2)]  # the smaller piece is still there
    plan.rebind(graph, allocation)
    plan.compute()
    assert [name for _, name, *_ in device.stand_in.did("launch")] == ["mul_mat_rows", "mul_mat_rows"]
    ungrouped = stream.plan(graph)
    ungrouped.rebind(graph, allocate_graph(graph, device.buffer_type))
    device.stand_in.log.clear()
    ungrouped.compute()
    assert [name for _, name, *_ in device.stand_in.did("launch")] == ["mul_mat_rows", "mul_mat_rows", "map_two"]


def grouped(device: StandInDevice, graph: Graph) -> Allocation:
    return GraphAllocator([device.buffer_type]).allocate(graph, groups=device.groups(graph))


def test_what_is_compiled_ahead_of_time_has_the_programs_of_groups() -> None:
    names = {str(program) for program in likely(StandInDevice())}
    assert {
        "normalise[TD=f32 TX=f32] + mul_add",
        "rope[TD=f16 TX=f32] + set_rows",
        "mul_mat_rows[TA=q8_0 TB=f32] + add_gelu_erf",
        "mul_mat_tiles[TA=f16 TB=f32] + swiglu",
    } <= names
