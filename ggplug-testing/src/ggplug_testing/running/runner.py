"""Runs cases on a device.

Every tensor lies between guard bytes; results are NaN before they are computed; leafs have to be afterwards what they
were before, unless an op declares that it writes them.  Ops that may work in place are computed a second time with
the result in the place of the source.  Where ids are out of range the device has to raise what the contract says, and
results are judged all the same, up to the node at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from ggplug.backend import Backend, Decline, Device, limit_of_ids
from ggplug.errors import ComputeError, GGPlugError
from ggplug.graph import Graph
from ggplug.nodes.groups import UNGROUPED, Group, Groups
from ggplug.ops.base import Op
from ggplug.tensor import Tensor
from ggplug_testing.cases import Case, Leafs, cases_of, graph_cases
from ggplug_testing.cases.derived import why_none
from ggplug_testing.cases.graphs import SUBJECT as GRAPH
from ggplug_testing.judging.expected import Expected
from ggplug_testing.judging.oracle import first_fault
from ggplug_testing.judging.results import Judging, changed_outside
from ggplug_testing.reporting.causes import Failure, names_of_ops, of_exception, of_kernel
from ggplug_testing.reporting.report import Finding
from ggplug_testing.reporting.watching import EVERYTHING, IN_THE_PLACE, Watch
from ggplug_testing.running.placement import UNWRITTEN, UNWRITTEN_TOO, Bytes, Placement
from ggplug_testing.running.traits import traits_of


def run_op(
    device: Device,
    op: type[Op],
    *,
    cases: Iterable[Case] | None = None,
    max_nmse: float | None = None,
    watch: Watch = EVERYTHING,
) -> list[Finding]:
    """All cases of an op on a fresh stream of ``device``; ``max_nmse`` as for :func:`run_case`."""
    chosen = list(cases_of(op) if cases is None else cases)
    if not chosen:
        why = f"no case could be made for {op.name}, {why_none(op)}; @generates gives an op cases of its own"
        return [Finding(op.name, "", "never run", why)]
    return run_each(device, op.name, chosen, partial(run_case, max_nmse=max_nmse), watch)


def run_graphs(device: Device, *, max_nmse: float | None = None, watch: Watch = EVERYTHING) -> list[Finding]:
    """All graphs of many ops."""
    return run_each(device, GRAPH, graph_cases(), partial(run_case, max_nmse=max_nmse), watch)


def run_each(
    device: Device,
    subject: str,
    cases: Iterable[Case],
    run: Callable[[Device, Backend, Case], Finding],
    watch: Watch,
) -> list[Finding]:
    """Those cases that ``watch`` wants, on one stream.  A device that gives no stream fails all of them at once."""
    chosen = [case for case in cases if watch.wants(subject, case.label)]
    if not chosen:
        return []
    findings: list[Finding] = []
    for case in chosen:
        watch.begins(subject, case.label)
        if not findings:
            try:
                stream = device.init()
            except Exception as error:
                failed = of_exception(error, device).finding(subject, case.label)
                watch.ended(failed)
                return [failed]
        try:
            findings.append(run(device, stream, case))
        except Exception as error:  # in a transfer, say
            findings.append(of_exception(error, device).finding(subject, case.label))
        watch.ended(findings[-1])
        if watch.enough():
            return findings
    try:
        stream.free()
    except Exception as error:
        findings.append(of_exception(error, device).finding(subject, "freeing the stream at the end"))
    return findings


def run_case(device: Device, stream: Backend, case: Case, *, max_nmse: float | None = None) -> Finding:
    """One case, whatever the device does.  ``max_nmse``: an error to allow in the place of what is derived."""
    leafs = Leafs(case.seed)
    graph = case.graph(leafs)
    subject = next((node for node in reversed(graph.nodes) if node.op is not None and node.op.name == case.op), None)
    types = spell_types(subject)
    try:
        answers = [device.supports_op(node) for node in graph.nodes]
    except Exception as error:
        return of_exception(error, device).finding(case.op, case.label, types)
    for answer in answers:
        if isinstance(answer, Decline):
            if not answer.reason:
                return Finding(case.op, case.label, "failed", "declined without a reason", float("inf"), types)
            return Finding(case.op, case.label, "declined", answer.reason)
    expected = Expected(graph, leafs.values, wide=case.agreement != "bits")
    own = () if subject is None else tuple(traits_of(subject, leafs.values, first_fault(graph, expected.values)))
    computed = Computed(stream, graph, leafs.values, Judging(expected, case.agreement, max_nmse))
    variants: tuple[str, ...] = ()
    worst = 0.0
    for label, aliases in _variants(case, graph):
        variant = (f"a result in the place of {label.partition(IN_THE_PLACE)[2]}",) if aliases else ()
        failure, off = computed.between_guards(aliases)
        if failure is not None:
            finding = failure.finding(case.op, label, types)._replace(nmse=off, traits=own + variant)
            if failure.verdict != "failed":
                return finding
            where = "" if subject is None else of_kernel(device, Group((subject,)))
            return finding._replace(where=where, builds_on=names_of_ops(graph, case.op))
        worst = max(worst, off)
        variants += variant
    return Finding(case.op, case.label, "passed", "", worst, types, traits=own + variants)


def spell_types(node: Tensor | None) -> str:
    """The types of a node's sources, and its own where it differs from the first."""
    if node is None:
        return ""
    sources = [source.type.name for source in node.src if source is not None]
    result = node.type.name
    return ", ".join(sources) + ("" if sources[:1] == [result] else f" -> {result}")


