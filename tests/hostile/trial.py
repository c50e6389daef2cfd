"""One case, computed twice over different garbage and judged."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug.backend import Buffer, Decline
from ggplug.errors import BufferUseError, ComputeError, GGPlugError, ParameterError, PlacementError, UnsupportedOpError
from ggplug.memory.allocation import Allocation
from ggplug.memory.layout import PERSISTENT
from ggplug.nodes.hazards import written_sources
from ggplug.ops.views import View
from ggplug.tensor import Tensor

from .draw import Case, build, content
from .expect import Expected
from .guard import Place
from .machine import Machine
from .outcome import Fault, Outcome
from .verdict import judge_leafs, judge_memory, judge_others, judge_values, judge_vast, packed, same_again

Bytes = npt.NDArray[np.uint8]

GARBAGE = (0xFF, 0x3D)
"""What fills bytes that must not matter, in the first and in the second computation of a case."""

DIRECT = ("plan", "stream")
"""The routes on which every tensor of the graph lies in memory of its own, which the trial laid out."""


class Trial:
    """One case on a machine."""

    def __init__(self, case: Case, machine: Machine) -> None:
        self.case = case
        self.machine = machine
        self.direct = case.route in DIRECT
        self.expected: Expected | None = None
        self.raw: dict[Tensor, Bytes] = {}
        """The bytes that the leafs hold in the computation that is under way."""
        self.results: list[dict[Tensor, Bytes]] = []
        """For each computation the packed elements of the nodes that could be read."""

    def outcome(self) -> Outcome:
        """Computes the case; raises Fault for what must not be."""
        case = self.case
        try:
            self.built = build(case)
        except GGPlugError as error:
            if case.promised:
                said = f"the op refuses what its docstring promises to take: {spell(error)}"
                raise Fault("refused", said) from error
            return Outcome("refused", spell(error))
        if case.vast:
            judge_vast(case.drawn.sources, case.vast)
        graph = self.built.graph
        answers = [self.machine.device.supports_op(node) for node in graph.nodes]
        declined = next((a for a in answers if isinstance(a, Decline)), None)
        if case.read_only:
            return self._refused_write(declined)
        self.machine.set_threads(case.threads)
        raised = ""
        for run in (0, 1):
            with self._placed(run) as places:
                if run == 0:
                    self._place_outside(places)
                    judge_leafs(self.built, self.raw, places)
                error = self._compute(places, run)
            if declined is not None and (error is not None or case.route != "fallback"):
                if error is None and all(not n.size for n, a in zip(graph.nodes, answers, strict=True) if not a):
                    continue  # nothing had to be computed
                if not isinstance(error, (UnsupportedOpError, PlacementError)):
                    raise Fault("declined", f"declined ({declined.reason}), but then: {_trace(error)}") from error
                return Outcome("declined", declined.reason)
            raised = self._judge_error(error)
        same_again(graph, self.results, self.expected)
        return Outcome("raised" if raised else "right", raised)

    # -- memory ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _placed(self, run: int, read_only: str = "") -> Iterator[dict[Tensor, Place]]:
        """Places for all roots; leafs hold their values, results hold garbage."""
        case, graph = self.case, self.built.graph
        number_of = self._numbers()
        places: dict[Tensor, Place] = {}
        self.raw = {}
        try:
            for position in dict.fromkeys(graph.roots):
                root = graph.tensors[position]
                if root.op is not None:
                    if self.direct:
                        garbage = np.full(root.nbytes, GARBAGE[run], np.uint8)
                        places[root] = self.machine.place(garbage, case.where[0], GARBAGE[run])
                    continue
                number = number_of[root]
                written = number in case.cls.writes
                # What a node is computed from is no garbage, nor what a window may show.
                matters = case.made_by[number] != "leaf" or case.cls is View
                self.raw[root] = content(case, self.built, root, GARBAGE[1 if matters else run])
                # What is written has to lie where the device computes, and all of it in one memory.
                owned = case.owned[min(case.cls.writes) if written else number]
                host = not self.direct and not owned and (not written or case.route == "fallback")
                protected = read_only if written else ""
                places[root] = self.machine.place(
                    self.raw[root], case.where[number], GARBAGE[run], protected, host=host or bool(protected)
                )
            for leaf in self.raw:
                if not self.direct or case.owned[number_of[leaf]]:
                    self._place(leaf, places[leaf])
            yield places
        finally:
            for leaf in self.raw:
                leaf.place(None)
            for place in places.values():
                place.free()

    def _numbers(self) -> dict[Tensor, int]:
        """Of each leaf the number of its source; of one that is written the source that is."""
        writes = self.case.cls.writes
        return dict(sorted(self.built.leafs, key=lambda each: each[1] in writes))

    def _place(self, leaf: Tensor, place: Place) -> None:
        """Makes a leaf persistent, now and then where it is not aligned, if that is taken."""
        number = self._numbers()[leaf]
        if self.case.where[number] == "odd":
            by = place.odd()
            try:
                leaf.place(place.buffer, place.offset)
            except (BufferUseError, ParameterError):
                place.odd(-by)
            else:
                return
        leaf.place(place.buffer, place.offset)

    def _place_outside(self, places: Mapping[Tensor, Place]) -> None:
        """Places a leaf where there are no bytes for it, which has to be refused and to leave it where it is."""
        by = self.case.outside
        leaf = next((leaf for leaf in self.raw if leaf.buffer is not None and leaf.nbytes), None)
        if by is None or leaf is None:
            return
        buffer, offset = leaf.buffer, leaf.offset
        assert buffer is not None
        wrong = by if by < 0 else buffer.size - leaf.nbytes + by
        try:
            leaf.place(buffer, wrong)
        except BufferUseError:
            if (leaf.buffer, leaf.offset) != (buffer, offset):
                raise Fault("place", f"{leaf!r} lost its place when another one was refused") from None
        else:
            leaf.place(buffer, offset)
            said = f"offset {wrong} of a buffer of {buffer.size} bytes for {leaf.nbytes} bytes"
            raise Fault("place", f"place accepts {said}")

    def _sharing(self) -> Tensor | None:
        """The source in whose place the result lies, if the op and its layout allow that."""
        node, inplace = self.built.node, self.case.inplace
        if inplace is None or not self.direct or inplace >= len(node.src) or not node.size:
            return None
        source = node.src[inplace]
        if source is None or source.root.op is not None:
            return None
        if any(other is not source and other is not None and other.root is source.root for other in node.src):
            return None
        same = (source.type, source.ne, source.nb) == (node.type, node.ne, node.nb)
        return source if same and node.src.count(source) == 1 else None

    def _home(self, tensor: Tensor) -> tuple[Tensor, int]:
        """Whose bytes a tensor's are, and from which on: its root's, or those of the source in whose place it lies."""
        shared = self._sharing()
        if shared is not None and tensor.root is self.built.node:
            return shared.root, shared.view_offset + tensor.view_offset
        return tensor.root, tensor.view_offset

    def _allocation(self, places: Mapping[Tensor, Place]) -> Allocation:
        graph = self.built.graph
        buffers: list[Buffer] = []
        slots, offsets = [], []
        for tensor in graph.tensors:
            root, shift = self._home(tensor)
            if root.buffer is not None and tensor.root is root:
                slots.append(PERSISTENT)
                offsets.append(shift)
                continue
            # A result in the place of a persistent source gets its buffer, as from an allocator.
            buffer, offset = (root.buffer, root.offset) if root.buffer is not None else places[root].at()
            buffers.append(buffer)
            slots.append(len(buffers) - 1)
            offsets.append(offset + shift)
        return Allocation(graph, buffers, slots, offsets)

    # -- computing ---------------------------------------------------------------------------------

    def _compute(self, places: dict[Tensor, Place], run: int) -> Exception | None:
        """Computes; what was raised, or None.  Judges what came out and everything around it."""
        error: Exception | None = None
        try:
            ROUTES[self.case.route](self, places)
        except Exception as raised:
            error = raised
        shared = self._sharing()
        if run == 0:
            with contextlib.suppress(GGPlugError):
                self.expected = Expected(self.built.graph, self.raw, self._seen(places) if self.direct else {})
        if error is not None and not isinstance(error, ComputeError):
            judge_memory(self.built, self.raw, places, None, shared, changed=False)
            return error
        if error is None or (self.expected is not None and self.expected.bad):
            judge_memory(self.built, self.raw, places, self.expected, shared, changed=True)
            found = self._results(places) if self.direct else self._result() if error is None else {}
            if error is not None and self.expected is not None:
                # What comes after the node that failed may not have been computed.
                last = self.built.graph.nodes.index(next(iter(self.expected.bad)))
                found = {node: raw for node, raw in found.items() if node in self.built.graph.nodes[: last + 1]}
            if run == 0 and self.expected is not None:
                judge_values(self.built, self.expected, found, own_sources=self.direct)
                judge_others(self.built, self.expected, places)
            self.results.append(found)
        return error

    def _seen(self, places: Mapping[Tensor, Place]) -> dict[Tensor, Bytes]:
        """The bytes of all roots that were computed, unless a later node wrote into them."""
        graph = self.built.graph
        written = {source.root for node in graph.nodes for source in written_sources(node)}
        found = {}
        for node in graph.nodes:
            if node.view_src is None and node not in written:
                home, shift = self._home(node)
                found[node] = places[home].get()[shift : shift + node.nbytes]
        return found

    def _results(self, places: Mapping[Tensor, Place]) -> dict[Tensor, Bytes]:
        """The packed elements of each node that computes something, unless a later one wrote into them."""
        graph, found = self.built.graph, {}
        written = {source.root for node in graph.nodes for source in written_sources(node)}
        for node in graph.nodes:
            if node.op is None or node.op.is_view or (node.root in written and not node.op.writes):
                continue
            home, shift = self._home(node)
            found[node] = packed(places[home].get()[shift:], node)
        return found

    def _result(self) -> dict[Tensor, Bytes]:
        """The packed elements of the graph's end, read as a user reads them."""
        node = self.built.result
        with contextlib.suppress(gg.TypeMismatchError):  # a type without decoder
            shape = node.numpy().shape
            if shape != node.shape:
                raise Fault("numpy", f"numpy() of {node!r} has shape {shape}")
        return {node: packed(np.frombuffer(node.tobytes(), np.uint8), node)}

    def _by_plan(self, places: Mapping[Tensor, Place]) -> None:
        stream, graph = self.machine.stream, self.built.graph
        allocation = self._allocation(places)
        plan = stream.plan(graph)
        try:
            plan.rebind(graph, allocation)
            try:
                plan.compute()
            finally:
                stream.synchronize()
        finally:
            plan.free()

    def _by_stream(self, places: Mapping[Tensor, Place]) -> None:
        allocation = self._allocation(places)
        try:
            self.machine.stream.compute(self.built.graph, allocation)
        finally:
            self.machine.stream.synchronize()

    def _by_scheduler(self, places: Mapping[Tensor, Place]) -> None:
        self.built.result.set_output()
        self.machine.scheduler.compute(self.built.graph)

    def _by_fallback(self, places: Mapping[Tensor, Place]) -> None:
        self.built.result.set_output()
        self.machine.fallback.compute(self.built.graph)

    def _by_compute(self, places: Mapping[Tensor, Place]) -> None:
        gg.compute(self.built.result, backends=[self.machine.stream])

    def _judge_error(self, error: Exception | None) -> str:
        """What was raised as it has to be; raises Fault for what must not be raised, or was not."""
        bad = self.expected.bad if self.expected is not None else {}
        if error is None:
            if bad:
                raise Fault("indices", f"indices of {next(iter(bad))!r} are out of range, and nothing was raised")
            return ""
        if not isinstance(error, GGPlugError):
            raise Fault(f"untyped {type(error).__name__}", _trace(error)) from error
        if (bad and isinstance(error, ComputeError)) or self.expected is None:
            return spell(error)  # as it has to be, or what the references themselves refuse
        raise Fault(f"raises {type(error).__name__}", _trace(error)) from error

    # -- writing into read-only memory -------------------------------------------------------------

    def _refused_write(self, declined: Decline | None) -> Outcome:
        """Computing into read-only memory raises, and the memory stays as it was."""
        case, node = self.case, self.built.node
        if self.direct and not self.machine.is_host:
            return Outcome("declined", "read-only memory is host memory")
        if case.first_writable and declined is None:
            with self._placed(0) as places, contextlib.suppress(GGPlugError):
                ROUTES[case.route](self, places)
        error: Exception | None = None
        with self._placed(1, case.read_only) as places:
            try:
                ROUTES[case.route](self, places)
            except Exception as raised:
                error = raised
            if error is not None and not isinstance(error, GGPlugError):
                raise Fault(f"untyped {type(error).__name__}", _trace(error)) from error
            for root, before in self.raw.items():
                if not np.array_equal(before, places[root].get()):
                    raise Fault("read-only", f"read-only memory ({case.read_only}) was written by {node!r}")
        nothing = not node.size or any(s is not None and not s.size for s in node.src)
        if error is None and not nothing:
            said = f"{node!r} writes into read-only memory ({case.read_only}), and nothing was raised"
            raise Fault("read-only", said)
        return Outcome("raised", spell(error)) if error is not None else Outcome("right")


ROUTES: dict[str, Callable[[Trial, dict[Tensor, Place]], None]] = {
    "plan": Trial._by_plan,
    "stream": Trial._by_stream,
    "scheduler": Trial._by_scheduler,
    "fallback": Trial._by_fallback,
    "compute": Trial._by_compute,
}


def spell(error: BaseException | None) -> str:
    """An error in a line."""
    return "nothing was raised" if error is None else f"{type(error).__name__}: {error}"


def _trace(error: BaseException | None) -> str:
    return spell(error) if error is None else "".join(traceback.format_exception(error))
