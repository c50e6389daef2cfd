"""What the runtime does over the tiny device; run in a process of its own, because mistakes end it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from ggplug import ops, types
from ggplug.errors import BufferUseError, ComputeError, FreedError
from ggplug.graph import Graph
from ggplug.memory import Allocation, allocate_graph
from ggplug.ops.base import OPS
from ggplug.tensor import Tensor, new_tensor
from ggplug_simt import SimtBuffer
from ggplug_simt.ledger import Ledger
from ggplug_simt.plan import SimtPlan
from ggplug_testing.contracts import CLAUSES, run_clause
from ggplug_testing.running.runner import cases_of, run_op
from tiny.driver import BINDING, PROPERTIES, STEP, TinyDevice
from tiny.library import HEAD, WORDS

OPS_THERE = ("add", "mul", "scale", "relu", "cont", "cpy", "dup", "get_rows", "set_rows", "sum_rows")

SLOW = ("long graphs compute", "many plans can live")
"""Clauses of the contract whose many nodes an interpreter takes minutes for."""

Scenario = Callable[[], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(check: Scenario) -> Scenario:
    SCENARIOS[check.__name__] = check
    return check


def f32(*ne: int) -> Tensor:
    return new_tensor(types.F32, ne).set_input()


def placed(device: TinyDevice, graph: Graph) -> Allocation:
    allocation = allocate_graph(graph, device.buffer_type)
    allocation.prepare(graph)
    return allocation


def in_buffers(device: TinyDevice, *tensors: Tensor) -> list[SimtBuffer]:
    """Places each tensor in a buffer of its own."""
    made = []
    for tensor in tensors:
        buffer = device.buffer_type.alloc(tensor.nbytes)
        assert isinstance(buffer, SimtBuffer)
        tensor.place(buffer)
        made.append(buffer)
    return made


def did(device: TinyDevice, *kinds: str) -> list[Any]:
    return [note for note in device.tiny.log if note[0] in kinds]


def values(*shape: int) -> Any:
    return np.random.default_rng(4).standard_normal(shape).astype(np.float32)


# -- the interface ---------------------------------------------------------------------------------


@scenario
def the_device_keeps_the_contract() -> None:
    found = [run_clause(TinyDevice(), clause) for clause in CLAUSES if clause.name not in SLOW]
    bad = [str(finding) for finding in found if finding.bad]
    assert not bad, bad
    assert sum(finding.verdict == "passed" for finding in found) > 20


@scenario
def its_ops_conform() -> None:
    passed = 0
    for name in OPS_THERE:
        found = run_op(TinyDevice(), OPS[name], cases=cases_of(OPS[name])[::3])
        bad = [str(finding) for finding in found if finding.bad]
        assert not bad, bad
        passed += sum(finding.verdict == "passed" for finding in found)
    assert passed > 60


# -- limits ----------------------------------------------------------------------------------------


@scenario
def a_tensor_larger_than_a_binding_is_declined_though_a_buffer_holds_it() -> None:
    device = TinyDevice()
    most = (BINDING - STEP) // 4  # the tensor may begin anywhere between two multiples of the step
    fits, large = f32(most), f32(BINDING // 4 + 1)
    assert device.supports_op(ops.relu(fits))
    answer = device.supports_op(ops.relu(large))
    assert not answer
    assert "one binding of the device has at most 4096" in answer.reason
    device.buffer_type.alloc(large.nbytes).free()
    whole = f32(2 * BINDING // 4)
    for offset in (0, 64, STEP + 4):
        row = ops.relu(ops.view(whole, most, offset=offset)).set_output()
        graph = Graph(row)
        allocation = placed(device, graph)
        whole.set(values(2 * BINDING // 4))
        with device.init() as stream:
            stream.compute(graph, allocation)
            wanted = np.maximum(values(2 * BINDING // 4)[offset // 4 :][:most], 0)
            np.testing.assert_array_equal(row.numpy(), wanted)


@scenario
def tensors_of_one_buffer_that_is_larger_than_a_binding_are_bound_each_by_itself() -> None:
    device = TinyDevice()
    xs = [f32(BINDING // 8) for _ in range(6)]
    y = xs[0]
    for x in xs[1:]:
        y = ops.add(y, x)
    graph = Graph(y.set_output())
    allocation = placed(device, graph)
    assert len(allocation.buffers) == 1
    assert allocation.buffers[0].size > 2 * BINDING
    given = values(6, BINDING // 8)
    for x, each in zip(xs, given, strict=True):
        x.set(each)
    with device.init() as stream:
        stream.compute(graph, allocation)
        np.testing.assert_allclose(y.numpy(), given.sum(0), atol=1e-5)


@scenario
def a_view_begins_anywhere() -> None:
    device = TinyDevice()
    x = f32(200)
    y = ops.relu(ops.view(x, 50, offset=4 * 77)).set_output()
    graph = Graph(y)
    allocation = placed(device, graph)
    x.set(values(200))
    with device.init() as stream:
        stream.compute(graph, allocation)
        np.testing.assert_array_equal(y.numpy(), np.maximum(values(200)[77:127], 0))


@scenario
def many_groups_are_a_grid_of_two_dimensions_and_the_excess_is_discarded() -> None:
    device = TinyDevice()
    x = f32(661)  # 166 groups of 4: 5 rows of 40
    y = ops.scale(x, 2.0, 1.0).set_output()
    graph = Graph(y)
    allocation = placed(device, graph)
    x.set(values(661))
    with device.init() as stream:
        stream.compute(graph, allocation)
        np.testing.assert_array_equal(y.numpy(), values(661) * 2 + 1)
    most = PROPERTIES.max_groups**2 * 4
    assert "more than the device's grids" in device.supports_op(ops.relu(f32(1, most + 1))).reason


@scenario
def halves_are_stored_by_the_word_or_not_at_all() -> None:
    device = TinyDevice()
    x, half = f32(6, 4), new_tensor(types.F16, (6, 4)).set_input()
    y = ops.cpy(x, half).set_output()
    graph = Graph(y)
    allocation = placed(device, graph)
    x.set(values(4, 6))
    with device.init() as stream:
        stream.compute(graph, allocation)
        np.testing.assert_array_equal(y.numpy(), values(4, 6).astype(np.float16))
    for declined in (ops.cpy(f32(3, 3), new_tensor(types.F16, (3, 3))), ops.cpy(f32(3), ops.view(half, 3, offset=2))):
        assert "in one word" in device.supports_op(declined).reason


@scenario
def single_bytes_are_transferred() -> None:
    device = TinyDevice()
    with device.buffer_type.alloc(64) as buffer, device.buffer_type.alloc(64) as other, device.init() as stream:
        buffer.clear(0)
        buffer.set(5, np.array([7], np.uint8))
        stream.set_async(buffer, 10, np.array([8, 9, 10], np.uint8))
        buffer.memset(3, 1, 6)
        buffer.copy_from(buffer, 3, 21, 3)
        stream.copy_async(buffer, 1, other, 2, 61)
        out = np.zeros(7, np.uint8)
        stream.get_async(other, 4, out)
        stream.synchronize()
        assert out.tolist() == [6, 0, 7, 0, 0, 0, 0]
        one = np.zeros(3, np.uint8)
        buffer.get(21, one)
        assert one.tolist() == [6, 0, 7]


# -- what the driver is given ----------------------------------------------------------------------


def three(device: TinyDevice) -> tuple[Graph, Tensor]:
    x = f32(6, 4)
    return Graph(ops.add(ops.relu(ops.scale(x, 2.0)), x).set_output()), x


@scenario
def a_plan_is_one_list_and_its_arguments_one_upload() -> None:
    device = TinyDevice()
    graph, _ = three(device)
    first, second = placed(device, graph), placed(device, graph)
    with device.init() as stream:
        plan = stream.plan(graph)
        plan.rebind(graph, first)
        assert did(device, "upload") == [("upload", 3 * STEP)]  # structs at multiples of 256
        assert 4 * (len(HEAD) + 3 * WORDS) <= STEP
        for _ in range(2):
            plan.compute()
        assert did(device, "submit") == [("submit", 3)] * 2
        device.tiny.log.clear()
        plan.rebind(graph, first)
        assert device.tiny.log == []
        plan.rebind(graph, second)  # the same offsets in another buffer
        assert {kind for kind, *_ in device.tiny.log} == {"bind"}
        offsets = second.offsets.copy()
        offsets[graph.index[graph.nodes[-1]]] += 16
        device.tiny.log.clear()
        plan.rebind(graph, Allocation(graph, second.buffers, second.slots, offsets))
        assert did(device, "upload") == [("upload", 3 * STEP)]
        assert did(device, "bind") in ([], [("bind", "add", 0)])


@scenario
def what_was_submitted_keeps_its_places() -> None:
    device = TinyDevice()
    x = f32(6, 4)
    y = ops.scale(x, 3.0).set_output()
    graph = Graph(y)
    allocations = [placed(device, graph) for _ in range(2)]
    with device.init() as stream:
        plan = stream.plan(graph)
        for n, allocation in enumerate(allocations):
            buffer, offset = allocation.place(graph, graph.index[x])
            stream.set_async(buffer, offset, values(4, 6) + n)
            plan.rebind(graph, allocation)
            plan.compute()
        for n, allocation in enumerate(allocations):
            buffer, offset = allocation.place(graph, graph.index[y])
            out = np.zeros(96, np.uint8)
            buffer.get(offset, out)
            np.testing.assert_allclose(out.view(np.float32).reshape(4, 6), 3 * (values(4, 6) + n), rtol=1e-6)


@scenario
def tensors_that_share_a_buffer_with_the_result_get_a_variant_and_those_that_do_not_the_plain_program() -> None:
    device = TinyDevice()
    x, y = f32(6, 4), f32(6, 4)
    z = ops.add(x, y).set_output()
    graph = Graph(z)
    buffers = [device.buffer_type.alloc(1024) for _ in range(3)]

    def lying(**places: tuple[int, int]) -> Allocation:
        by_tensor = {x: places["x"], y: places["y"], z: places["z"]}
        chosen = [by_tensor[tensor] for tensor in graph.tensors]
        return Allocation(graph, buffers, [n for n, _ in chosen], np.array([offset for _, offset in chosen]))

    apart = lying(x=(0, 0), y=(1, 0), z=(2, 0))
    with device.init() as stream:
        plan = stream.plan(graph)
        one, all_three = lying(x=(0, 0), y=(1, 0), z=(1, 512)), lying(x=(2, 0), y=(2, 256), z=(2, 512))
        for allocation in (apart, one, all_three, apart):
            plan.rebind(graph, allocation)
            for tensor in (x, y):
                buffer, offset = allocation.place(graph, graph.index[tensor])
                buffer.set(offset, values(4, 6))
            plan.compute()
            buffer, offset = allocation.place(graph, graph.index[z])
            out = np.empty(96, np.uint8)
            buffer.get(offset, out)
            np.testing.assert_array_equal(out.view(np.float32).reshape(4, 6), 2 * values(4, 6))
    written = [note[2] for note in did(device, "replace")]
    assert written == [(True, False, True), (True, True, True), (True, False, False)]
    variants = [text for _, text in did(device, "compile")]
    assert ["binding y read_write" in text for text in variants] == [False, True, True]


@scenario
def a_result_in_the_place_of_its_source_is_right() -> None:
    device = TinyDevice()
    x = f32(6, 4)
    y = x
    for _ in range(5):
        y = ops.relu(ops.scale(y, 1.5))
    graph = Graph(y.set_output())
    allocation = placed(device, graph)
    x.set(values(4, 6))
    with device.init() as stream:
        stream.compute(graph, allocation)
        np.testing.assert_allclose(y.numpy(), np.maximum(values(4, 6), 0) * 1.5**5, rtol=1e-5)


@scenario
def scratch_memory_is_bound_like_any_other() -> None:
    device = TinyDevice()
    with device.init() as stream:
        for ne in ((5, 3), (40, 4), (7, 2)):
            x = f32(*ne)
            y = ops.sum_rows(x).set_output()
            graph = Graph(y)
            allocation = placed(device, graph)
            x.set(values(*ne[::-1]))
            stream.compute(graph, allocation)
            np.testing.assert_allclose(y.numpy()[:, 0], values(*ne[::-1]).sum(1), rtol=1e-5, atol=1e-5)


@scenario
def the_first_id_out_of_range_is_reported_by_a_record_of_words() -> None:
    device = TinyDevice()
    table, ids = f32(4, 3), new_tensor(types.I32, (3,), "ids").set_input()
    rows = ops.get_rows(table, ids).set_output()
    graph = Graph(rows)
    allocation = placed(device, graph)
    with device.init() as stream:
        table.set(values(3, 4))
        ids.set(np.array([2, -5, 7], np.int32))
        stream.compute(graph, allocation)
        with pytest.raises(ComputeError) as caught:
            stream.synchronize()
        assert (caught.value.tensor, caught.value.got, caught.value.wanted) == (rows, -5, 3)
        stream.synchronize()


# -- freed memory ----------------------------------------------------------------------------------


@scenario
def a_plan_over_freed_memory_is_refused() -> None:
    device = TinyDevice()
    graph, x = three(device)
    (buffer,) = in_buffers(device, x)
    allocation = placed(device, graph)
    with device.init() as stream:
        plan = stream.plan(graph)
        plan.rebind(graph, allocation)
        plan.compute()
        buffer.free()
        for use in (plan.compute, plan.compute_traced):
            with pytest.raises(BufferUseError):
                use()
        other = f32(6, 4)
        in_buffers(device, other)
        again = Graph(ops.add(ops.relu(ops.scale(other, 2.0)), other).set_output())
        stream.compute(again, placed(device, again))


@scenario
def memory_is_freed_after_what_was_submitted() -> None:
    device = TinyDevice()
    graph, _ = three(device)
    with device.init() as stream:
        for _ in range(3):
            allocation = placed(device, graph)
            stream.compute(graph, allocation)
            assert device.tiny.pending
            for buffer in allocation.buffers:
                buffer.free()
            assert not device.tiny.pending
    graph, _ = three(device)
    stream = device.init()
    stream.compute(graph, placed(device, graph))  # nobody keeps the allocation
    del graph
    device.memory()
    stream.free()


@scenario
def scratch_memory_and_records_go_with_their_stream_and_its_plans_with_them() -> None:
    device = TinyDevice()
    x, ids = f32(8, 3), new_tensor(types.I32, (2,)).set_input()
    graph = Graph(ops.sum_rows(ops.get_rows(x, ids)).set_output())
    allocation = placed(device, graph)
    stream = device.init()
    plan = stream.plan(graph)
    plan.rebind(graph, allocation)
    ids.set(np.zeros(2, np.int32))
    plan.compute()
    used = device.used
    stream.free()
    assert device.used < used
    for use in (plan.compute, plan.compute_traced, lambda: plan.rebind(graph, allocation)):
        with pytest.raises(FreedError):
            use()


# -- mistakes of the runtime, which the driver must not survive -------------------------------------


def _unchecked(plan: SimtPlan) -> None:
    """Nobody looks whether memory was freed."""


def _at_once(ledger: Ledger, memory: Any) -> None:
    ledger._guard.driver.free(memory.handle)


MISTAKES: dict[str, tuple[str, Callable[[], None]]] = {
    "unchecked": ("a_plan_over_freed_memory_is_refused", lambda: setattr(SimtPlan, "_check", _unchecked)),
    "unordered": ("memory_is_freed_after_what_was_submitted", lambda: setattr(Ledger, "give", _at_once)),
    "unvaried": (
        "a_result_in_the_place_of_its_source_is_right",
        lambda: setattr(SimtPlan, "_choose_variants", lambda plan: set()),
    ),
}
"""A scenario, and what is done to the runtime before it."""


def main(arguments: Sequence[str]) -> int:
    failed = 0
    for name, check in chosen(arguments):
        try:
            check()
        except Exception:
            traceback.print_exc()
            failed += 1
            print(f"failed {name}", flush=True)
        else:
            print(f"passed {name}", flush=True)
    return failed


def chosen(arguments: Sequence[str]) -> Iterator[tuple[str, Scenario]]:
    if not arguments:
        yield from SCENARIOS.items()
        return
    name, make = MISTAKES[arguments[0]]
    make()
    yield name, SCENARIOS[name]
