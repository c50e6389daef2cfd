"""Random graphs with views, declared writes and persistent tensors in several buffers.

And a plain way to compute them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

import ggplug as gg
from ggplug.backend import BufferType, Operand
from ggplug.host import HOST
from ggplug.types import BufferUsage
from ggplug.values.arrays import decode
from ggplug_testing.devices.reference import interpret

EXTENTS = (4, 8, 16, 48)


@dataclass
class Case:
    """A graph, its leafs with a place of their own, those without, its outputs, and what the leafs hold at first."""

    graph: gg.Graph
    persistent: list[gg.Tensor] = field(default_factory=list)
    inputs: list[gg.Tensor] = field(default_factory=list)
    outputs: list[gg.Tensor] = field(default_factory=list)
    values: dict[gg.Tensor, bytes] = field(default_factory=dict)

    def restore(self) -> None:
        """Gives the persistent tensors their first values back: graphs write into them."""
        for tensor in self.persistent:
            tensor.set_bytes(self.values[tensor])

    def set_inputs(self) -> None:
        for tensor in self.inputs:
            tensor.set_bytes(self.values[tensor])

    def results(self) -> list[bytes]:
        """The bytes of all outputs and of all persistent tensors."""
        return [tensor.numpy().tobytes() for tensor in self.outputs] + [t.tobytes() for t in self.persistent]


def random_case(seed: int, places: Sequence[BufferType] = (HOST,), *, size: int = 30, writes: bool = True) -> Case:
    """A graph of about ``size`` nodes; persistent tensors lie in buffers of ``places``."""
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    case = Case(gg.Graph(name=f"random {seed}"))
    pool: list[gg.Tensor] = []

    def leaf(tensor: gg.Tensor, values: np.ndarray, placed: bool, usage: BufferUsage = BufferUsage.ANY) -> gg.Tensor:
        if placed:
            buffer = rng.choice(places).alloc(tensor.nbytes + 64)
            buffer.usage = usage
            tensor.place(buffer)
            tensor.set(values)
            case.values[tensor] = tensor.tobytes()
            case.persistent.append(tensor)
        else:
            case.values[tensor] = np.ascontiguousarray(values).tobytes()
            case.inputs.append(tensor.set_input() if rng.random() < 0.7 else tensor)
        return tensor

    def matrix(placed: bool, usage: BufferUsage = BufferUsage.ANY, ne: tuple[int, ...] = ()) -> gg.Tensor:
        kind = gg.F16 if rng.random() < 0.2 else gg.F32
        tensor = gg.new_tensor(kind, ne or (rng.choice(EXTENTS), rng.choice((1, 2, 3, 6))))
        return leaf(tensor, numbers.standard_normal(tensor.shape).astype(kind.dtype), placed, usage)

    def rows_of(target: gg.Tensor, count: int) -> gg.Tensor:
        chosen = numbers.permutation(target.ne[1])[:count]
        return leaf(gg.new_tensor("i64", count), chosen.astype(np.int64), rng.random() < 0.5)

    for _ in range(2):
        pool.append(matrix(False))
    for _ in range(3):
        pool.append(matrix(True, BufferUsage.WEIGHTS))
    caches = [matrix(True, ne=(rng.choice(EXTENTS), 8)) for _ in range(2)]

    def window(x: gg.Tensor) -> gg.Tensor:
        first = rng.randrange(x.ne[1])
        return gg.view(x, x.ne[0], x.ne[1] - first, nb=(x.nb[1],), offset=first * x.nb[1])

    def write_rows() -> gg.Tensor:
        target = rng.choice(caches) if rng.random() < 0.6 else rng.choice(pool)
        fitting = [t for t in pool if t.ne[0] == target.ne[0] and t.ne[1] <= target.ne[1] and t.type is gg.F32]
        source = rng.choice(fitting)
        return gg.set_rows(target, source, rows_of(target, source.ne[1]))

    def write_window() -> gg.Tensor:
        target = rng.choice(caches) if rng.random() < 0.6 else rng.choice(pool)
        fitting = [t for t in pool if t.ne[0] == target.ne[0] and t.ne[1] <= target.ne[1]]
        source = rng.choice(fitting)
        first = rng.randrange(target.ne[1] - source.ne[1] + 1)
        row = target.nb[1]
        return gg.cpy(source, gg.view(target, target.ne[0], source.ne[1], nb=(row,), offset=first * row))

    def pair(op: Callable[..., gg.Tensor]) -> gg.Tensor:
        a = rng.choice(pool)
        fitting = [t for t in pool if a.ne[0] == t.ne[0] and a.ne[1] % t.ne[1] == 0 and t.type is a.type]
        return op(a, rng.choice(fitting))

    def some(op: Callable[[gg.Tensor], gg.Tensor]) -> gg.Tensor:
        return op(rng.choice(pool))

    makers: list[Callable[[], gg.Tensor]] = [
        lambda: pair(gg.add),
        lambda: pair(gg.sub),
        lambda: pair(gg.mul),
        lambda: some(gg.silu),
        lambda: some(gg.neg),
        lambda: gg.scale(rng.choice(pool), 0.5),
        lambda: some(gg.rms_norm),
        lambda: some(gg.soft_max),
        lambda: gg.mul_mat(rng.choice([p for p in case.persistent if p.type.name != "i64"]), rng.choice(pool)),
        lambda: some(gg.sum_rows),
        lambda: some(gg.cont),
        lambda: some(gg.dup),
        lambda: gg.concat(rng.choice(pool), rng.choice(pool), 1),
        lambda: some(window),
        lambda: some(window),
        lambda: window(rng.choice(caches)),
        lambda: gg.cont(window(rng.choice(caches))),
        lambda: gg.cont(gg.transpose(rng.choice(pool))),
        lambda: (lambda x: gg.reshape(gg.cont(x), x.ne[0] // 2, x.ne[1] * 2))(rng.choice(pool)),
    ]
    if writes:
        makers += [write_rows, write_rows, write_window, write_window]
    made = 0
    while made < size:
        try:
            node = rng.choice(makers)()
        except (gg.ShapeError, gg.TypeMismatchError, IndexError):
            continue
        made += 1
        if rng.random() < 0.1:
            node.set_output()
        if not node.op.writes or node.root not in caches:
            pool.append(node)
            # Late nodes are read more often, as in a model, so that early ones die.
            if len(pool) > 8 and rng.random() < 0.7:
                pool.pop(rng.randrange(5, len(pool) - 2))
        if node.op.writes or node.flags or rng.random() < 0.2:
            case.graph.expand(node)
    case.graph.expand(pool[-1].set_output() if pool[-1].op is not None else pool[-1])
    case.inputs = [t for t in case.inputs if t in case.graph]
    case.outputs = [t for t in case.graph.nodes if t.flags & gg.TensorFlag.OUTPUT]
    return case


def compute_apart(case: Case) -> list[bytes]:
    """The results, node by node in the graph's order, with every root in host memory of its own.

    No allocator takes part.
    """
    memory = {}
    for tensor in case.graph.tensors:
        if tensor.root not in memory:
            buffer = HOST.alloc(tensor.root.nbytes)
            if tensor.root in case.values:
                buffer.set(0, np.frombuffer(case.values[tensor.root], np.uint8))
            memory[tensor.root] = buffer

    def operand(tensor: gg.Tensor | None) -> Operand | None:
        return None if tensor is None else Operand(tensor, memory[tensor.root], tensor.view_offset)

    # An output is read when all is computed, as from an allocation.
    for node in case.graph.nodes:
        if not node.op.is_view and node.size:
            interpret(node.op, operand(node), *map(operand, node.src))
    found = []
    for tensor in case.outputs:
        raw = np.empty(tensor.nbytes, np.uint8)
        memory[tensor.root].get(tensor.view_offset, raw)
        found.append(np.ascontiguousarray(decode(raw, tensor)).reshape(tensor.shape).tobytes())
    for tensor in case.persistent:
        if tensor in memory:
            raw = np.empty(tensor.nbytes, np.uint8)
            memory[tensor].get(0, raw)
            found.append(raw.tobytes())
        else:
            found.append(case.values[tensor])
    return found
