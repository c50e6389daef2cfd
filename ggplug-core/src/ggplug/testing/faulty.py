"""Devices with one fault each, as real ones have had.  The suite is worth as much as it finds of these.

``FAULTS`` lists them with the ops, clauses or ``"graph"``, that have to find each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ggplug.backend import (
    Accept,
    Backend,
    Buffer,
    BufferType,
    Bytes,
    Decline,
    Device,
    Event,
    Operand,
    Plan,
    Support,
    WalkPlan,
)
from ggplug.errors import ComputeError, UnsupportedOpError
from ggplug.graph import Graph
from ggplug.host import HostBuffer, HostBufferType
from ggplug.memory.allocation import Allocation
from ggplug.ops.base import Array, Op
from ggplug.ops.elementwise import Binary
from ggplug.tensor import Spec, Tensor
from ggplug.testing.fake import FakeBackend, FakeBuffer, FakeBufferType, FakeDevice, FakeEvent, FakePlan
from ggplug.testing.oracle import decoded, round_into
from ggplug.testing.reference import ReferenceDevice, interpret
from ggplug.types import BufferUsage

Kernel = Callable[..., None]


class Fault(NamedTuple):
    """A fault: ``make`` gives a device that has it; ``found_by`` names ops, clauses or ``"graph"``.  Each finds it."""

    name: str
    make: Callable[[], Device]
    found_by: tuple[str, ...]


class FaultyKernels(ReferenceDevice):
    """The reference device with other kernels."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__("faulty")
        self._kernel = kernel

    def match(self, node: Tensor) -> Any:
        found = super().match(node)
        return found if isinstance(found, Decline) else self._kernel


# -- kernels ---------------------------------------------------------------------------------------


