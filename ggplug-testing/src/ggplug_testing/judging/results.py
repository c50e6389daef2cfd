"""Judging what a device has computed: the values of each node, and whether anything else was changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ggplug.graph import Graph
from ggplug.nodes.hazards import written_sources
from ggplug.ops.base import Array
from ggplug.tensor import Tensor
from ggplug.values.arrays import encode, strided
from ggplug_testing.description import selected_by
from ggplug_testing.judging.comparison import Agreement, Allowed, Comparison, compare, compare_bits, compare_selected
from ggplug_testing.judging.expected import Expected
from ggplug_testing.judging.oracle import decoded, evaluate, moves_bits, read_values
from ggplug_testing.running.placement import UNWRITTEN, UNWRITTEN_TOO, Bytes, Placement, guard


class Judging(NamedTuple):
    """How results are judged: by what is expected, as closely as ``agreement`` says.

    ``max_nmse``: an error to allow in the place of what is derived.
    """

    expected: Expected
    agreement: Agreement = "values"
    max_nmse: float | None = None

    def of(self, node: Tensor, raw: Bytes) -> Comparison:
        """Whether these bytes of a node hold the values that are expected."""
        expected = self.expected
        if self.agreement == "bits" and node.size:
            stored, wanted = strided(raw, node), expected.values.bits(node)
            return compare_bits(stored, wanted, None if moves_bits(node) else _lost(node, stored) & _lost(node, wanted))
        got = read_values(node, raw)
        selects = selected_by(node)
        if selects is not None:
            source = node.src[selects.source]
            assert source is not None
            reach = float(expected.drift(source).max(initial=0))
            return compare_selected(
                got, expected[node], expected[source], reach, ordered=selects.ordered, first=selects.first
            )
        return self.compared(got, node, expected.allowed)

    def compared(self, got: Array, tensor: Tensor, allowed: Callable[[Tensor], Allowed]) -> Comparison:
        """Whether these values of a tensor are those that are expected, within what ``allowed`` derives."""
        limit = allowed(tensor) if self.max_nmse is None else self.max_nmse
        return compare(got, self.expected[tensor], limit, self.agreement)

    def all(self, nodes: Iterable[Tensor], placement: Placement, again: Callable[[], object]) -> Comparison:
        """Whether the values of all nodes are what is expected.

        ``again``: computes in the same places once more, where results held UNWRITTEN_TOO before.  What was not written
        comes first in the reason.
        """
        worst = 0.0
        for node in nodes:
            assert node.op is not None
            if node.op.is_view:
                continue
            found = self.of(node, placement.read_bytes(node))
            worst = max(worst, found.nmse)
            if not found:
                left = "" if placement.is_alias(node) else self._left(node, placement, again)
                return found._replace(reason=f"{node.op.name}: {left or found.reason}")
            for source in written_sources(node)[1:]:  # the first is the result
                found = self.compared(placement.read(source), source, self.expected.allowed_in_source)
                worst = max(worst, found.nmse)
                if not found:
                    return found._replace(reason=f"{node.op.name}: {source!r}, which it writes, too: {found.reason}")
        return Comparison(True, worst, "")

    def _left(self, node: Tensor, placement: Placement, again: Callable[[], object]) -> str:
        """How much of a result still holds what it held before, and what else is wrong; or an empty string."""
        if node.root.op is None or not node.is_contiguous():
            return ""
        kind = node.type
        bits = self.expected.values.bits(node)
        moved = self.agreement == "bits" or bits.dtype == kind.dtype  # and not what is rounded at the end
        want: Array = bits if moved else encode(self.expected[node], kind, stored=True)
        wanted = np.frombuffer(want.tobytes(), np.uint8).reshape(-1, kind.block_bytes)
        blocks = placement.read_bytes(node).reshape(-1, kind.block_bytes)
        left = (blocks == UNWRITTEN).all(axis=1) & (wanted != UNWRITTEN).any(axis=1)
        if left.any():
            again()
            left &= (placement.read_bytes(node).reshape(-1, kind.block_bytes) == UNWRITTEN_TOO).all(axis=1)
        if not left.any():
            return ""
        shape = (*node.ne[:0:-1], node.ne[0] // kind.block_size)
        place = [int(i) for i in np.unravel_index(int(left.argmax()), shape)[::-1]]
        what = "blocks" if kind.block_size > 1 else "elements"
        unwritten = f"{int(left.sum())} of {left.size} {what} were not written, the first at {place} (ne order)"
        blocks[left] = wanted[left]
        others = self.of(node, blocks.reshape(-1))
        return unwritten if others else f"{unwritten}; and {others.reason}"


def _lost(node: Tensor, stored: Array) -> Array:
    """Which elements are NaN, or which blocks have no finite number."""
    values = decoded(stored, node)
    if not node.type.is_quantized:
        return np.isnan(values)
    return np.logical_not(np.isfinite(values.reshape(*stored.shape, node.type.block_size)).any(axis=-1))


def changed_outside(
    values: Mapping[Tensor, Bytes], expected: Expected, placement: Placement, before: list[Bytes]
) -> str:
    """What was changed that no node writes, or an empty string."""
    after = placement.snapshot()
    return stray_write(placement, after) or _changed_leaf(values, expected, placement, before, after)


def stray_write(placement: Placement, after: list[Bytes]) -> str:
    """Where a guard byte was changed, or an empty string."""
    for number, raw in enumerate(after):
        outside = np.ones(raw.size, bool)
        for root, (buffer, start) in placement.roots.items():
            if buffer == number:
                outside[start : start + placement.buffers[number].type.alloc_size(root)] = False
        changed = np.flatnonzero(outside & (raw != guard(raw.size)))
        if changed.size:
            return f"written out of bounds: {placement.whose(number, int(changed[0]))}"
    return ""


def _changed_leaf(
    values: Mapping[Tensor, Bytes], expected: Expected, placement: Placement, before: list[Bytes], after: list[Bytes]
) -> str:
    """Which leaf changed that no op declares to write, or where one changed that should have been left; or empty."""
    written = {source.root for node in placement.graph.nodes for source in written_sources(node)}
    for root, place in placement.roots.items():
        if root.op is not None or not root.nbytes:
            continue
        number, start = place
        old, new = (each[number][start : start + root.nbytes] for each in (before, after))
        differs = old != new
        for first, end in placement.shared(root):
            differs[first:end] = False
        changed = np.flatnonzero(differs)
        if not changed.size:
            continue
        if root not in written:
            return f"a source was modified: byte {int(changed[0])} of {root!r}"
        kept = _kept_blocks(root, values[root], expected)
        changes = (old != new).reshape(-1, root.type.block_bytes).any(axis=1)
        touched = changes.reshape(kept.shape) & kept
        if touched.any():
            touched &= ~(_nan_blocks(root, old) & _nan_blocks(root, new))
        if touched.any():
            place_in_root = tuple(int(i) for i in np.argwhere(touched)[0][::-1])
            return f"block {place_in_root} (ne order) of {root!r} was modified, which the op leaves as it is"
    return ""


def _kept_blocks(root: Tensor, raw: Bytes, expected: Expected) -> Any:
    """Of a leaf that is written, the blocks whose values are at the end what they were, and so are their bytes."""
    first, last = _values(root, raw), expected[root]
    kept = _of_blocks(root, (first == last) | ((first != first) & (last != last)))
    stored = expected.values.bits(root)
    kind = root.type
    if stored.dtype == kind.dtype:  # and not what is rounded to that at the end
        after = np.frombuffer(stored.tobytes(), np.uint8)
        kept &= (after == raw).reshape(-1, kind.block_bytes).all(axis=-1).reshape(kept.shape)
    return kept


def _nan_blocks(root: Tensor, raw: Bytes) -> Any:
    """The blocks without a number: an op may write a NaN of another sign or payload over one."""
    return _of_blocks(root, np.isnan(_values(root, raw)))


def _values(root: Tensor, raw: Bytes) -> Array:
    return evaluate(Graph(root), {root: raw})[root]


def _of_blocks(root: Tensor, elements: Array) -> Any:
    """Whether it is so of all elements of each block."""
    kind = root.type
    return elements.reshape(*root.ne[:0:-1], root.ne[0] // kind.block_size, kind.block_size).all(axis=-1)
