"""Runs cases in this process.

``python -m tests.hostile.run DEVICE`` is the child: it reads cases from standard input, a line of JSON each, and answers
each with a line, so that whoever reads knows which case ended the process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug.backend import Buffer, Decline, Device
from ggplug.errors import BufferUseError, ComputeError, GGPlugError, PlacementError, UnsupportedOpError
from ggplug.graph import Graph
from ggplug.host import HOST
from ggplug.memory.allocation import Allocation
from ggplug.memory.layout import PERSISTENT
from ggplug.ops.base import Array
from ggplug.ops.views import View
from ggplug.scheduler import Scheduler
from ggplug.tensor import Tensor, strided
from ggplug.testing.oracle import can_interpret, decoded, moves_bits

from .draw import Case, Target, build, draw, fill, target_of
from .expect import Expected, difference, tolerance, untouched
from .guard import DevicePlace, GuardedMemory, HostPlace, Place

Bytes = npt.NDArray[np.uint8]

GARBAGE = (0xFF, 0x3D)
"""What fills bytes that must not matter, in the first and in the second computation of a case."""


class Fault(Exception):
    """What a case found; ``kind`` says in a word or two what sort of fault it is."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclasses.dataclass
class Outcome:
    """How a case ended: "right", "refused" (by the op), "declined" (by the device), "raised" (as it has to), "fault"."""

    how: str
    text: str = ""
    kind: str = ""
    uses: list[Target] = dataclasses.field(default_factory=list)


class Machine:
    """A device with its streams and schedulers, which live as long as the process."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream = device.init()
        self.is_host = device.buffer_type.is_host
        types = [GuardedMemory(f"{device.name} guarded", device)] if self.is_host else None
        self.scheduler = Scheduler([self.stream], buffer_types=types)
        self._threads = 0

    def set_threads(self, count: int) -> None:
        """Computes with so many threads, where the device can be told."""
        if count != self._threads and hasattr(self.stream, "set_n_threads"):
            self.stream.set_n_threads(count)
        self._threads = count

    def wrap(self, memory: Any) -> Buffer:
        """Host memory as a buffer that the device's own streams work in."""
        if self.device.capabilities.buffer_from_host:
            return self.device.buffer_from_host(memory)
        return HOST.wrap(memory)

    def place(self, raw: Bytes, where: str, pattern: int, read_only: str = "", *, host: bool = False) -> Place:
        """Guarded bytes: in the device's own memory, or in host memory."""
        if host or self.is_host:
            return HostPlace(HOST.wrap if host else self.wrap, raw, where, pattern, read_only)
        return DevicePlace(self.device.buffer_type, raw, where, pattern)

    def free(self) -> None:
        """Gives streams and schedulers back."""
        self.scheduler.free()
        self.stream.free()


def run(name: str, machine: Machine, given: Mapping[str, Any] | None = None) -> Outcome:
    """Runs a case; never raises but for what ends a process."""
    case = None
    try:
        try:
            case = draw(name, given)
        except GGPlugError as error:
            return Outcome("refused", _spell(error), uses=[target_of(name)])
        outcome = _Run(case, machine).outcome()
    except Fault as fault:
        outcome = Outcome("fault", str(fault), fault.kind)
    except GGPlugError as error:
        outcome = Outcome("fault", traceback.format_exc(), f"raises {type(error).__name__}")
    except Exception as error:
        outcome = Outcome("fault", traceback.format_exc(), f"untyped {type(error).__name__}")
    if case is not None:
        outcome.uses = case.uses
    return outcome


