"""What must come out: the oracle's values, and how far from them a result may be.

The values are those of the ops' references (:mod:`ggplug_testing.judging.oracle`).  Rows whose index is out of
range are zeros, and where rows are written by index such a row is left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ggplug import ops
from ggplug.backend import limit_of_ids
from ggplug.graph import Graph
from ggplug.nodes.hazards import written_sources
from ggplug.ops.base import Array
from ggplug.tensor import Tensor
from ggplug_testing.description import description_of, selected_by
from ggplug_testing.judging import expected as whole
from ggplug_testing.judging.comparison import Allowed, compare, compare_selected
from ggplug_testing.judging.expected import within
from ggplug_testing.judging.oracle import Store, can_interpret, compute_node, decoded, round_into
from ggplug_testing.precision import tolerance

Bytes = npt.NDArray[np.uint8]


class Expected:
    """The values of a graph's tensors, each as it was once its own node was computed.

    ``seen``: the bytes that a device left in the roots it computed.  What follows is expected of those, so that one
    node's error is not another one's.  ``values`` has those whose type the reference conversions can read; ``stored``
    the bytes of each node's elements.  ``bad``: for each node with indices out of range the mask of them.
    ``exact`` has what the reference of a node gave before it was rounded, ``tolerances`` how far off results may be.
    ``others``: the values that an op of several leaves in those sources that it writes in addition to the first.

    Raises GGPlugError where a reference has no answer (a float that is no integer, as an integer).
    """

    def __init__(self, graph: Graph, raw: Mapping[Tensor, Bytes], seen: Mapping[Tensor, Bytes]) -> None:
        self.values: dict[Tensor, Array] = {}
        self.bytes: dict[Tensor, Bytes] = {}
        self.bad: dict[Tensor, Array] = {}
        self.exact: dict[Tensor, Array] = {}
        self.tolerances: dict[Tensor, Array] = {}
        self.others: dict[Tensor, Array] = {}
        self.graph, self._raw = graph, raw
        self._stores: dict[Tensor, Store] = {}
        for position in dict.fromkeys(graph.roots):
            root = graph.tensors[position]
            self._stores[root] = Store(root, raw.get(root), wide=False)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for leaf in graph.leafs:
                self._keep(leaf)
            for node in graph.nodes:
                self._compute(node)
                self._keep(node)
                if node in seen:
                    self._stores[node] = Store(node, seen[node], wide=False)

    def allowed(self, node: Tensor) -> Allowed:
        """What the elements of a node may be that a device computed from its own results."""
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return whole.Expected(self.graph, self._raw).allowed(node)

    def _note(self, node: Tensor, sources: Sequence[Array | None], result: Array) -> Array:
        if result.dtype.kind == "f":
            self.exact[node], self.tolerances[node] = result.copy(), tolerance(node, result, sources)
        return result

    def _keep(self, tensor: Tensor) -> None:
        store = self._stores[tensor.root]
        self.bytes[tensor] = np.ascontiguousarray(store.stored(tensor)).reshape(-1).view(np.uint8)
        if not can_interpret(tensor, written=False):
            self.values[tensor] = store.read(tensor)

    def _compute(self, node: Tensor) -> None:
        assert node.op is not None
        if node.op.is_view or not node.size:
            return
        stored = [None if s is None else self._stores[s.root].stored(s) for s in node.src]
        target = self._stores[node.root].stored(node)
        mask = self._out_of_range(node)
        if mask is None or not mask.any():
            compute_node(node, target, stored, self._note)
            for source in written_sources(node)[1:]:
                self.others[source] = self._stores[source.root].read(source)
            return
        self.bad[node] = mask
        assert node.op.indexes is not None
        if node.op.indexes.of is None or isinstance(node.op, ops.SsmScan):
            compute_node(node, target, stored, self._note)  # what such an id counts for is part of the formula
            return
        ids = node.op.indexes.ids
        indices = stored[ids]
        assert indices is not None
        if node.op.writes:
            self._leave_out(node, target, stored, mask)
            return
        limit = limit_of_ids(node)
        if not limit:
            target[...] = np.zeros((), target.dtype)
            return
        stored[ids] = np.where(mask, 0, indices).astype(indices.dtype)
        compute_node(node, target, stored, self._note)
        target[mask[0]] = np.zeros((), target.dtype)
        if node in self.exact:
            self.exact[node][mask[0]] = 0

    def _leave_out(self, node: Tensor, target: Array, stored: list[Array | None], mask: Array) -> None:
        """Rows written by index, as set_rows does, without those whose index is out of range."""
        pairs = [(array, tensor) for array, tensor in zip(stored, node.src, strict=True)]
        dst, rows, ids = (decoded(a, s) for a, s in pairs if a is not None and s is not None)
        out = dst.copy()
        for k in range(rows.shape[0]):
            for j in range(rows.shape[1]):
                i, l = k % ids.shape[1], j % ids.shape[2]
                good = ~mask[0, i, l]
                out[k, j, ids[0, i, l][good]] = rows[k, j][good]
        round_into(target, node, out, keep=dst)

    def _out_of_range(self, node: Tensor) -> Array | None:
        assert node.op is not None
        if node.op.indexes is None:
            return None
        ids = node.src[node.op.indexes.ids]
        assert ids is not None
        indices = self._stores[ids.root].read(ids)
        return (indices < 0) | (indices >= limit_of_ids(node))


def difference(
    node: Tensor, got: Array, want: Array, sources: list[Array | None], expected: Expected, *, own_sources: bool
) -> str:
    """What is wrong with the values of a node, or an empty string.

    ``own_sources``: whether ``want`` was computed from the node's sources as they were; otherwise errors of other
    nodes are in it.
    """
    op = node.op
    assert op is not None
    selects = selected_by(node)
    if selects is not None and want.size:
        values = sources[selects.source]
        assert values is not None
        with np.errstate(all="ignore"):
            return compare_selected(got, want, values, ordered=selects.ordered, first=selects.first).reason
    if want.dtype.kind in "iub":
        return compare(got, want, 0).reason
    if _rounds_to_blocks(node) or (not own_sources and any(map(_rounds_to_blocks, expected.graph.nodes))):
        # Where numbers are rounded to blocks, what is not finite stays so, but may become any other such number.
        lost = ~np.isfinite(want)
        if np.isfinite(got[lost]).any():
            return _first("must not be finite", got, want, lost & np.isfinite(got))
        got, want = np.where(lost, 0, got), np.where(lost, 0, want)
    if isinstance(op, ops.SetRows):
        got = np.where(written_twice(want, sources), want, got)
    if isinstance(op, ops.Glu):
        got = np.where(_underflows(node, sources), want, got)
    if description_of(type(op)).signs and own_sources and not node.type.is_quantized:
        flipped = (
            (got == 0) & (want == 0) & (np.signbit(got) != np.signbit(want)) & np.logical_not(_vanishes(node, sources))
        )
        if flipped.any():
            return _first("zero with another sign", got, want, flipped)
    if not own_sources:
        low, high, limit = expected.allowed(node)
        same = got == want  # as what may be anything was made above
        return compare(got, want, Allowed(np.where(same, got, low), np.where(same, got, high), limit)).reason
    around = expected.tolerances.get(node)
    if around is None or node.type.is_quantized or (op.writes and op.moves):
        # Elements of blocks are rounded by the largest of their block; what is moved is among what is left.
        return compare(got, want, 1e-4 if node.type.is_quantized and not op.moves else 0).reason
    exact = expected.exact[node]
    exact = np.where(np.isfinite(want) & np.isfinite(got) & np.isfinite(exact), exact, want)
    # Where numbers that are not finite are lost in blocks, how far the others may be is not known.
    around = np.where(np.isfinite(around), around, np.inf)
    with np.errstate(all="ignore"):
        return compare(got, want, within(node.type, exact, around)).reason


def _rounds_to_blocks(node: Tensor) -> bool:
    """Whether a node is a product with numbers in blocks."""
    return isinstance(node.op, (ops.MulMat, ops.MulMatId)) and any(
        source is not None and source.type.is_quantized for source in node.src
    )


def _vanishes(node: Tensor, sources: list[Array | None]) -> npt.NDArray[np.bool_] | bool:
    """Where a product of numbers is rounded to zero before 0 is added: in float32 that gives 0, in float64 a sign."""
    x = sources[0]
    if not isinstance(node.op, (ops.LeakyRelu, ops.Scale)) or x is None:
        return False
    product = x * (node.op.s if isinstance(node.op, ops.Scale) else node.op.negative_slope)
    return (product != 0) & (np.abs(product) < np.finfo(np.float32).smallest_subnormal)


def written_twice(want: Array, sources: list[Array | None]) -> npt.NDArray[np.bool_]:
    """Of ``set_rows`` the rows that several rows are written to, in any order; those of overlapping ids may be."""
    ids = sources[2]
    assert ids is not None
    twice = np.zeros((*want.shape[:3], 1), bool)
    for k in range(want.shape[0]):
        for j in range(want.shape[1]):
            rows, counts = np.unique(ids[0, k % ids.shape[1], j % ids.shape[2]], return_counts=True)
            rows = rows[(counts > 1) & (rows >= 0) & (rows < want.shape[2])]
            twice[k, j, rows.astype(np.int64)] = True
    return twice


def _underflows(node: Tensor, sources: list[Array | None]) -> npt.NDArray[np.bool_]:
    """Where f(x) is so small that it depends on its rounding what its product with an infinite gate is."""
    x, gate = sources
    assert x is not None
    if gate is None:
        n = x.shape[-1] // 2
        x, gate = x[..., :n], x[..., n : 2 * n]
        if getattr(node.op, "swapped", False):
            x, gate = gate, x
    return ((x < -3) | (np.abs(x) < 1e-37)) & ~np.isfinite(gate)


def _first(what: str, got: Array, want: Array, where: Array) -> str:
    place = tuple(int(i) for i in np.argwhere(where)[0])
    said = f"{what}: " if what else ""
    return f"{said}got {got[place]}, want {want[place]} at {list(place[::-1])} (ne order), {int(where.sum())} such"
