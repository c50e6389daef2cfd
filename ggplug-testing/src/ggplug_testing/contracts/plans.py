"""The contract of plans and of computing: planned once, bound anywhere, computed many times, failing cleanly."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from ggplug.backend import UNGROUPED, Backend, Buffer, Plan, Transfers, groups_of
from ggplug.errors import BufferUseError, GraphError, TensorStateError, UnsupportedOpError
from ggplug.graph import Graph
from ggplug.memory import PERSISTENT, Allocation
from ggplug.ops.base import apply
from ggplug.ops.copy import cpy
from ggplug.ops.views import reshape, transpose, view
from ggplug.tensor import Spec, Tensor
from ggplug_testing.contracts.clause import NotOffered, alloc_for, expect, expect_equal, expect_raises, step_between
from ggplug_testing.contracts.devices import foreign_node
from ggplug_testing.contracts.given import Given, clause
from ggplug_testing.contracts.sample import WIDTH, BinaryOp, Placed, check_values, numbers, square, steps_of
from ggplug_testing.judging.oracle import evaluate
from ggplug_testing.running.placement import Placement


def _compute(stream: Backend, computed: Plan | Placed, *checked: tuple[Placed, str]) -> None:
    """Computes now, and checks results."""
    if isinstance(computed, Placed):
        computed.clear_result()
        computed.compute(stream)
    else:
        computed.compute()
    stream.synchronize()
    for placed, what in checked:
        placed.check(what)


@contextmanager
def _unchanged(placement: Placement, what: str) -> Iterator[None]:
    """Raises ContractError if the block changes a byte of what lies there."""
    before = placement.snapshot()
    yield
    for was, now in zip(before, placement.snapshot(), strict=True):
        expect_equal(now, was, what)


def _moved(placement: Placement, moved: Mapping[Tensor, Buffer | None]) -> Allocation:
    """The places of a graph, but for tensors that lie at the beginning of another buffer, or in places of their own."""
    graph, places = placement.graph, placement.allocation
    slots, offsets, buffers = places.slots.copy(), places.offsets.copy(), [*placement.buffers]
    for tensor, buffer in moved.items():
        slots[graph.index[tensor]], offsets[graph.index[tensor]] = PERSISTENT, 0
        if buffer is not None:
            slots[graph.index[tensor]] = len(buffers)
            buffers.append(buffer)
    return Allocation(graph, buffers, slots, offsets)


@clause
def a_plan_computes_again_with_new_values(given: Given) -> None:
    """A bound plan computes (``compute``) any number of times, each time from what its leafs hold then."""
    placed, stream = given.sample(3), given.stream()
    plan = given.bound(stream, placed)
    for seed in (1, 2, 3):
        placed.set(seed)
        _compute(stream, plan, (placed, f"computation {seed} of one plan"))


@clause
def inputs_and_results_are_copied_with_a_computation(given: Given) -> None:
    """``compute_with`` copies inputs, computes, and copies results; or it returns False and does nothing."""
    placed, stream = given.sample(3), given.stream()
    plan = given.bound(stream, placed)
    regions = {tensor: placed.region(tensor) for tensor in (placed.sample.x, placed.sample.y)}
    on_host = all(buffer.address is not None for buffer, _, _ in regions.values())
    x, y = (
        buffer.bytes(offset, size) if on_host else np.zeros(size, np.uint8) for buffer, offset, size in regions.values()
    )
    for seed in (2, 3, 4):
        values = placed.sample.inputs(seed)[placed.sample.x].reshape(-1).view(np.uint8)
        result = np.full_like(y, 0x7F)
        transfers = Transfers([(x, values)], [(result, y)])
        before = x.copy()
        placed.clear_result()
        if not plan.compute_with(transfers):
            expect((x == before).all(), "compute_with returned False, but copied an input")
            expect((result == 0x7F).all(), "compute_with returned False, but copied a result")
            raise NotOffered("the plan's compute_with returns False")
        wanted = evaluate(
            placed.graph, {**placed.sample.inputs(1), placed.sample.x: placed.sample.inputs(seed)[placed.sample.x]}
        )
        check_values(placed.graph, result, wanted[placed.sample.y], f"results of inputs {seed}, copied with them")
        expect(0 < transfers.start <= transfers.end, "compute_with sets start and end of the computation")


@clause
def a_plan_binds_to_other_places(given: Given) -> None:
    """``rebind`` moves a plan to another allocation, and back; the places it left are not touched again."""
    first, second = given.sample(3), given.sample(3, seed=2, shift=2 * given.kind.alignment)
    stream = given.stream()
    plan = given.plan(stream, first.graph)
    for placed, other in ((first, second), (second, first), (first, second)):
        placed.clear_result()
        with _unchanged(other, "the allocation that the plan is not bound to"):
            plan.rebind(placed.graph, placed.allocation)
            _compute(stream, plan, (placed, f"bound to allocation {placed.seed}"))


@clause
def pending_work_keeps_its_places(given: Given) -> None:
    """A computation that was submitted keeps its places when ``rebind`` binds its plan to other memory."""
    first, second, stream = given.sample(10), given.sample(10, seed=2, shift=512), given.stream()
    plan = given.plan(stream, first.graph)
    for placed in (first, second):
        plan.rebind(placed.graph, placed.allocation)
        plan.compute()
    stream.synchronize()
    first.check("submitted before the plan was bound to other memory")
    second.check("submitted afterwards")


@clause
def a_plan_serves_equal_graphs(given: Given) -> None:
    """A plan depends on structure only: ``rebind`` takes an equal graph, and ``compute`` does that by itself."""
    first, second, stream = given.sample(3), given.sample(3, seed=2), given.stream()
    expect(first.graph.signature() == second.graph.signature(), "two samples are equal graphs")
    plan = given.plan(stream, first.graph)
    plan.rebind(second.graph, second.allocation)
    _compute(stream, plan, (second, "an equal graph by the first one's plan"))
    for placed in (first, second):
        _compute(stream, placed, (placed, "computed"))


@clause
def a_plan_is_bound_to_equal_graphs_only(given: Given) -> None:
    """``rebind`` to another graph raises GraphError, even to one of as many tensors: kernels were chosen for other
    extents."""
    first = given.sample()
    y = first.sample.y
    other = Graph(apply(y.op, tuple(_halved(tensor) for tensor in y.src)))  # type: ignore[arg-type]
    if not all(map(given.device.supports_op, other.nodes)):
        raise NotOffered("the device declines the sample with other extents")
    second, stream = given.placement(other), given.stream()
    plan = given.plan(stream, first.graph)
    for graph, placement in ((other, second), (first.graph, second), (other, first)):
        with expect_raises(GraphError, "binding a plan to another graph, or a graph to the places of another one"):
            plan.rebind(graph, placement.allocation)
    plan.rebind(first.graph, first.allocation)
    _compute(stream, plan, (first, "after a plan could not be bound"))


def _halved(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else Tensor(Spec(tensor.type, (WIDTH // 2, WIDTH // 2, 1, 1), 2))


@clause
def memory_that_may_not_be_written_is_refused(given: Given) -> None:
    """``rebind`` takes no places where the plan would write into read-only memory, whatever it was bound to before."""
    device = given.device
    if not device.capabilities.buffer_from_host:
        raise NotOffered("capabilities.buffer_from_host is false")
    placed, stream = given.sample(), given.stream()
    memory = np.zeros(given.kind.alloc_size(placed.sample.y) // 4 + 64, np.float32)
    plan = given.bound(stream, placed)
    closed = given.use(device.buffer_from_host(memory.data.toreadonly()))
    _expect_refused(stream, plan, placed.graph, _moved(placed, {placed.sample.y: closed}))
    expect(not memory.any(), "a result was written into read-only memory")
    plan.rebind(placed.graph, placed.allocation)
    _compute(stream, plan, (placed, "after a plan could not be bound"))
    target = square("target")
    graph = Graph(cpy(square("x"), target))
    if device.supports_op(graph.nodes[0]):
        target.place(closed)
        given.callback(target.place, None)
        source = given.placement(Graph(graph.leafs[0]))
        slots = np.array([PERSISTENT if tensor.root is target else 0 for tensor in graph.tensors])
        offsets = np.where(slots < 0, 0, source.roots[graph.leafs[0]][1])
        allocation = Allocation(graph, source.buffers, slots, offsets)
        _expect_refused(stream, given.plan(stream, graph), graph, allocation)
        expect(not memory.any(), "a tensor was written in read-only memory")


def _expect_refused(stream: Backend, plan: Plan, graph: Graph, allocation: Allocation) -> None:
    """By a plan that is bound directly, and by one that the stream finds or makes."""
    with expect_raises(BufferUseError, "binding a plan that would write into read-only memory"):
        plan.rebind(graph, allocation)
        _compute(stream, plan)
    with expect_raises(BufferUseError, "computing a graph that would write into read-only memory"):
        stream.compute(graph, allocation)
        stream.synchronize()


@clause
def results_are_read_through_their_tensors(given: Given) -> None:
    """After ``compute`` a result's tensor has its place and its values."""
    placed, stream = given.sample(2), given.stream()
    placed.compute(stream)
    y = placed.sample.y
    placed.sample.check(y.numpy(), 1, "read through the tensor")
    expect(y.locate()[0] in placed.buffers, "the result lies in the buffer that it was allocated in")