class _Run:
    """One case."""

    def __init__(self, case: Case, machine: Machine) -> None:
        self.case = case
        self.machine = machine
        self.expected: Expected | None = None
        self.results: list[dict[Tensor, Bytes]] = []
        """For each computation the bytes of each node's elements."""

    def outcome(self) -> Outcome:
        case = self.case
        try:
            self.built = build(case)
        except GGPlugError as error:
            said = f"{type(error).__name__}: {error}"
            if case.promised:
                raise Fault("refused", f"the op refuses what its docstring promises to take: {said}") from error
            return Outcome("refused", said)
        answers = [self.machine.device.supports_op(node) for node in self.built.graph.nodes]
        declined = next((a for a in answers if isinstance(a, Decline)), None)
        if case.read_only:
            return self._refused_write(declined)
        self.machine.set_threads(case.threads)
        raised = ""
        for turn in (0, 1):
            with self._placed(turn) as places:
                if turn == 0:
                    self._place_outside(places)
                    self._read_leafs(places)
                error = self._compute(places, turn)
                if declined is not None:
                    if not isinstance(error, (UnsupportedOpError, PlacementError)):
                        raise Fault("declined", f"declined ({declined.reason}), but then: {_spell(error)}") from error
                    return Outcome("declined", declined.reason)
                raised = self._judge_error(error)
                if not raised:
                    continue
        self._compare_turns()
        return Outcome("raised" if raised else "right", raised)

    # -- memory ------------------------------------------------------------------------------------

    def _raw(self, turn: int) -> dict[Tensor, Bytes]:
        found = {}
        for leaf, number in self.built.leafs:
            source, how = self.case.drawn.sources[number], self.case.lays[number]
            assert source is not None
            assert how is not None
            random = np.random.default_rng(self.case.draw.number(f"{source.name}.content"))
            # What a node is computed from is no garbage, nor what a window may show.
            matters = self.case.made_by[number] != "leaf" or self.case.cls is View
            around = GARBAGE[1 if matters else turn]
            found[leaf] = fill(leaf, source, how, random, around)
        return found

    @contextlib.contextmanager
    def _placed(self, turn: int, read_only: str = "") -> Iterator[dict[Tensor, Place]]:
        """Places for all roots; leafs hold their values, results hold garbage."""
        case, graph = self.case, self.built.graph
        raw = self._raw(turn)
        places: dict[Tensor, Place] = {}
        number_of = dict(self.built.leafs)
        direct = case.route in ("plan", "stream")
        try:
            for position in dict.fromkeys(graph.roots):
                root = graph.tensors[position]
                number = number_of.get(root, 0)
                if root in raw:
                    written = bool(case.cls.writes) and number == case.cls.writes[0]
                    # What is written has to lie where the device computes.
                    host = not direct and not case.owned[number] and not written
                    protected = read_only if written else ""
                    places[root] = self.machine.place(raw[root], case.where[number], GARBAGE[turn], protected, host=host)
                elif direct:
                    content = np.full(root.nbytes, GARBAGE[turn], np.uint8)
                    places[root] = self.machine.place(content, case.where[0], GARBAGE[turn])
            self._raw_now = raw
            for leaf in raw:
                if not direct or case.owned[number_of[leaf]]:
                    leaf.place(places[leaf].buffer, places[leaf].offset)
            yield places
        finally:
            for leaf in raw:
                leaf.place(None)
            for place in places.values():
                place.free()

    def _place_outside(self, places: Mapping[Tensor, Place]) -> None:
        """Places a leaf where there are no bytes for it, which has to be refused and leave it where it is."""
        by = self.case.outside
        if by is None:
            return
        for leaf, _ in self.built.leafs:
            if leaf.buffer is None or not leaf.nbytes:
                continue
            place = places[leaf]
            wrong = by if by < 0 else place.buffer.size - leaf.nbytes + by
            try:
                leaf.place(place.buffer, wrong)
            except BufferUseError:
                if (leaf.buffer, leaf.offset) != (place.buffer, place.offset):
                    raise Fault("place", f"{leaf!r} lost its place when another one was refused") from None
            else:
                leaf.place(place.buffer, place.offset)
                raise Fault(
                    "place", f"place accepts offset {wrong} of a buffer of {place.buffer.size} bytes for {leaf.nbytes} bytes"
                )
            return

    def _read_leafs(self, places: Mapping[Tensor, Place]) -> None:
        """Values of sources come back as they were stored, empty ones too."""
        for source in self.built.shown:
            if source is None or source.root.buffer is None:
                continue
            try:
                got = source.numpy()
            except GGPlugError as error:
                if not can_interpret(source, written=False):
                    raise Fault("numpy", f"numpy() of {source!r} raises {_spell(error)}") from error
                continue
            if got.shape != source.shape:
                raise Fault("numpy", f"numpy() of {source!r} has shape {got.shape}")
            raw = self._raw_now[source.root] if source.root in self._raw_now else None
            if raw is not None and source.size:
                want = decoded(strided(raw[source.view_offset :], source), source).reshape(source.shape)
                if not np.array_equal(got.astype(want.dtype), want, equal_nan=want.dtype.kind == "f"):
                    raise Fault("numpy", f"numpy() of {source!r} gives other values than were stored")
            if not source.size and not source.is_view and not can_interpret(source, written=True):
                source.set(np.empty(source.shape, np.float32 if source.type.dtype.kind != "i" else source.type.dtype))

    # -- computing ---------------------------------------------------------------------------------

    def _compute(self, places: dict[Tensor, Place], turn: int) -> Exception | None:
        """Computes; what was raised, or None.  Keeps what came out, and looks at everything around it."""
        error: Exception | None = None
        try:
            ROUTES[self.case.route](self, places)
        except Exception as raised:
            error = raised
        if error is not None and not isinstance(error, ComputeError):
            self._judge_places(places, changed=False)
            return error
        seen = self._seen(places) if self.case.route in ("plan", "stream") else {}
        if turn == 0:
            with contextlib.suppress(GGPlugError):
                self.expected = Expected(self.built.graph, self._raw_now, seen)
        if error is None or (self.expected is not None and self.expected.bad):
            self._judge_places(places, changed=True)
            found = self._results(places, failed=error is not None)
            if turn == 0:
                self._judge_results(found)
            self.results.append(found)
        return error

    def _seen(self, places: Mapping[Tensor, Place]) -> dict[Tensor, Bytes]:
        """The bytes of all roots that were computed, unless a later node wrote into them."""
        graph = self.built.graph
        written = {node.root for node in graph.nodes if node.op is not None and node.op.writes}
        found = {}
        for node in graph.nodes:
            if node.view_src is None and node not in written:
                home, shift = self._home(node)
                found[node] = places[home].get()[shift : shift + node.nbytes]
        return found

    def _home(self, node: Tensor) -> tuple[Tensor, int]:
        """Whose bytes a node's are, and from which on: its root's, or those of the source in whose place it lies."""
        shared = self._sharing()
        if shared is not None and node.root is self.built.node:
            return shared.root, shared.view_offset + node.view_offset
        return node.root, node.view_offset

    def _allocation(self, places: Mapping[Tensor, Place]) -> Allocation:
        graph = self.built.graph
        buffers: list[Buffer] = []
        slots, offsets = [], []
        for tensor in graph.tensors:
            root, shift = self._home(tensor)
            if root.buffer is not None:
                # A result in the place of a persistent source is told its buffer, as an allocator would.
                if tensor.root is root:
                    slots.append(PERSISTENT)
                    offsets.append(shift)
                    continue
                buffers.append(root.buffer)
                slots.append(len(buffers) - 1)
                offsets.append(root.offset + shift)
            else:
                buffers.append(places[root].buffer)
                slots.append(len(buffers) - 1)
                offsets.append(places[root].offset + shift)
        return Allocation(graph, buffers, slots, offsets)

    def _sharing(self) -> Tensor | None:
        """The source in whose place the result lies, if the op and its layout allow that."""
        case, node = self.case, self.built.node
        if case.shares is None or case.route not in ("plan", "stream"):
            return None
        source = node.src[case.shares] if case.shares < len(node.src) else None
        if source is None or node.src.count(source) > 1 or not node.size:
            return None
        same = (source.type, source.ne, source.nb) == (node.type, node.ne, node.nb)
        return source if same and source.root.op is None else None

    def _by_plan(self, places: Mapping[Tensor, Place]) -> None:
        plan = self.machine.stream.plan(self.built.graph)
        try:
            allocation = self._allocation(places)
            plan.rebind(self.built.graph, allocation)
            try:
                plan.compute()
            finally:
                self.machine.stream.synchronize()
        finally:
            plan.free()

    def _by_stream(self, places: Mapping[Tensor, Place]) -> None:
        allocation = self._allocation(places)
        try:
            self.machine.stream.compute(self.built.graph, allocation)
        finally:
            self.machine.stream.synchronize()

    def _by_scheduler(self, places: Mapping[Tensor, Place]) -> None:
        self._mark()
        self.machine.scheduler.compute(self.built.graph)

    def _by_compute(self, places: Mapping[Tensor, Place]) -> None:
        self._mark()
        gg.compute(self.built.result, backends=[self.machine.stream])

    def _mark(self) -> None:
        self.built.result.set_output()

    # -- judging -----------------------------------------------------------------------------------

    def _judge_error(self, error: Exception | None) -> str:
        """What was raised as it has to be; raises Fault for what must not be raised, or was not."""
        bad = self.expected.bad if self.expected is not None else {}
        if error is None:
            if bad:
                node = next(iter(bad))
                raise Fault("indices", f"indices of {node!r} are out of range, and nothing was raised")
            return ""
        if not isinstance(error, GGPlugError):
            raise Fault(f"untyped {type(error).__name__}", _trace(error)) from error
        if bad and isinstance(error, ComputeError):
            return _spell(error)
        raise Fault(f"raises {type(error).__name__}", _trace(error)) from error

    def _judge_places(self, places: Mapping[Tensor, Place], *, changed: bool) -> None:
        """Nothing beside the tensors was written, and no leaf but what the op writes, where it writes it."""
        built = self.built
        written: dict[Tensor, list[Tensor]] = {}
        if changed:
            for node in built.graph.nodes:
                if node.op is not None and node.op.writes:
                    written.setdefault(node.root, []).append(node)
        shared = self._sharing()
        for root, place in places.items():
            stray = place.stray()
            if stray:
                raise Fault("beside", f"beside {root!r}: {stray}")
            if root not in self._raw_now:
                continue
            before, after = self._raw_now[root], place.get()
            keep = np.ones(before.size, bool)
            if root in written:
                keep = untouched(root, written[root])
            if shared is not None and shared.root is root:
                keep &= untouched(root, [shared])
            wrong = np.flatnonzero((before != after) & keep)
            if wrong.size:
                what = "between the elements that are written" if root in written else "of a tensor that is only read"
                raise Fault("overwritten", f"{wrong.size} bytes {what} were changed: byte {int(wrong[0])} of {root!r}")
            if root in written and self.expected is not None:
                self._judge_kept(written[root][-1], before, after)

    def _judge_kept(self, node: Tensor, before: Bytes, after: Bytes) -> None:
        """Of a tensor that was written, elements that keep their value keep their bits."""
        assert self.expected is not None
        if node.op is None or node.op.name != "set_rows" or not node.size:
            return
        old = strided(before[node.view_offset :], node)
        new = strided(after[node.view_offset :], node)
        ids = node.src[2]
        assert ids is not None
        touched = np.zeros(old.shape[:3], bool)
        chosen = self.expected.values[ids]
        for k in range(touched.shape[0]):
            for j in range(touched.shape[1]):
                some = chosen[0, k % chosen.shape[1], j % chosen.shape[2]]
                touched[k, j, some[(some >= 0) & (some < node.ne[1])]] = True
        if (np.ascontiguousarray(old[~touched]).view(np.uint8) != np.ascontiguousarray(new[~touched]).view(np.uint8)).any():
            raise Fault("overwritten", f"rows of {node!r} that no index names were changed")

    def _results(self, places: Mapping[Tensor, Place], *, failed: bool) -> dict[Tensor, Bytes]:
        """The packed elements of each node that can be read."""
        graph, found = self.built.graph, {}
        if self.case.route in ("plan", "stream"):
            overwritten = {node.root for node in graph.nodes if node.op is not None and node.op.writes}
            for node in graph.nodes:
                if node.op is None or node.op.is_view or (node.root in overwritten and not node.op.writes):
                    continue
                root, shift = self._home(node)
                found[node] = _elements(places[root].get()[shift:], node)
        elif not failed:
            node = self.built.result
            found[node] = _elements(np.frombuffer(node.tobytes(), np.uint8), node)
            got = _numpy(node)
            if got is not None and got.shape != node.shape:
                raise Fault("numpy", f"numpy() of {node!r} has shape {got.shape}")
        return found

    def _judge_results(self, found: Mapping[Tensor, Bytes]) -> None:
        """Each node's values are the oracle's, or near enough."""
        expected = self.expected
        if expected is None:
            return
        for node, raw in found.items():
            if node.op is None or not node.size or _is_open(node):
                continue
            # A scheduler shows the end only, so that the errors of several nodes come together.
            alone = self.case.route in ("plan", "stream") or len(self.built.graph.nodes) == 1
            if moves_bits(node) and (alone or node not in expected.values):
                wrong = np.flatnonzero(expected.bytes[node] != raw)
                if wrong.size:
                    raise Fault("bits", f"{node!r} moves elements, but {wrong.size} of {raw.size} bytes are not kept")
                continue
            blocks = raw.view(node.type.dtype).reshape(*node.ne[:0:-1], -1)
            with np.errstate(all="ignore"):
                got, want = decoded(blocks, node), expected.values[node]
                sources = [None if s is None else expected.values.get(s) for s in node.src]
                allowed = tolerance(self.built.node, expected.values)
            reason = difference(node, got, want, sources, allowed, alone=alone)
            if reason:
                raise Fault("values", f"{node!r}: {reason}")

    def _compare_turns(self) -> None:
        """Both computations give the same bits, whatever lay in the memory around."""
        if len(self.results) < 2:
            return
        first, second = self.results
        for node in first:
            if node in second and not _is_open(node) and not np.array_equal(first[node], second[node]):
                raise Fault("not the same", f"{node!r} is not the same when it is computed again over other garbage")

    # -- writing into read-only memory -------------------------------------------------------------

    def _refused_write(self, declined: Decline | None) -> Outcome:
        """Computing into read-only memory raises, and the memory stays as it was."""
        case = self.case
        if not self.machine.is_host:
            return Outcome("declined", "read-only memory is host memory")
        if case.first_writable and declined is None:
            with self._placed(0) as places:
                with contextlib.suppress(GGPlugError):
                    ROUTES[case.route](self, places)
        with self._placed(1, case.read_only) as places:
            node = self.built.node
            error: Exception | None = None
            try:
                ROUTES[case.route](self, places)
            except Exception as raised:
                error = raised
            if error is not None and not isinstance(error, GGPlugError):
                raise Fault(f"untyped {type(error).__name__}", _trace(error)) from error
            for root, place in places.items():
                if root in self._raw_now and not np.array_equal(self._raw_now[root], place.get()):
                    raise Fault("read-only", f"read-only memory ({case.read_only}) was written by {node!r}")
            nothing = not node.size or any(s is not None and not s.size for s in node.src)
            if error is None and not nothing:
                raise Fault("read-only", f"{node!r} writes into read-only memory ({case.read_only}), and nothing was raised")
        return Outcome("raised", _spell(error)) if error is not None else Outcome("right")


