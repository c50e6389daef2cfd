"""The contract of plans and of computing: planned once, bound anywhere, computed many times, failing cleanly."""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np

from ggplug.backend import UNGROUPED, Backend, Decline, Device, Plan, groups_of
from ggplug.errors import BufferUseError, GraphError, TensorStateError, UnsupportedOpError
from ggplug.graph import Graph
from ggplug.memory import PERSISTENT, Allocation
from ggplug.ops.base import apply
from ggplug.ops.copy import cpy
from ggplug.ops.views import reshape, transpose, view
from ggplug.tensor import Spec, Tensor
from ggplug_testing.contracts.clause import (
    NotOffered,
    alloc_for,
    clause,
    expect,
    expect_equal,
    expect_raises,
    step_between,
)
from ggplug_testing.contracts.devices import foreign_node
from ggplug_testing.contracts.sample import WIDTH, Sample, Step, square, steps_of
from ggplug_testing.judging.comparison import compare
from ggplug_testing.judging.oracle import evaluate
from ggplug_testing.reporting.causes import names_of_ops
from ggplug_testing.running.placement import UNWRITTEN, Placement


@clause
def a_plan_computes_again_with_new_values(device: Device) -> None:
    """A bound plan computes any number of times, each time from what its leafs hold then."""
    sample = Sample(device, 3)
    with sample.place(device, 1) as placement, device.init() as stream:
        plan = stream.plan(sample.graph)
        plan.rebind(sample.graph, placement.allocation)
        for seed in (1, 2, 3):
            for tensor, values in sample.inputs(seed).items():
                placement.write(tensor, values)
            plan.compute()
            stream.synchronize()
            sample.check(placement.read(sample.y), seed, f"computation {seed} of one plan")
        plan.free()


@clause
def a_plan_binds_to_other_places(device: Device) -> None:
    """``rebind`` moves a plan to another allocation, and back; the places it left are not touched again."""
    sample = Sample(device, 3)
    shift = 2 * device.buffer_type.alignment
    with (
        sample.place(device, 1) as first,
        sample.place(device, 2, shift) as second,
        device.init() as stream,
    ):
        plan = stream.plan(sample.graph)
        for placement, seed in ((first, 1), (second, 2), (first, 1)):
            placement.write(sample.y, np.full(sample.y.nbytes, 0xFF, np.uint8))
            untouched = (second if placement is first else first).snapshot()
            plan.rebind(sample.graph, placement.allocation)
            plan.compute()
            stream.synchronize()
            sample.check(placement.read(sample.y), seed, f"bound to allocation {seed}")
            for before, now in zip(untouched, (second if placement is first else first).snapshot(), strict=True):
                expect_equal(now, before, "the allocation that the plan is not bound to")
        plan.free()


@clause
def pending_work_keeps_its_places(device: Device) -> None:
    """A computation that was given to the stream goes on with its places when its plan is bound elsewhere."""
    sample = Sample(device, 10)
    with sample.place(device, 1) as first, sample.place(device, 2, 512) as second, device.init() as stream:
        plan = stream.plan(sample.graph)
        for placement in (first, second):
            plan.rebind(sample.graph, placement.allocation)
            plan.compute()
        stream.synchronize()
        sample.check(first.read(sample.y), 1, "given before the plan was bound elsewhere")
        sample.check(second.read(sample.y), 2, "given afterwards")
        plan.free()


@clause
def a_plan_serves_equal_graphs(device: Device) -> None:
    """A plan depends on structure only: it can be bound to an equal graph, and ``compute`` does that by itself."""
    sample, twin = Sample(device, 3), Sample(device, 3)
    expect(sample.graph.signature() == twin.graph.signature(), "two samples are equal graphs")
    with sample.place(device, 1) as first, twin.place(device, 2) as second, device.init() as stream:
        plan = stream.plan(sample.graph)
        plan.rebind(twin.graph, second.allocation)
        plan.compute()
        stream.synchronize()
        twin.check(second.read(twin.y), 2, "an equal graph by the first one's plan")
        plan.free()
        for each, placement, seed in ((sample, first, 1), (twin, second, 2)):
            each.check(each.compute(stream, placement), seed, "computed")


