"""The oracle: what a graph computes, in float64, by the ops' own references.

It never asks a device.  Values live in one store a root: F32 is kept in float64, so intermediate results carry no
rounding of their own; every other type is kept as its own bytes, so what an op stores as F16, BF16 or a quantised
type is rounded before a later op reads it.  Views, writes through views and strided tensors then need no special
care: they are other strides over their root's store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ggplug import quants
from ggplug.backend import first_out_of_range
from ggplug.errors import GraphError, ShapeError, TensorStateError
from ggplug.graph import Graph
from ggplug.ops.base import Array
from ggplug.tensor import Tensor
from ggplug.types import BF16, F32, F64, FLOATS, Type, as_type
from ggplug.values.arrays import as_bytes, encode, strided

Watching = Callable[[Tensor, Sequence["Array | None"], Array], Array]
"""``(node, values of its sources, its result before it is rounded to its type) -> the result to go on with``."""


class Store:
    """The values of one root tensor and of every view of it.

    ``raw``: the root's bytes, or float64 numbers if it is ``wide``; None fills it with NaN.  ``wide``: keep the root,
    which is of a plain float type, in float64.
    """

    def __init__(self, root: Tensor, raw: Any = None, *, wide: bool = True) -> None:
        self.root = root
        self._wide = wide and root.type in FLOATS
        size = root.nbytes // root.type.block_bytes * 8 if self._wide else root.nbytes
        memory = np.full(size, 0xFF, np.uint8) if raw is None else as_bytes(raw).copy()
        if self._wide and memory.size == root.nbytes != size:
            with np.errstate(invalid="ignore"):  # a signalling NaN
                memory = quants.dequantize(memory, root.type).astype(np.float64).view(np.uint8)
        if memory.size != size:
            raise ShapeError(
                f"{root!r} takes {root.nbytes} bytes, got {memory.size}",
                tensor=root,
                got=memory.size,
                wanted=root.nbytes,
            )
        self._memory = memory

    def read(self, tensor: Tensor) -> Array:
        """A copy of a tensor's values, four-dimensional in NumPy order: float64, or the integer dtype."""
        return decoded(self.stored(tensor), tensor)

    def stored(self, tensor: Tensor) -> Array:
        """The bytes of a tensor in place: strided, in its storage dtype, or float64 for F32 in a wide store."""
        kind = tensor.type
        shape = (*tensor.ne[:0:-1], tensor.ne[0] // kind.block_size)
        dtype = np.dtype(np.float64) if self._wide else kind.dtype
        if tensor.size == 0:
            return np.empty(shape, dtype)
        factor, unit = (8, kind.block_bytes) if self._wide else (1, 1)
        strides = tuple(n * factor // unit for n in tensor.nb[::-1])
        return np.ndarray(shape, dtype, self._memory.data, tensor.view_offset * factor // unit, strides)


class Evaluation:
    """The values of all tensors of a graph once it was computed."""

    def __init__(self, stores: dict[Tensor, Store]) -> None:
        self._stores = stores

    def __getitem__(self, tensor: Tensor) -> Array:
        """A tensor's values at the end, rounded to its type; four-dimensional in NumPy order.

        Float64, or the integer dtype.
        """
        values = self._stores[tensor.root].read(tensor)
        return nearest(values, tensor.type) if tensor.type is F32 else values

    def exact(self, tensor: Tensor) -> Array:
        """A tensor's values at the end, before F32 is rounded; other types are rounded to their type."""
        return self._stores[tensor.root].read(tensor)

    def bits(self, tensor: Tensor) -> Array:
        """A tensor's bytes at the end, in its storage dtype; of an evaluation that was not ``wide``."""
        return self._stores[tensor.root].stored(tensor)

    def roots(self) -> list[Tensor]:
        """All tensors that own bytes."""
        return list(self._stores)


def evaluate(
    graph: Graph,
    values: Mapping[Tensor, Any],
    *,
    wide: bool | Collection[Type | str] = True,
    watching: Watching | None = None,
) -> Evaluation:
    """Computes every node of ``graph`` with its op's reference.

    ``values``: raw bytes (``nbytes`` of them) for each leaf that owns bytes; one that is missing is read from its own
    place.  ``wide``: the plain float types that are kept in float64, by default F32; of these, values may be float64
    numbers.  False rounds the results of all.  ``watching`` sees the result of each node that computes, and may
    change it; of nodes that move bits between equal types it is not called.

    Raises TensorStateError for a leaf without values, GraphError for an op without reference or whose reference has the
    wrong shape, TypeMismatchError for a type that has no reference conversion.
    """
    kept = [F32] if wide is True else [as_type(each) for each in wide or ()]
    stores: dict[Tensor, Store] = {}
    for position in dict.fromkeys(graph.roots):
        root = graph.tensors[position]
        if root in values:
            stores[root] = Store(root, values[root], wide=root.type in kept)
        elif root.op is None:
            if root.buffer is None:
                raise TensorStateError(f"the oracle has no values for the leaf {root!r}", tensor=root)
            stores[root] = Store(root, root.tobytes(), wide=root.type in kept)
        else:
            stores[root] = Store(root, wide=root.type in kept)
    for node in graph.nodes:
        assert node.op is not None
        if not node.op.is_view:
            sources = [None if tensor is None else stores[tensor.root].stored(tensor) for tensor in node.src]
            compute_node(node, stores[node.root].stored(node), sources, watching)
    return Evaluation(stores)


def first_fault(graph: Graph, evaluation: Evaluation) -> tuple[Tensor, int] | None:
    """The first node with an id out of range, and that id; None if there is none.

    Nodes that write nothing do not look at their ids.
    """
    for node in graph.nodes:
        op = node.op
        if op is None or op.indexes is None or node.size == 0:
            continue
        ids = node.src[op.indexes.ids]
        assert ids is not None
        found = first_out_of_range(node, evaluation[ids])
        if found is not None:
            return node, found[0]
    return None


def moves_bits(node: Tensor) -> bool:
    """Whether ``node`` only moves elements of one float or quantised type, whose bits then stay as they are."""
    assert node.op is not None
    kinds = {tensor.type for tensor in node.src if tensor is not None}
    return node.op.moves and kinds == {node.type} and (node.type.is_quantized or node.type.dtype.kind != "i")


def compute_node(
    node: Tensor, target: Array, sources: Sequence[Array | None], watching: Watching | None = None
) -> None:
    """Computes one node with its op's reference, from and into arrays of the tensors' storage dtypes (or of float64).

    All sources are read before anything is written, so they may share bytes with ``target``.  Raises GraphError.
    """
    if moves_bits(node):
        _move_blocks(node, target, sources)
        return
    op = node.op
    assert op is not None
    values = [
        None if tensor is None or stored is None else decoded(stored, tensor)
        for tensor, stored in zip(node.src, sources, strict=True)
    ]
    if len(op.writes) > 1:
        for position, written in zip(op.writes, _refer_all(node, values), strict=True):
            tensor, stored = node.src[position], sources[position]
            assert tensor is not None
            assert stored is not None
            first = position == op.writes[0]
            result = watching(node, values, written) if first and watching is not None else written
            round_into(target if first else stored, tensor, result, keep=values[position])
        return
    keep = decoded(target, node) if op.writes else None
    result = _refer(node, values)
    round_into(target, node, result if watching is None else watching(node, values, result), keep=keep)


def _refer(node: Tensor, values: Sequence[Array | None]) -> Array:
    """The reference of the node's op for these values, in the node's shape."""
    op = node.op
    reference = getattr(op, "reference", None)
    if op is None or reference is None:
        raise GraphError(f"op {op.name if op else None!r} declares no reference", op=op, tensor=node)
    with np.errstate(all="ignore"):
        result = np.asarray(reference(*values))
    shape = node.ne[::-1]
    if result.size != node.size:
        raise GraphError(
            f"the reference of {op.name!r} gave shape {result.shape}, its shape rule {shape}",
            op=op,
            tensor=node,
            got=result.shape,
            wanted=shape,
        )
    return result.reshape(shape)


def _refer_all(node: Tensor, values: Sequence[Array | None]) -> list[Array]:
    """What the reference of an op that writes several sources says of each of them, in their shapes."""
    assert node.op is not None
    with np.errstate(all="ignore"):
        found = node.op.reference(*values)
    targets = [node.src[i] for i in node.op.writes]
    return [np.asarray(each).reshape(t.ne[::-1]) for t, each in zip(targets, found, strict=True) if t is not None]


def _move_blocks(node: Tensor, target: Array, sources: Sequence[Array | None]) -> None:
    """Lets the reference move the numbers of elements, and so learns which block goes where."""
    blocks: list[Array] = []
    numbers: list[Array | None] = []
    count = 0
    for tensor, stored in zip(node.src, sources, strict=True):
        if tensor is None or stored is None:
            numbers.append(None)
            continue
        blocks.append(stored.reshape(-1))
        numbers.append(np.arange(count, count + tensor.size, dtype=np.float64).reshape(tensor.ne[::-1]))
        count += tensor.size
    if target.size:
        size = node.type.block_size
        moved = _refer(node, numbers).reshape(-1, size)[:, 0].astype(np.int64) // size
        target[...] = np.concatenate(blocks)[moved].reshape(target.shape)


def can_interpret(tensor: Tensor, *, written: bool) -> str:
    """Why the reference conversions cannot read, or with ``written`` round to, a tensor's type; empty if they can."""
    kind = tensor.type
    if not quants.can_dequantize(kind):
        return f"{kind.name} has no reference decoder"
    if written and not quants.can_quantize(kind):
        return f"{kind.name} has no reference quantiser"
    return ""


def decoded(stored: Array, tensor: Tensor) -> Array:
    """Float64 (or integer) values of an array in a tensor's storage dtype; float64 storage is taken as it is."""
    kind = tensor.type
    if stored.dtype == np.float64 or (kind.dtype.kind == "i" and not kind.is_quantized):
        return np.array(stored)
    if stored.size == 0:
        return np.empty(tensor.ne[::-1])
    if kind is BF16 or kind.is_quantized:
        packed = np.ascontiguousarray(stored)
        rows = packed.view(np.uint8).reshape(*packed.shape[:3], -1)
        with np.errstate(invalid="ignore"):  # a signalling NaN
            return quants.dequantize(rows, kind).reshape(tensor.ne[::-1]).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return stored.astype(np.float64)


def read_values(tensor: Tensor, raw: Array) -> Array:
    """A tensor's values, by its bytes; four-dimensional in NumPy order: float64, or the integer dtype."""
    if tensor.size == 0:
        return np.empty(tensor.ne[::-1], np.int64 if tensor.type.dtype.kind == "i" else np.float64)
    return decoded(strided(raw, tensor), tensor)


def nearest(values: Array, type: Type) -> Array:
    """Float64 values, each the nearest number of a plain float type."""
    if type is F64:
        return values
    with np.errstate(all="ignore"):
        rounded = values.astype(np.float32) if type is F32 else None
        if rounded is None:
            rounded = quants.dequantize(encode(values, type, stored=True).reshape(1, -1), type).reshape(values.shape)
        return rounded.astype(np.float64)


def cut(values: Array, dtype: np.dtype[Any]) -> Array:
    """Numbers as integers: towards zero, the nearest limit beyond the range, 0 for NaN."""
    limits = np.iinfo(dtype)
    if values.dtype.kind == "i":
        return np.clip(values, limits.min, limits.max).astype(dtype)
    inside = (values > limits.min) & (values < limits.max)
    result = np.where(inside, values, 0).astype(dtype)
    result[values <= limits.min] = limits.min
    result[values >= limits.max] = limits.max
    return result


def round_into(stored: Array, tensor: Tensor, values: Array, *, keep: Array | None = None) -> None:
    """Stores values, rounded to the tensor's type, into an array of its storage dtype (or of float64).

    ``keep``: the values there were; blocks in which none of them changes keep their bytes, as quantising twice need
    not.
    """
    kind = tensor.type
    if stored.size == 0:
        return
    if stored.dtype == np.float64:
        rounded = values
    else:
        if kind.dtype.kind != "i" and values.dtype != np.float64:
            values = values.astype(np.float64)
        if kind.dtype.kind == "i" and not kind.is_quantized:
            values = cut(values, kind.dtype)
        with np.errstate(all="ignore"):
            rounded = encode(values, kind, stored=True).view(stored.dtype).reshape(stored.shape)
    if keep is None:
        stored[...] = rounded
        return
    same = keep == values
    if keep.dtype.kind == "f":
        same |= np.isnan(keep) & np.isnan(values)
    changed = ~same.reshape(*stored.shape, kind.block_size).all(axis=-1)
    stored[changed] = rounded[changed]