ROUTES: dict[str, Callable[[_Run, dict[Tensor, Place]], None]] = {
    "plan": _Run._by_plan,
    "stream": _Run._by_stream,
    "scheduler": _Run._by_scheduler,
    "compute": _Run._by_compute,
}


def _is_open(node: Tensor) -> bool:
    """Whether values have no one answer: elements that are written share bytes."""
    if node.op is None or not node.op.writes or not node.size:
        return False
    count = np.zeros(node.root.nbytes, np.uint8)
    shown = strided(count[node.view_offset :], node)
    shown[...] = np.full((), 1, np.uint8).view(np.uint8)[0] if shown.dtype == np.uint8 else np.frombuffer(
        b"\1" * shown.dtype.itemsize, shown.dtype)[0]
    return int(count.sum()) != shown.size * shown.dtype.itemsize


def _elements(raw: Bytes, node: Tensor) -> Bytes:
    """The elements of a node, packed."""
    if not node.size:
        return np.empty(0, np.uint8)
    return np.ascontiguousarray(strided(np.ascontiguousarray(raw), node)).reshape(-1).view(np.uint8).copy()


def _numpy(node: Tensor) -> Array | None:
    try:
        return node.numpy()
    except GGPlugError:
        return None


def _spell(error: BaseException | None) -> str:
    return "nothing was raised" if error is None else f"{type(error).__name__}: {error}"


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def main(arguments: list[str]) -> None:
    """The child: answers each case with a line of JSON."""
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed is no answer
    machine = Machine(gg.device(arguments[0]))
    print(json.dumps({"ready": machine.device.description}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        outcome = run(asked["case"], machine, asked.get("given"))
        print(json.dumps(dataclasses.asdict(outcome)), file=answers)
    machine.free()


if __name__ == "__main__":
    main(sys.argv[1:])
