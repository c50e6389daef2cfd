"""Measures a stream: typical ops of several sizes, what a split takes, and the copies from other memories.

What was measured before, in an earlier process too, is not measured again.  When the time is over, the rest is left to
the next process, or to the graphs that run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from ggplug import ops
from ggplug.backend import Backend, Buffer, BufferType, Decline, answer_of
from ggplug.costs.rates import Rates
from ggplug.costs.work import work_of
from ggplug.errors import GGPlugError
from ggplug.graph import Graph
from ggplug.memory import Allocation, GraphAllocator
from ggplug.memory.layout import NOWHERE
from ggplug.nodes.groups import Groups
from ggplug.tensor import Tensor, new_tensor

SECONDS = 1.5
"""The time after which nothing more of a stream is measured; the kernel that is compiled then is waited for."""
REPEATS = 4
LONG = 0.01
"""Seconds that the repetitions of a kernel take at least."""
VERY_LONG = 0.1
SHORTEST = 1e-7
"""Seconds: shorter differences of times say nothing."""
COPIES = (1 << 10, 1 << 16, 1 << 22)
"""Bytes."""

Kernel = tuple[Sequence[Tensor], Graph, Groups]
"""The nodes of a kernel, and the part of a graph with them, the views that they read, and their group."""


def measure(stream: Backend, rates: Rates) -> None:
    """Measures ops on a stream that were not measured yet, small ones first, until the time is over.

    Ops that the device declines, or that fail there, are left out.
    """
    end = time.perf_counter() + SECONDS
    if rates.split is None:
        with contextlib.suppress(GGPlugError):
            one, many = (_seconds_of(stream, _chain(count)) for count in (1, 17))
            rates.note_split(max(one - (many - one) / 16, SHORTEST), max((many - one) / 16, SHORTEST))
    for node in typical():
        if time.perf_counter() > end:
            return
        work = work_of([node])
        if rates.knows(work) or isinstance(answer_of(stream.device, node, stream.device.supports_op), Decline):
            continue
        with contextlib.suppress(GGPlugError):
            rates.note(work, max(_seconds_of(stream, node) - (rates.split or 0.0), rates.launch))


def measure_copies(stream: Backend, kind: BufferType, source: BufferType, rates: Rates) -> None:
    """Measures copies from a memory to ``kind``, the stream's, that were not measured yet."""
    for nbytes in COPIES:
        if rates.knows_copy(source.name, nbytes):
            continue
        with contextlib.suppress(GGPlugError), contextlib.ExitStack() as held:
            here, there = (_held(held, memory.alloc_zeroed(nbytes)) for memory in (kind, source))

            def copy(here: Buffer = here, there: Buffer = there, nbytes: int = nbytes) -> None:
                stream.copy_async(there, 0, here, 0, nbytes)
                stream.synchronize()

            rates.note_copy(source.name, nbytes, shortest(copy))


def measure_kernels(stream: Backend, kind: BufferType, kernels: Iterable[Kernel], rates: Rates) -> None:
    """Measures the kernels of a graph that were not measured yet, those first that come first, until the time is over.

    They compute zeros, in memory that is allocated for that.  ``kind``: the stream's memory for results.
    """
    end = time.perf_counter() + SECONDS
    for nodes, part, groups in kernels:
        work = work_of(nodes)
        if time.perf_counter() > end:
            return
        if not rates.knows(work):
            with contextlib.suppress(GGPlugError):
                seconds = _seconds_of_part(stream, kind, part, groups)
                rates.note(work, max(seconds - (rates.split or 0.0), rates.launch))


def typical() -> Iterator[Tensor]:
    """The nodes to measure: ops that models spend their time in, small sizes first."""
    floats = [(16, 4), (256, 64), (1024, 1024)]
    products = [(64, 64, 8), (1024, 1024, 1), (1024, 1024, 32), (4096, 1024, 1), (1024, 1024, 256)]
    for ne, (k, m, n) in zip([*floats, *floats[1:]], products, strict=True):
        x, weight = _leaf(*ne), _leaf(ne[0])
        heads, positions = _leaf(16, ne[0] // 16, ne[1]), _leaf(ne[1], type="i32")
        yield ops.add(x, _leaf(*ne))
        for kind in ("f32", "f16", "q8_0", "q4_0", "q4_K"):
            row = max(k, 256) if kind == "q4_K" else k
            yield ops.mul_mat(_leaf(row, m, type=kind), _leaf(row, n))
        yield ops.mul(x, weight)
        yield ops.rms_norm(x)
        yield ops.norm(x)
        yield ops.soft_max(x)
        yield ops.silu(x)
        yield ops.gelu_erf(x)
        yield ops.cont(ops.transpose(x))
        yield ops.cont(ops.permute(heads, 0, 2, 1, 3))
        yield ops.cpy(x, _leaf(*ne, type="f16"))
        yield ops.get_rows(x, positions)
        yield ops.set_rows(_leaf(*ne), x, _leaf(ne[1], type="i64"))
        yield ops.rope(heads, positions, 16)


def shortest(run: Callable[[], object]) -> float:
    """Seconds of the fastest of some runs, after one that is not measured.

    Runs that are short are repeated more often, because other programs disturb most of them; very long ones are not.
    """
    start = time.perf_counter()
    run()
    if time.perf_counter() - start > VERY_LONG:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    taken: list[float] = []
    while len(taken) < REPEATS or (sum(taken) < LONG and len(taken) < 20 * REPEATS):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _leaf(*ne: int, type: str = "f32") -> Tensor:
    return new_tensor(type, ne)


def _chain(count: int) -> Tensor:
    x = _leaf(16, 4)
    for _ in range(count):
        x = ops.add(x, x)
    return x


def _seconds_of(stream: Backend, output: Tensor) -> float:
    """Seconds of computing a tensor over zeros, as a split."""
    graph = Graph(output)
    kind = stream.device.buffer_type
    with contextlib.ExitStack() as held:
        for leaf in graph.leafs:
            leaf.place(_held(held, kind.alloc_zeroed(kind.alloc_size(leaf))))
        allocator = held.enter_context(GraphAllocator(kind))
        allocation = allocator.allocate(graph)
        plan = stream.plan(graph)
        held.callback(plan.free)
        plan.rebind(graph, allocation)

        def compute() -> None:
            plan.compute()
            stream.synchronize()

        return shortest(compute)


def _seconds_of_part(stream: Backend, kind: BufferType, part: Graph, groups: Groups) -> float:
    """Seconds of a part of a graph, which one kernel computes; each tensor that owns bytes has a buffer of its own."""
    with contextlib.ExitStack() as held:
        slots, offsets = [], []
        buffers: list[Buffer] = []
        of: dict[int, int] = {}
        for position, root in enumerate(part.roots):
            if root not in of:
                tensor = part.tensors[root]
                memory = tensor.buffer_type
                if memory is None or not stream.device.supports_buffer_type(memory):
                    memory = kind
                inner = root in groups.inner
                of[root] = NOWHERE if inner else len(buffers)
                if not inner:
                    buffers.append(_held(held, memory.alloc_zeroed(memory.alloc_size(tensor))))
            slots.append(of[root])
            offsets.append(part.tensors[position].view_offset if of[root] >= 0 else 0)
        allocation = Allocation(part, buffers, slots, offsets, groups=groups)
        plan = stream.plan(part, groups)
        held.callback(plan.free)
        plan.rebind(part, allocation)

        def compute() -> None:
            plan.compute()
            stream.synchronize()

        return shortest(compute)


def _held(held: contextlib.ExitStack, buffer: Buffer) -> Buffer:
    held.callback(buffer.free)
    return buffer