GUARDED = 256
"""Guard bytes before and after each tensor: more than any vector register or group of work items writes at once."""


def _variants(case: Case, graph: Graph) -> list[tuple[str, dict[Tensor, Tensor]]]:
    """The case as it is, and with its result in the place of each source that the op declares."""
    variants: list[tuple[str, dict[Tensor, Tensor]]] = [(case.label, {})]
    last = graph.outputs[-1]
    op = last.op
    if op is None or last.is_view or op.name != case.op:
        return variants
    for position in op.inplace:
        source = last.src[position]
        if source is None or not may_share(last, source):
            continue
        if sum(each is not None and each.root is source.root for each in last.src) > 1:
            continue  # allocators share no bytes with a source that the node reads in two ways
        variants.append((f"{case.label}{IN_THE_PLACE}{op.sources[position]}", {last: source}))
    return variants


def may_share(result: Tensor, source: Tensor) -> bool:
    """Whether a result may take the bytes of a leaf, or of a view of one: type, extents and strides are the same."""
    same = (result.type, result.ne, result.nb) == (source.type, source.ne, source.nb)
    return same and source.root.op is None and result.size > 0


class Computed(NamedTuple):
    """A graph that a stream computes, and how what comes out is judged."""

    stream: Backend
    graph: Graph
    values: Mapping[Tensor, Bytes]
    judging: Judging
    groups: Groups = UNGROUPED

    def between_guards(self, aliases: Mapping[Tensor, Tensor] | None = None) -> tuple[Failure | None, float]:
        """What is wrong where each tensor, but for results inside of groups, has bytes of its own between guards.

        And how far results are off.
        """
        graph, kind = self.graph, self.stream.device.buffer_type
        expected = self.judging.expected
        fault = first_fault(graph, expected.values)
        nodes = graph.nodes if fault is None else graph.nodes[: graph.nodes.index(fault[0]) + 1]
        kept = [node for node in nodes if graph.roots[graph.index[node]] not in self.groups.inner]
        with Placement(graph, kind, guarded=GUARDED, aliases=aliases, groups=self.groups) as placement:
            before, failure = self._compute(placement, fault, UNWRITTEN)
            if failure is not None:
                return failure, float("inf")
            again = partial(self._compute, placement, fault, UNWRITTEN_TOO)
            found = self.judging.all(kept, placement, again)
            if not found:
                return Failure("failed", found.reason), found.nmse
            reason = changed_outside(self.values, expected, placement, before)
            return (Failure("failed", reason), float("inf")) if reason else (None, found.nmse)

    def _compute(
        self, placement: Placement, fault: tuple[Tensor, int] | None, unwritten: int
    ) -> tuple[list[Bytes], Failure | None]:
        """Fills leafs and results, and computes; all bytes from before, and what was wrongly raised, if anything."""
        for root in placement.roots:
            if root.op is None:
                placement.write(root, self.values[root])
            elif not placement.is_alias(root):
                placement.clear(root, unwritten)
        before, device = placement.snapshot(), self.stream.device
        try:
            self.stream.compute(self.graph, placement.allocation)
            self.stream.synchronize()
        except GGPlugError as error:
            named = fault is not None and _names(error, *fault)
            return before, None if named else of_exception(error, device)
        except Exception as error:
            failure = of_exception(error, device)
            return before, failure._replace(reason=f"an error that is no GGPlugError: {failure.reason}")
        if fault is not None:
            what = f"nothing was raised, though {fault[0]!r} has the id {fault[1]}, which is out of range"
            return before, Failure("failed", what)
        return before, None


def _names(error: GGPlugError, node: Tensor, got: int) -> bool:
    """Whether an error is the one that the contract has for an id out of range."""
    same = error.tensor is node and (error.op, error.got, error.wanted) == (node.op, got, limit_of_ids(node))
    return isinstance(error, ComputeError) and same and str(got) in str(error)