@clause
def a_plan_is_bound_to_equal_graphs_only(device: Device) -> None:
    """Another graph raises GraphError, even one of as many tensors: kernels were chosen for other extents."""
    sample = Sample(device)
    other = Graph(apply(sample.y.op, tuple(_halved(tensor) for tensor in sample.y.src)))  # type: ignore[arg-type]
    if not all(map(device.supports_op, other.nodes)):
        raise NotOffered("the sample is declined with other extents")
    with (
        sample.place(device, 1) as first,
        Placement(other, device.buffer_type) as second,
        device.init() as stream,
    ):
        plan = stream.plan(sample.graph)
        for graph, placement in ((other, second), (sample.graph, second), (other, first)):
            with expect_raises(GraphError, "binding a plan to another graph, or a graph to the places of another one"):
                plan.rebind(graph, placement.allocation)
        plan.rebind(sample.graph, first.allocation)
        plan.compute()
        stream.synchronize()
        sample.check(first.read(sample.y), 1, "after a plan could not be bound")
        plan.free()


def _halved(tensor: Tensor | None) -> Tensor | None:
    if tensor is None:
        return None
    return Tensor(Spec(tensor.type, (WIDTH // 2, WIDTH // 2, 1, 1), 2))


@clause
def memory_that_may_not_be_written_is_refused(device: Device) -> None:
    """A plan is not bound to places where it would write into read-only memory, whatever it was bound to before."""
    if not device.capabilities.buffer_from_host:
        raise NotOffered("capabilities.buffer_from_host is false")
    sample = Sample(device)
    graph = sample.graph
    memory = np.zeros(device.buffer_type.alloc_size(sample.y) // 4 + 64, np.float32)
    with sample.place(device, 1) as placement, device.init() as stream:
        plan = stream.plan(graph)
        plan.rebind(graph, placement.allocation)
        with device.buffer_from_host(memory.data.toreadonly()) as closed:
            slots, offsets = placement.allocation.slots.copy(), placement.allocation.offsets.copy()
            slots[graph.index[sample.y]], offsets[graph.index[sample.y]] = len(placement.buffers), 0
            _expect_refused(stream, plan, graph, Allocation(graph, [*placement.buffers, closed], slots, offsets))
            expect(not memory.any(), "a result was written into read-only memory")
            plan.rebind(graph, placement.allocation)
            plan.compute()
            stream.synchronize()
            sample.check(placement.read(sample.y), 1, "after a plan could not be bound")
            plan.free()
            target = square("target")
            graph = Graph(cpy(square("x"), target))
            if device.supports_op(graph.nodes[0]):
                target.place(closed)
                with Placement(Graph(graph.leafs[0]), device.buffer_type) as elsewhere:
                    slots = np.array([PERSISTENT if tensor.root is target else 0 for tensor in graph.tensors])
                    offsets = np.where(slots < 0, 0, elsewhere.roots[graph.leafs[0]][1])
                    plan = stream.plan(graph)
                    _expect_refused(stream, plan, graph, Allocation(graph, elsewhere.buffers, slots, offsets))
                    expect(not memory.any(), "a tensor was written in read-only memory")
                    plan.free()
                target.place(None)


def _expect_refused(stream: Backend, plan: Plan, graph: Graph, allocation: Allocation) -> None:
    """By a plan that is bound directly, and by one that the stream finds or makes."""
    with expect_raises(BufferUseError, "binding a plan that would write into read-only memory"):
        plan.rebind(graph, allocation)
        plan.compute()
        stream.synchronize()
    with expect_raises(BufferUseError, "computing a graph that would write into read-only memory"):
        stream.compute(graph, allocation)
        stream.synchronize()


@clause
def results_are_read_through_their_tensors(device: Device) -> None:
    """After ``compute`` a result's tensor tells its place and its values."""
    sample = Sample(device, 2)
    with sample.place(device, 1) as placement, device.init() as stream:
        stream.compute(sample.graph, placement.allocation)
        sample.check(sample.y.numpy(), 1, "read through the tensor")
        expect(sample.y.locate()[0] in placement.buffers, "the result lies in the buffer that it was allocated in")


@clause
def persistent_tensors_are_read_where_they_are(device: Device) -> None:
    """Leafs with a place of their own are read from there, also after they were placed elsewhere."""
    sample = Sample(device, 2)
    graph = sample.graph
    kind = device.buffer_type
    with Placement(graph, kind) as placement, device.init() as stream:
        leafs = list(sample.inputs(1))
        for seed in (1, 2):
            with alloc_for(kind, sample.x, 2) as buffer:
                for i, (leaf, values) in enumerate(sample.inputs(seed).items()):
                    leaf.place(buffer, i * step_between(kind, sample.x))
                    leaf.set(values)
                slots = [
                    PERSISTENT if tensor in leafs else int(placement.allocation.slots[i])
                    for i, tensor in enumerate(graph.tensors)
                ]
                offsets = [
                    0 if tensor in leafs else int(placement.allocation.offsets[i])
                    for i, tensor in enumerate(graph.tensors)
                ]
                stream.compute(graph, Allocation(graph, placement.buffers, slots, offsets))
                stream.synchronize()
                sample.check(placement.read(sample.y), seed, f"place {seed}")
        for leaf in leafs:
            leaf.place(None)


@clause
def a_tensor_without_place_is_an_error(device: Device) -> None:
    """Computing with a leaf that has no bytes raises TensorStateError; with one in a freed buffer, BufferUseError."""
    sample = Sample(device)
    graph = sample.graph
    with sample.place(device, 1) as placement, device.init() as stream:
        slots = placement.allocation.slots.copy()
        offsets = placement.allocation.offsets.copy()
        lost = graph.index[next(iter(sample.inputs(1)))]
        slots[lost], offsets[lost] = PERSISTENT, 0
        with expect_raises(TensorStateError, "a leaf without a place"):
            stream.compute(graph, Allocation(graph, placement.buffers, slots, offsets))
            stream.synchronize()
        buffer = alloc_for(device.buffer_type, sample.x)
        graph.tensors[lost].place(buffer)
        buffer.free()
        with expect_raises(BufferUseError, "a leaf in a freed buffer"):
            stream.compute(graph, Allocation(graph, placement.buffers, slots, offsets))
            stream.synchronize()
        graph.tensors[lost].place(None)
        stream.compute(graph, placement.allocation)
        stream.synchronize()
        sample.check(placement.read(sample.y), 1, "the same graph, placed again")


@clause
def a_plan_does_not_compute_in_memory_that_was_freed(device: Device) -> None:
    """``compute`` of a plan whose buffers were freed after it was bound raises BufferUseError; the stream goes on."""
    sample = Sample(device)
    with device.init() as stream:
        plan = stream.plan(sample.graph)
        placement = sample.place(device, 1)
        plan.rebind(sample.graph, placement.allocation)
        placement.free()
        with expect_raises(BufferUseError, "computing in a buffer that was freed"):
            plan.compute()
            stream.synchronize()
        with sample.place(device, 2) as placement:
            plan.rebind(sample.graph, placement.allocation)
            plan.compute()
            stream.synchronize()
            sample.check(placement.read(sample.y), 2, "bound to other memory")
        plan.free()


@clause
def a_declined_op_raises_and_harms_nothing(device: Device) -> None:
    """Planning what the device declines raises UnsupportedOpError with the reason; all tensors stay as they are."""
    sample = Sample(device)
    node = foreign_node(sample.y)
    graph = Graph(node)
    with Placement(graph, device.buffer_type) as placement, device.init() as stream:
        for tensor, values in sample.inputs(1).items():
            placement.write(tensor, values)
        before = placement.snapshot()
        with expect_raises(UnsupportedOpError, "computing an op that no device knows"):
            stream.compute(graph, placement.allocation)
            stream.synchronize()
        for was, now in zip(before, placement.snapshot(), strict=True):
            expect_equal(now, was, "memory after an op was declined")
        try:
            stream.plan(graph)
        except UnsupportedOpError as error:
            expect(error.reason, "UnsupportedOpError has a reason")
    with sample.place(device, 1) as placement, device.init() as stream:
        sample.check(sample.compute(stream, placement), 1, "after an op was declined")


@clause
def graphs_without_work_compute(device: Device) -> None:
    """A graph without nodes, and one of views only, compute and change nothing."""
    with device.init() as stream:
        x = square("x")
        for graph in (Graph(x), Graph(transpose(view(reshape(x, 64, 16), 32, 8, nb=(256,), offset=128)))):
            with Placement(graph, device.buffer_type) as placement:
                before = placement.snapshot()
                stream.compute(graph, placement.allocation)
                stream.synchronize()
                for was, now in zip(before, placement.snapshot(), strict=True):
                    expect_equal(now, was, "memory after a graph without work")


@clause
def long_graphs_compute(device: Device) -> None:
    """Hundreds of nodes, each reading the one before."""
    sample = Sample(device, 300)
    with sample.place(device, 1) as placement, device.init() as stream:
        sample.check(sample.compute(stream, placement), 1, "the end of a chain")


@clause
def many_plans_can_live(device: Device) -> None:
    """More different graphs than a stream keeps plans for, in turns."""
    with device.init() as stream:
        samples = [Sample(device, 1 + length) for length in range(stream.PLANS + 3)]
        for _ in range(2):
            for sample in samples:
                with sample.place(device, 1) as placement:
                    sample.check(sample.compute(stream, placement), 1, f"a graph of {len(sample.graph)} nodes")


def _chain(steps: list[Step]) -> Graph:
    """A graph in which each step follows the one before."""
    x, w = square("x"), square("w")
    y = x
    for step in steps:
        y = step(y, w)
    return Graph(y.set_output())


@clause
def tracing_tells_when_nodes_ran(device: Device) -> None:
    """``compute_traced`` computes, waits, and tells when each node or group ran, once; or of the whole as node -1."""
    steps = steps_of(device)
    graph = _chain([*steps, *steps])
    random = np.random.default_rng(1)
    values = {leaf: random.uniform(-0.3, 0.3, (WIDTH, WIDTH)).astype(np.float32) for leaf in graph.leafs}
    with device.init() as stream:
        for groups in dict.fromkeys((UNGROUPED, groups_of(device, graph))):
            with Placement(graph, device.buffer_type, groups=groups) as placement:
                for leaf, array in values.items():
                    placement.write(leaf, array)
                plan = stream.plan(graph, groups)
                plan.rebind(graph, placement.allocation)
                wanted = [graph.index[group.node] for group in groups.of(graph)]
                result = graph.outputs[0]
                placement.write(result, np.full(result.nbytes, UNWRITTEN, np.uint8))
                for _ in range(2):
                    _check_times(plan, wanted)
                computed = placement.read(result)
                found = compare(computed, evaluate(graph, values)[result].reshape(computed.shape), 1e-3)
                expect(found, f"traced: {found.reason}", names_of_ops(graph))
                plan.free()
                plan.free()


def _check_times(plan: Plan, wanted: list[int]) -> None:
    """Traces a computation in which each of these nodes has to wait for the one before."""
    times = plan.compute_traced()
    expect(times, "a traced computation has times")
    for each in times:
        expect(each.start <= each.end, f"node {each.node} ended before it started")
    told = {each.node: each for each in times if each.node != -1}
    nodes = [each.node for each in times if each.node != -1]
    expect(not nodes or sorted(nodes) == wanted, f"a traced computation of the nodes {wanted} told of {nodes}")
    for one, after in pairwise(wanted if nodes else ()):
        expect(told[one].start <= told[after].start, f"node {after} started before node {one}, which it reads")


@clause
def kernels_are_told_in_the_order_in_which_they_run(device: Device) -> None:
    """``kernel_names`` has the names of each node's kernels, one node's after the other's; or it has none at all."""
    steps = steps_of(device)
    with device.init() as stream:

        def names(chosen: list[Step]) -> list[str]:
            plan = stream.plan(_chain(chosen))
            found = plan.kernel_names()
            plan.free()
            expect(all(isinstance(name, str) for name in found), f"kernel names are strings, got {found}")
            return found

        alone = {step: names([step]) for step in steps}
        if not names(steps):
            raise NotOffered(f"{device.name} tells no names of kernels")
        for chosen in (steps, steps[::-1], [step for step in steps for _ in range(2)]):
            told, wanted = names(chosen), [name for step in chosen for name in alone[step]]
            expect(told == wanted, f"the kernels are {told}, and those of the nodes, one by one, {wanted}")


@clause
def values_are_no_cause_for_warnings(device: Device) -> None:
    """NaN, infinities and what overflows are values like others: computing with them warns of nothing."""
    numbers = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, 0.0, 1.0], np.float32)
    sample = Sample(device)
    with sample.place(device, 1) as placement, device.init() as stream:
        placement.write(sample.x, np.resize(numbers, (WIDTH, WIDTH)))
        if sample.w in sample.graph:
            placement.write(sample.w, np.resize(np.roll(numbers, 1), (WIDTH, WIDTH)))
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            stream.compute(sample.graph, placement.allocation)
            stream.synchronize()
    told = "; ".join(str(each.message) for each in warned)
    expect(not warned, f"computing with NaN, infinities and large numbers warns: {told}")


@clause
def optimizing_keeps_results(device: Device) -> None:
    """``optimize`` answers a graph with the same results."""
    sample = Sample(device, 4)
    with device.init() as stream:
        better = stream.optimize(sample.graph)
        expect(sample.y in better, "the result is in the optimized graph")
        with Placement(better, device.buffer_type) as placement:
            for tensor, values in sample.inputs(1).items():
                placement.write(tensor, values)
            stream.compute(better, placement.allocation)
            stream.synchronize()
            sample.check(placement.read(sample.y), 1, "the optimized graph")


@clause
def what_is_supported_can_be_planned(device: Device) -> None:
    """``supports_op`` and ``plan`` agree."""
    sample = Sample(device)
    if isinstance(device.supports_op(sample.y), Decline):
        raise NotOffered("the sample is declined")
    with device.init() as stream:
        stream.plan(sample.graph).free()