@clause
def persistent_tensors_are_read_where_they_are(given: Given) -> None:
    """``compute`` reads leafs with a place of their own from there, also after they were placed in other memory."""
    placed, stream = given.sample(2, seed=3), given.stream()
    x = placed.sample.x
    for seed in (1, 2):
        with alloc_for(given.kind, x, 2) as buffer:
            inputs = placed.sample.inputs(seed)
            for i, (leaf, values) in enumerate(inputs.items()):
                leaf.place(buffer, i * step_between(given.kind, x))
                leaf.set(values)
            stream.compute(placed.graph, _moved(placed, dict.fromkeys(inputs)))
            stream.synchronize()
            placed.check(f"place {seed}", seed=seed)
    for leaf in inputs:
        leaf.place(None)


@clause
def a_tensor_without_place_is_an_error(given: Given) -> None:
    """``compute`` with a leaf that has no bytes raises TensorStateError; with one in a freed buffer, BufferUseError."""
    placed, stream = given.sample(), given.stream()
    leaf = next(iter(placed.sample.inputs(1)))
    allocation = _moved(placed, {leaf: None})
    with expect_raises(TensorStateError, "a leaf without a place"):
        stream.compute(placed.graph, allocation)
        stream.synchronize()
    buffer = alloc_for(given.kind, leaf)
    leaf.place(buffer)
    buffer.free()
    with expect_raises(BufferUseError, "a leaf in a freed buffer"):
        stream.compute(placed.graph, allocation)
        stream.synchronize()
    leaf.place(None)
    _compute(stream, placed, (placed, "the same graph, placed again"))


