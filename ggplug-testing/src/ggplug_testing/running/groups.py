"""Runs chains of ops on a device in the groups that it forms, and judges what came out.

Nothing is known about the device's patterns.  Its groups have to keep core's rules.  Each graph is then computed in
three ways: in groups between guard bytes, where results inside of groups have no bytes at all; in groups in the places
of a graph allocator, with reuse, and with every byte poisoned that no group may need; and node by node.  All have to
be what the oracle expects.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from ggplug import ops
from ggplug.backend import Backend, Decline, Device, forms_groups, groups_of
from ggplug.errors import GGPlugError
from ggplug.graph import Graph
from ggplug.interface.grouping import check_groups
from ggplug.memory import Allocation, GraphAllocator, compute_poisoned
from ggplug.nodes.groups import Group, Groups
from ggplug.ops.base import Array
from ggplug.scheduler.explain import kernel_name
from ggplug.tensor import Tensor
from ggplug_testing.cases import Case, Leafs, graph_cases
from ggplug_testing.cases.chains import OTHERS, SUBJECT, group_cases
from ggplug_testing.judging.expected import Expected
from ggplug_testing.judging.oracle import first_fault, read_values
from ggplug_testing.judging.results import Judging
from ggplug_testing.reporting.causes import Failure, names_of_ops, of_exception, of_kernel
from ggplug_testing.reporting.report import Finding
from ggplug_testing.reporting.watching import EVERYTHING, Watch
from ggplug_testing.running.runner import Computed, run_each


def run_groups(
    device: Device,
    *,
    cases: Iterable[Case] | None = None,
    max_nmse: float | None = None,
    watch: Watch = EVERYTHING,
) -> list[Finding]:
    """Computes all chains and the graphs of models in the groups that a device forms; returns a finding for each."""
    if not forms_groups(device):
        return [Finding(SUBJECT, "", "declined", f"{device.name} computes every node alone")]
    chosen = [*group_cases(partial(_by_any, device)), *graph_cases()] if cases is None else cases
    return run_each(device, SUBJECT, chosen, partial(run_group_case, max_nmse=max_nmse), watch)


def _by_any(device: Device, source: Tensor) -> Tensor:
    """A node that makes other values of a source, by the first of the ops for this that the device computes."""
    made = (other(source) for other in OTHERS)
    return next((node for node in made if not isinstance(device.supports_op(node), Decline)), ops.neg(source))


def run_group_case(device: Device, stream: Backend, case: Case, *, max_nmse: float | None = None) -> Finding:
    """Computes one graph in the groups that a device forms; the finding is "declined" if it forms none.

    ``max_nmse``: as for ``run_case``.
    """
    leafs = Leafs(case.seed)
    graph = case.graph(leafs)
    try:
        for answer in map(device.supports_op, graph.nodes):
            if isinstance(answer, Decline):
                return Finding(SUBJECT, case.label, "declined", answer.reason)
        groups = groups_of(device, graph)
    except Exception as error:
        return of_exception(error, device).finding(SUBJECT, case.label)
    try:
        check_groups(graph, groups)
    except GGPlugError as error:
        return Finding(SUBJECT, case.label, "failed", f"groups: {error}", float("inf"))
    if not groups:
        reason = "; ".join(missed.reason for missed in groups.missed)
        return Finding(SUBJECT, case.label, "declined", f"no group was formed{': ' if reason else ''}{reason}")
    expected = Expected(graph, leafs.values)
    if first_fault(graph, expected.values) is not None:
        return Finding(SUBJECT, case.label, "declined", "ids out of range end the computation")
    count = len(groups.members)
    counted = f"{count} group" if count == 1 else f"{count} groups"
    computed = Computed(stream, graph, leafs.values, Judging(expected, max_nmse=max_nmse), groups)
    for compute in (_apart, _poisoned):
        failure, worst = compute(computed)
        if failure is not None:
            together = ", ".join(dict.fromkeys(names_of_kernels(device, graph, groups)))
            reason = f"in {counted} ({together}), {failure.reason}"
            found = failure._replace(reason=reason).finding(SUBJECT, case.label)._replace(nmse=worst)
            if found.verdict != "failed":
                return found
            where = of_kernel(device, groups_in(graph, groups)[0])
            return found._replace(where=where, builds_on=names_of_ops(graph))
    return Finding(SUBJECT, case.label, "passed", counted, worst)


def groups_in(graph: Graph, groups: Groups) -> list[Group]:
    """The groups of a graph."""
    nodes = [tuple(graph.tensors[position] for position in members) for members in groups.members]
    kept = [tuple(position not in groups.inner for position in members) for members in groups.members]
    return [Group(*each) for each in zip(nodes, kept, strict=True)]


def names_of_kernels(device: Device, graph: Graph, groups: Groups) -> list[str]:
    """The device's names for the kernels that compute the groups of a graph."""
    return [kernel_name(device.chosen(group)) for group in groups_in(graph, groups)]


def _apart(computed: Computed) -> tuple[Failure | None, float]:
    failure, worst = computed.between_guards()
    return failure and failure._replace(reason=f"each tensor apart: {failure.reason}"), worst


def _poisoned(computed: Computed) -> tuple[Failure | None, float]:
    """What is wrong in an allocator's places, poisoned between groups or not, and node by node, if anything."""
    stream, graph, judging, worst = computed.stream, computed.graph, computed.judging, 0.0
    ways = {
        "between groups poisoned": (computed.groups, compute_poisoned),
        "in an allocator's places": (computed.groups, _computed),
        "node by node": (Groups(), _computed),
    }
    with GraphAllocator(stream.device.buffer_type) as allocator:
        for way, (wanted, compute) in ways.items():
            allocation = allocator.allocate(graph, groups=wanted)
            for root in (leaf.root for leaf in graph.leafs):
                root.set_bytes(computed.values[root])
            try:
                compute(stream, graph, allocation)
                stream.synchronize()
            except Exception as error:
                failure = of_exception(error, stream.device)
                return failure._replace(reason=f"{way}: {failure.reason}"), float("inf")
            for tensor, got in _outputs(graph).items():
                found = judging.compared(got, tensor, judging.expected.allowed)
                worst = max(worst, found.nmse)
                if not found:
                    return Failure("failed", f"{way}, {tensor!r} is wrong: {found.reason}"), found.nmse
    return None, worst


def _computed(stream: Backend, graph: Graph, allocation: Allocation) -> None:
    stream.compute(graph, allocation)


def _outputs(graph: Graph) -> dict[Tensor, Array]:
    """The values of all that is marked as output, four-dimensional in NumPy order, and of what lies in its bytes."""
    found = {}
    for output in graph.outputs:
        if output.flags or output.root.op is None:
            found[output] = read_values(output, np.frombuffer(bytearray(output.tobytes()), np.uint8))
    return found
