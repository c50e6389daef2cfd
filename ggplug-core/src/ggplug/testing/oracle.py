"""The oracle: what a graph computes, in float64, by the ops' own references.

It never asks a device.  Values live in one store a root: F32 is kept in float64, so intermediate results carry no
rounding of their own; every other type is kept as its own bytes, so what an op stores as F16, BF16 or a quantised
type is rounded before a later op reads it.  Views, writes through views and strided tensors then need no special
care: they are other strides over their root's store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ggplug import quants
from ggplug.errors import GraphError, ShapeError, TensorStateError
from ggplug.graph import Graph
from ggplug.ops.base import Array, Op
from ggplug.tensor import Tensor, as_bytes, encode
from ggplug.types import BF16, F32

Reading = Callable[[Tensor, int, Array], Array]
"""``(node, position of the source, its values) -> the values that the reference is given``."""


class Store:
    """The values of one root tensor and of every view of it.

    ``raw``: the root's bytes; None fills it with NaN.  ``wide``: keep F32 in float64.
    """

    def __init__(self, root: Tensor, raw: Any = None, *, wide: bool = True) -> None:
        self.root = root
        self._wide = wide and root.type is F32
        size = root.nbytes
        memory = np.full(size, 0xFF, np.uint8) if raw is None else as_bytes(raw).copy()
        if memory.size != size:
            raise ShapeError(
                f"{root!r} takes {size} bytes, got {memory.size}", tensor=root, got=memory.size, wanted=size
            )
        if self._wide:
            memory = memory.view(np.float32).astype(np.float64).view(np.uint8)
        self._memory = memory

    def read(self, tensor: Tensor) -> Array:
        """A copy of a tensor's values, four-dimensional in NumPy order: float64, or the integer dtype."""
        return decoded(self._stored(tensor), tensor)

    def write(self, tensor: Tensor, values: Array) -> None:
        """Rounds values to the tensor's type and stores them."""
        round_into(self._stored(tensor), tensor, values)

    def overwrite(self, tensor: Tensor, values: Array) -> None:
        """As :meth:`write`, but blocks whose values did not change keep their bytes."""
        round_into(self._stored(tensor), tensor, values, keep=self.read(tensor))

    def _stored(self, tensor: Tensor) -> Array:
        kind = tensor.type
        shape = (*tensor.ne[:0:-1], tensor.ne[0] // kind.block_size)
        dtype = np.dtype(np.float64) if self._wide else kind.dtype
        if tensor.size == 0:
            return np.empty(shape, dtype)
        factor = 2 if self._wide else 1
        strides = tuple(n * factor for n in tensor.nb[::-1])
        return np.ndarray(shape, dtype, self._memory.data, tensor.view_offset * factor, strides)


class Evaluation:
    """The values of all tensors of a graph once it was computed."""

    def __init__(self, stores: dict[Tensor, Store]) -> None:
        self._stores = stores

    def __getitem__(self, tensor: Tensor) -> Array:
        """A tensor's values at the end, four-dimensional in NumPy order: float64, or the integer dtype."""
        return self._stores[tensor.root].read(tensor)

    def roots(self) -> list[Tensor]:
        """All tensors that own bytes."""
        return list(self._stores)


def evaluate(
    graph: Graph, values: Mapping[Tensor, Any], *, wide: bool = True, reading: Reading | None = None
) -> Evaluation:
    """Computes every node of ``graph`` with its op's reference.

    ``values``: raw bytes (``nbytes`` of them) for each leaf that owns bytes; one that is missing is read from its own
    place.  ``wide=False`` rounds F32 results too.  ``reading`` may change what a reference is given, to model an
    algorithm that rounds its sources.

    Raises TensorStateError for a leaf without values, GraphError for an op without reference or whose reference has the
    wrong shape, TypeMismatchError for a type that has no reference conversion.
    """
    stores: dict[Tensor, Store] = {}
    for position in dict.fromkeys(graph.roots):
        root = graph.tensors[position]
        if root in values:
            stores[root] = Store(root, values[root], wide=wide)
        elif root.op is None:
            if root.buffer is None:
                raise TensorStateError(f"the oracle has no values for the leaf {root!r}", tensor=root)
            stores[root] = Store(root, root.tobytes(), wide=wide)
        else:
            stores[root] = Store(root, wide=wide)
    for node in graph.nodes:
        op = node.op
        assert op is not None
        if op.is_view:
            continue
        sources: list[Array | None] = []
        for position, tensor in enumerate(node.src):
            read = None if tensor is None else stores[tensor.root].read(tensor)
            sources.append(read if reading is None or read is None else reading(node, position, read))
        store = stores[node.root]
        if op.writes:
            store.overwrite(node, refer(op, node, sources))
        else:
            store.write(node, refer(op, node, sources))
    return Evaluation(stores)


def refer(op: Op, node: Tensor, sources: list[Array | None]) -> Array:
    """``op.reference`` of these values, in the shape of ``node``.  Raises GraphError."""
    reference = getattr(op, "reference", None)
    if reference is None:
        raise GraphError(f"op {op.name!r} declares no reference", op=op, tensor=node)
    with np.errstate(all="ignore"):
        result = np.asarray(reference(*sources))
    shape = node.ne[::-1]
    if result.shape != shape:
        if result.size != node.size:
            raise GraphError(
                f"the reference of {op.name!r} gave shape {result.shape}, its shape rule {shape}",
                op=op, tensor=node, got=result.shape, wanted=shape,
            )  # fmt: skip
        result = result.reshape(shape)
    return result


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
    if kind is BF16 or kind.is_quantized:
        packed = np.ascontiguousarray(stored)
        rows = packed.view(np.uint8).reshape(*packed.shape[:3], -1)
        return quants.dequantize(rows, kind).reshape(tensor.ne[::-1]).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return stored.astype(np.float64)


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
        with np.errstate(all="ignore"):
            rounded = encode(values, kind).view(stored.dtype).reshape(stored.shape)
    if keep is None:
        stored[...] = rounded
        return
    same = keep == values
    if keep.dtype.kind == "f":
        same |= np.isnan(keep) & np.isnan(values)
    changed = ~same.reshape(*stored.shape, kind.block_size).all(axis=-1)
    stored[changed] = rounded[changed]