@clause
def a_plan_does_not_compute_in_memory_that_was_freed(given: Given) -> None:
    """``compute`` of a plan whose buffers were freed after it was bound raises BufferUseError; the stream stays
    usable."""
    stream, placed = given.stream(), given.sample()
    plan = given.bound(stream, placed)
    placed.free()
    with expect_raises(BufferUseError, "computing in a buffer that was freed"):
        _compute(stream, plan)
    placed = given.use(Placed(placed.sample, given.device, 2))
    plan.rebind(placed.graph, placed.allocation)
    _compute(stream, plan, (placed, "bound to other memory"))


@clause
def a_declined_op_raises_and_harms_nothing(given: Given) -> None:
    """``plan`` of what the device declines raises UnsupportedOpError with the reason; all tensors stay as they are."""
    placed, stream = given.sample(), given.stream()
    sample = placed.sample
    graph = Graph(foreign_node(sample.y))
    placement = given.placement(graph)
    placement.write_all(sample.inputs(1))
    with (
        _unchanged(placement, "memory after an op was declined"),
        expect_raises(UnsupportedOpError, "computing an op that no device knows"),
    ):
        stream.compute(graph, placement.allocation)
        stream.synchronize()
    try:
        stream.plan(graph)
    except UnsupportedOpError as error:
        expect(error.reason, "UnsupportedOpError has a reason")
    _compute(given.stream(), placed, (placed, "after an op was declined"))


@clause
def graphs_without_work_compute(given: Given) -> None:
    """``compute`` of a graph without nodes, and of one of views only, changes nothing."""
    stream, x = given.stream(), square("x")
    for graph in (Graph(x), Graph(transpose(view(reshape(x, 64, 16), 32, 8, nb=(256,), offset=128)))):
        placement = given.placement(graph)
        with _unchanged(placement, "memory after a graph without work"):
            stream.compute(graph, placement.allocation)
            stream.synchronize()


@clause
def long_graphs_compute(given: Given) -> None:
    """``compute`` takes hundreds of nodes, each of which reads the one before."""
    placed = given.sample(300)
    _compute(given.stream(), placed, (placed, "the end of a chain"))