def _last_element_wrong(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    values = decoded(dst.array(), dst.tensor)
    values.reshape(-1)[-1:] += 1
    round_into(dst.array(), dst.tensor, values)


def _slightly_wrong(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    values = decoded(dst.array(), dst.tensor)
    if values.dtype.kind == "f":
        round_into(dst.array(), dst.tensor, values * 1.001)


def _in_half_precision(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    values = decoded(dst.array(), dst.tensor)
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            round_into(dst.array(), dst.tensor, values.astype(np.float16).astype(np.float64))


def _writes_behind_the_end(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    dst.buffer.bytes(dst.offset + dst.tensor.nbytes, 4)[:] = 0


def _writes_before_the_beginning(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    dst.buffer.bytes(dst.offset - 1, 1)[:] = 0


def _leaves_the_tail(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Works eight elements at a time and forgets the rest of each row."""
    before = dst.array().copy()
    interpret(op, dst, *src)
    if not op.writes:
        whole = dst.array().shape[-1] // 8 * 8
        dst.array()[..., whole:] = before[..., whole:]


def _leaves_the_last_row(op: Op, dst: Operand, *src: Operand | None) -> None:
    before = dst.array().copy()
    interpret(op, dst, *src)
    if not op.writes and dst.tensor.ne[1] > 1:
        dst.array()[..., -1, :] = before[..., -1, :]


def _modifies_a_source(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    if src and src[0] is not None and not op.writes and src[0].tensor.nbytes:
        src[0].buffer.bytes(src[0].offset, 1)[:] ^= 0x01


def _packed(operand: Operand | None) -> Operand | None:
    """The operand as if its tensor were contiguous."""
    if operand is None or operand.tensor.is_contiguous():
        return operand
    flat = Tensor(Spec(operand.tensor.type, operand.tensor.ne, operand.tensor.rank))
    return Operand(flat, operand.buffer, operand.offset)


def _with_sources(op: Op, dst: Operand, src: tuple[Operand | None, ...], arrays: list[Array | None]) -> None:
    """The reference of changed sources."""
    values = [None if a is None or s is None else decoded(a, s.tensor) for a, s in zip(arrays, src, strict=True)]
    with np.errstate(all="ignore"):
        result = np.asarray(op.reference(*values)).reshape(dst.tensor.ne[::-1])
    round_into(dst.array(), dst.tensor, result)


def _ignores_strides(op: Op, dst: Operand, *src: Operand | None) -> None:
    packed = [_packed(operand) for operand in src]
    _with_sources(op, dst, src, [None if p is None else p.array().copy() for p in packed])


def _ignores_view_offsets(op: Op, dst: Operand, *src: Operand | None) -> None:
    moved = [None if s is None else Operand(s.tensor, s.buffer, s.offset - s.tensor.view_offset) for s in src]
    _with_sources(op, dst, src, [None if m is None else m.array().copy() for m in moved])


def _broadcasts_the_first_row(op: Op, dst: Operand, *src: Operand | None) -> None:
    if not isinstance(op, Binary):
        return interpret(op, dst, *src)
    arrays = [None if s is None else s.array().copy() for s in src]
    if arrays[1] is not None and arrays[1].shape != dst.array().shape:
        arrays[1][...] = arrays[1][:1, :1, :1, :]
    return _with_sources(op, dst, src, arrays)


def _clears_before_it_reads(op: Op, dst: Operand, *src: Operand | None) -> None:
    """Is right unless the result lies on a source, which the op allows."""
    if not op.writes:
        dst.array()[...] = np.zeros((), dst.array().dtype)
    interpret(op, dst, *src)


def _raises(op: Op, dst: Operand, *src: Operand | None) -> None:
    raise RuntimeError("illegal instruction")


def _declines_at_last(op: Op, dst: Operand, *src: Operand | None) -> None:
    raise UnsupportedOpError("not after all", op=op, reason="changed its mind")


def _writes_a_row_too_many(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    rows = dst.array()
    if op.writes and src[0] is not None and rows.shape[2] > 1:
        rows[..., 0, :] = rows[..., 1, :]


def _sorts_to_one_index(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    if op.name == "argsort":
        dst.array()[...] = dst.array()[..., :1]


# -- buffers ---------------------------------------------------------------------------------------


class _OtherBuffers(ReferenceDevice):
    """The reference device with other buffers."""

    def __init__(self, kind: Callable[[BufferType, int], Buffer]) -> None:
        super().__init__("faulty")
        self._buffer_type = _OtherBufferType("faulty", self, kind)


class _OtherBufferType(HostBufferType):
    def __init__(self, name: str, device: Device, kind: Callable[[BufferType, int], Buffer]) -> None:
        super().__init__(name, device)
        self._kind = kind

    def alloc(self, size: int) -> Any:
        if size > 1 << 40:
            return super().alloc(size)
        return self._kind(self, size)


def _memory(size: int, misaligned: int = 0) -> Bytes:
    block = np.empty(size + 256, np.uint8)
    start = -block.ctypes.data % 64 + misaligned
    return block[start : start + size]


class _Buffer(HostBuffer):
    def __init__(self, type: BufferType, size: int) -> None:
        super().__init__(type, _memory(size))


class _Misaligned(HostBuffer):
    def __init__(self, type: BufferType, size: int) -> None:
        super().__init__(type, _memory(size, 8))


class _ShortMemset(_Buffer):
    def memset(self, offset: int, size: int, value: int) -> None:
        super().memset(offset, size // 4 * 4, value)


class _UncheckedMemset(_Buffer):
    def memset(self, offset: int, size: int, value: int) -> None:
        assert self._memory is not None
        self._memory[max(offset, 0) : offset + max(size, 0)] = value


class _PackedRows(_Buffer):
    def set_2d(self, offset: int, data: Bytes, row_bytes: int, rows: int, stride: int) -> None:
        super().set_2d(offset, data, row_bytes, rows, row_bytes)


class _CopiesFromTheBeginning(_Buffer):
    def copy_from(self, source: Buffer, source_offset: int, offset: int, size: int) -> None:
        super().copy_from(source, 0, offset, size)


class _FreesTwice(_Buffer):
    def free(self) -> None:
        if self.freed:
            raise RuntimeError("double free")
        super().free()


class _FreesExports(_Buffer):
    def check_free(self) -> None:
        pass


class _LosesUsage(_Buffer):
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, BufferUsage.ANY if name == "usage" else value)


class _Greedy(ReferenceDevice):
    """Pretends that there is memory where there is none."""

    def __init__(self) -> None:
        super().__init__("faulty")
        self._buffer_type = _GreedyType("faulty", self)


class _GreedyType(HostBufferType):
    def alloc(self, size: int) -> HostBuffer:
        return super().alloc(min(size, 1 << 20))


# -- devices ---------------------------------------------------------------------------------------


class _Silent(ReferenceDevice):
    def match(self, node: Tensor) -> Any:
        found = super().match(node)
        return Decline("") if isinstance(found, Decline) else found


class _Boastful(ReferenceDevice):
    def supports_op(self, node: Tensor) -> Support:
        return Accept()


class _RefusesViews(ReferenceDevice):
    def supports_op(self, node: Tensor) -> Support:
        found = self.match(node)
        return found if isinstance(found, Decline) else Accept()


class _UntypedErrors(ReferenceDevice):
    def init(self, **params: Any) -> Backend:
        return _UntypedStream(self)


class _UntypedStream(Backend):
    def plan(self, graph: Graph) -> Plan:
        try:
            return super().plan(graph)
        except UnsupportedOpError as error:
            raise RuntimeError(str(error)) from None


# -- plans and streams -----------------------------------------------------------------------------


class _OtherStreams(ReferenceDevice):
    """The reference device with other plans."""

    def __init__(self, wrap: Callable[[Plan], Plan]) -> None:
        super().__init__("faulty")
        self._wrap = wrap

    def init(self, **params: Any) -> Backend:
        return _WrappedStream(self, self._wrap)


class _WrappedStream(Backend):
    def __init__(self, device: Device, wrap: Callable[[Plan], Plan]) -> None:
        super().__init__(device)
        self._wrap = wrap

    def plan(self, graph: Graph) -> Plan:
        return self._wrap(super().plan(graph))


class _Wrapped(Plan):
    def __init__(self, inner: Plan) -> None:
        self.inner = inner

    def rebind(self, graph: Graph, allocation: Allocation) -> None:
        self.inner.rebind(graph, allocation)

    def compute(self) -> None:
        self.inner.compute()


class _BindsOnce(_Wrapped):
    bound = False

    def rebind(self, graph: Graph, allocation: Allocation) -> None:
        if not self.bound:
            super().rebind(graph, allocation)
            self.bound = True


class _ComputesOnce(_Wrapped):
    done = False

    def rebind(self, graph: Graph, allocation: Allocation) -> None:
        super().rebind(graph, allocation)
        self.done = False

    def compute(self) -> None:
        if not self.done:
            super().compute()
            self.done = True


class _WritesLast(ReferenceDevice):
    """Takes what an op writes for a result of its own, and so computes readers of the written tensor first."""

    def init(self, **params: Any) -> Backend:
        return _WritesLastStream(self)


class _WritesLastStream(Backend):
    def plan(self, graph: Graph) -> Plan:
        return _WritesLastPlan(self, graph)


class _WritesLastPlan(WalkPlan):
    def rebind(self, graph: Graph, allocation: Allocation) -> None:
        super().rebind(graph, allocation)
        self._calls.sort(key=lambda call: call[1].op is not None and call[1].op.writes != ())


class _TimesRunBackwards(_Wrapped):
    def compute_traced(self) -> list[Any]:
        return [time._replace(start=time.end + 1) for time in super().compute_traced()]


class _Impatient(FakeDevice):
    """Synchronous reads that do not wait."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")
        self._buffer_type = _ImpatientType(self, 64)


class _ImpatientType(FakeBufferType):
    def alloc(self, size: int) -> FakeBuffer:
        self._fake.take(size)
        return _ImpatientBuffer(self, self._fake, size)


class _ImpatientBuffer(FakeBuffer):
    def _get(self, offset: int, out: Bytes) -> None:
        self.host.get(offset, out)


class _Hasty(_Impatient):
    """Synchronous writes that do not wait."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer_type = _HastyType(self, 64)


class _HastyType(FakeBufferType):
    def alloc(self, size: int) -> FakeBuffer:
        self._fake.take(size)
        return _HastyBuffer(self, self._fake, size)


class _HastyBuffer(FakeBuffer):
    def _set(self, offset: int, data: Bytes) -> None:
        self.host.set(offset, data)


class _WithoutEvents(FakeDevice):
    """Events that do not make a stream wait."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def event(self) -> Event:
        return _Deaf(self)


class _Deaf(FakeEvent):
    def wait(self, stream: Backend) -> None:
        pass


class _EventsPassAtOnce(FakeDevice):
    """Events for which the host does not wait."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def event(self) -> Event:
        return _Passed(self)


class _Passed(FakeEvent):
    def synchronize(self) -> None:
        pass


class _CopiesAtOnce(FakeDevice):
    """Copies between streams that do not wait for the stream that writes the source."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        return _CopiesAtOnceStream(self)


class _CopiesAtOnceStream(FakeBackend):
    def copy_async(
        self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, size: int,
        source_stream: Backend | None = None,
    ) -> None:  # fmt: skip
        super().copy_async(source, source_offset, target, target_offset, size)


class _Forgetful(FakeDevice):
    """Errors of pending work that nobody is told about."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        return _ForgetfulStream(self)


class _ForgetfulStream(FakeBackend):
    def set_async(self, buffer: Buffer, offset: int, data: Any) -> None:
        def store() -> None:
            buffer._check(offset, np.asarray(data).nbytes)
            assert isinstance(buffer, FakeBuffer)
            buffer.host.set(offset, data)

        self.give(store)

    def synchronize(self) -> None:
        self.device.queue.drain(self.lane)


class _Reorders(FakeDevice):
    """Fetches that overtake what was given to the same stream before."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        return _ReordersStream(self)


class _ReordersStream(FakeBackend):
    def get_async(self, buffer: Buffer, offset: int, out: Bytes) -> None:
        assert isinstance(buffer, FakeBuffer)
        buffer.host.get(offset, out)


class _LooksUpLate(FakeDevice):
    """Plans that look their places up when the work runs, so that binding them again moves pending work."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        return _LooksUpLateStream(self)


class _LooksUpLateStream(FakeBackend):
    def plan(self, graph: Graph) -> Plan:
        return _LooksUpLatePlan(self, graph)


class _LooksUpLatePlan(FakePlan):
    def rebind(self, graph: Graph, allocation: Allocation) -> None:
        old = self._bound
        super().rebind(graph, allocation)
        if old is not None and self._bound is not None:
            old[1][:] = self._bound[1]


class _Stumbles(FakeDevice):
    """Fails at the first kernel of each stream's life."""

    def __init__(self) -> None:
        super().__init__("faulty", execution="late")

    def init(self, **params: Any) -> FakeBackend:
        self.fail("kernel", 1, ComputeError("the first launch fails"))
        return super().init(**params)


def _kernel(name: str, kernel: Kernel, *found_by: str) -> Fault:
    return Fault(name, lambda: FaultyKernels(kernel), found_by)


FAULTS: tuple[Fault, ...] = (
    _kernel("the last element is wrong", _last_element_wrong, "relu", "mul_mat", "cpy", "argmax", "graph"),
    _kernel("everything is slightly wrong", _slightly_wrong, "add", "mul_mat", "soft_max", "norm"),
    _kernel("computes in half precision", _in_half_precision, "mul_mat", "mul_mat_id"),
    _kernel("writes behind the end", _writes_behind_the_end, "relu", "get_rows", "set_rows"),
    _kernel("writes before the beginning", _writes_before_the_beginning, "relu", "mul_mat"),
    _kernel("leaves the tail of rows", _leaves_the_tail, "silu", "rms_norm", "mul_mat", "rope"),
    _kernel("leaves the last row", _leaves_the_last_row, "silu", "soft_max", "argsort"),
    _kernel("modifies a source", _modifies_a_source, "add", "mul_mat", "rope", "concat"),
    _kernel("ignores strides", _ignores_strides, "add", "norm", "mul_mat", "cont", "repeat"),
    _kernel("ignores offsets of views", _ignores_view_offsets, "add", "mul_mat", "get_rows", "sum_rows"),
    _kernel("broadcasts the first row", _broadcasts_the_first_row, "add", "div"),
    _kernel("clears the result before it reads", _clears_before_it_reads, "add", "silu", "soft_max", "rope"),
    _kernel("claims but raises", _raises, "add", "mul_mat"),
    _kernel("claims but declines", _declines_at_last, "relu"),
    _kernel("writes a row too many", _writes_a_row_too_many, "set_rows"),
    _kernel("sorts to one index", _sorts_to_one_index, "argsort"),
    Fault("memory is not aligned", lambda: _OtherBuffers(_Misaligned), ("buffer types describe their memory",)),
    Fault("memset leaves the end", lambda: _OtherBuffers(_ShortMemset), ("memset fills a range",)),
    Fault("memset is not checked", lambda: _OtherBuffers(_UncheckedMemset), ("accesses out of bounds raise",)),
    Fault("rows are packed", lambda: _OtherBuffers(_PackedRows), ("rows are transferred with a stride",)),
    Fault(
        "copies from the beginning", lambda: _OtherBuffers(_CopiesFromTheBeginning),
        ("buffers copy from each other", "copies come from the host"),
    ),
    Fault("freeing twice fails", lambda: _OtherBuffers(_FreesTwice), ("a freed buffer refuses use",)),
    Fault("frees what is exported", lambda: _OtherBuffers(_FreesExports), ("an exported buffer refuses to be freed",)),
    Fault("loses the usage", lambda: _OtherBuffers(_LosesUsage), ("usage is only a mark",)),
    Fault("promises memory it does not have", _Greedy, ("too much memory raises",)),
    Fault("declines without a reason", lambda: _Silent("faulty"), ("every answer has its reason",)),
    Fault("claims everything", lambda: _Boastful("faulty"), ("every answer has its reason",)),
    Fault("refuses views", lambda: _RefusesViews("faulty"), ("every answer has its reason",)),
    Fault(
        "raises errors without types", lambda: _UntypedErrors("faulty"),
        ("errors are typed", "a declined op raises and harms nothing"),
    ),
    Fault("binds once", lambda: _OtherStreams(_BindsOnce), ("a plan binds to other places",)),
    Fault("computes once", lambda: _OtherStreams(_ComputesOnce), ("a plan computes again with new values",)),
    Fault("writes come last", lambda: _WritesLast("faulty"), ("set_rows", "cpy", "graph")),
    Fault("times run backwards", lambda: _OtherStreams(_TimesRunBackwards), ("tracing tells when nodes ran",)),
    Fault("reads do not wait", _Impatient, ("synchronous reads wait",)),
    Fault("writes do not wait", _Hasty, ("synchronous writes wait",)),
    Fault("streams do not wait for events", _WithoutEvents, ("events order streams",)),
    Fault("the host does not wait for events", _EventsPassAtOnce, ("events can be waited for by the host",)),
    Fault(
        "copies do not wait for their source", _CopiesAtOnce,
        ("copies follow the stream that writes their source",),
    ),
    Fault("errors are forgotten", _Forgetful, ("asynchronous transfers check bounds",)),
    Fault("fetches overtake", _Reorders, ("asynchronous transfers arrive", "a stream keeps its order")),
    Fault("pending work moves with its plan", _LooksUpLate, ("pending work keeps its places",)),
    Fault("the first launch fails", _Stumbles, ("a stream keeps its order", "long graphs compute")),
)  # fmt: skip
"""All faults."""