@clause
def many_plans_can_live(given: Given) -> None:
    """``compute`` of more different graphs than a stream keeps plans for, alternately."""
    stream = given.stream()
    places = [given.sample(1 + length) for length in range(stream.PLANS + 3)]
    for _ in range(2):
        for placed in places:
            _compute(stream, placed, (placed, f"a graph of {len(placed.graph)} nodes"))


def _chain(steps: list[BinaryOp]) -> Graph:
    """A graph in which each step follows the one before."""
    x, w = square("x"), square("w")
    y = x
    for step in steps:
        y = step(y, w)
    return Graph(y.set_output())


@clause
def tracing_reports_when_nodes_ran(given: Given) -> None:
    """``compute_traced`` computes, waits, and reports when each node or group ran, once; or of the whole as node -1."""
    steps, stream = steps_of(given.device), given.stream()
    graph = _chain([*steps, *steps])
    random = np.random.default_rng(1)
    values = {leaf: numbers(random, leaf, -0.3, 0.3) for leaf in graph.leafs}
    result = graph.outputs[0]
    for groups in dict.fromkeys((UNGROUPED, groups_of(given.device, graph))):
        placement = given.placement(graph, groups)
        placement.write_all(values)
        placement.clear(result)
        plan = given.plan(stream, graph, groups)
        plan.rebind(graph, placement.allocation)
        wanted = [graph.index[group.node] for group in groups.of(graph)]
        for _ in range(2):
            _check_times(plan, wanted)
        check_values(graph, placement.read(result), evaluate(graph, values)[result], "traced", 1e-3)
        plan.free()


def _check_times(plan: Plan, wanted: list[int]) -> None:
    """Traces a computation in which each of these nodes has to wait for the one before."""
    times = plan.compute_traced()
    expect(times, "a traced computation has times")
    for each in times:
        expect(each.start <= each.end, f"node {each.node} ended before it started")
    ran = {each.node: each for each in times if each.node != -1}
    nodes = [each.node for each in times if each.node != -1]
    expect(not nodes or sorted(nodes) == wanted, f"a traced computation of the nodes {wanted} reported {nodes}")
    for one, after in pairwise(wanted if nodes else ()):
        expect(ran[one].start <= ran[after].start, f"node {after} started before node {one}, which it reads")


@clause
def kernel_names_follow_the_order_of_the_kernels(given: Given) -> None:
    """``kernel_names`` has the names of each node's kernels, one node's after the other's; or it has none at all."""
    steps, stream = steps_of(given.device), given.stream()

    def names(chosen: list[BinaryOp]) -> list[str]:
        found = given.plan(stream, _chain(chosen)).kernel_names()
        expect(all(isinstance(name, str) for name in found), f"kernel names are strings, got {found}")
        return found

    single = {step: names([step]) for step in steps}
    if not names(steps):
        raise NotOffered(f"{given.device.name} reports no names of kernels")
    for chosen in (steps, steps[::-1], [step for step in steps for _ in range(2)]):
        found, wanted = names(chosen), [name for step in chosen for name in single[step]]
        expect(found == wanted, f"the kernels are {found}, and those of the nodes, one by one, {wanted}")


@clause
def values_are_no_cause_for_warnings(given: Given) -> None:
    """NaN, infinities and what overflows are values like others: to ``compute`` with them warns of nothing."""
    special = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, 0.0, 1.0], np.float32)
    placed, stream = given.sample(), given.stream()
    for number, leaf in enumerate(placed.sample.inputs(1)):
        placed.write(leaf, np.resize(np.roll(special, number), (WIDTH, WIDTH)))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        _compute(stream, placed)
    messages = "; ".join(str(each.message) for each in warned)
    expect(not warned, f"computing with NaN, infinities and large numbers warns: {messages}")


@clause
def optimizing_keeps_results(given: Given) -> None:
    """``optimize`` returns a graph with the same results."""
    sample, stream = given.sample(4).sample, given.stream()
    better = stream.optimize(sample.graph)
    expect(sample.y in better, "the result is in the optimized graph")
    placement = given.placement(better)
    placement.write_all(sample.inputs(1))
    stream.compute(better, placement.allocation)
    stream.synchronize()
    sample.check(placement.read(sample.y), 1, "the optimized graph")
