"""Whether what came out, and every byte around it, is what it must be.  Raises Fault for what is not."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug import ops
from ggplug.errors import GGPlugError
from ggplug.graph import Graph
from ggplug.host import HOST
from ggplug.nodes.hazards import written_sources
from ggplug.tensor import Tensor, strided
from ggplug_testing.devices.reference import ReferenceDevice
from ggplug_testing.drawing.draw import Source
from ggplug_testing.judging.comparison import compare
from ggplug_testing.judging.oracle import can_interpret, decoded, moves_bits

from .draw import Built
from .expect import Expected, difference, written_twice
from .guard import Place
from .outcome import Fault

Bytes = npt.NDArray[np.uint8]


def judge_leafs(built: Built, raw: Mapping[Tensor, Bytes], places: Mapping[Tensor, Place]) -> None:
    """Values of persistent tensors come back as they were stored, and can be stored again; empty ones too."""
    for source in built.viewed:
        if source is None or source.root.buffer is None or source.root not in raw:
            continue
        try:
            got = source.numpy()
        except GGPlugError as error:
            if not can_interpret(source, written=False):
                raise Fault("numpy", f"numpy() of {source!r} raises {type(error).__name__}: {error}") from error
            continue
        if got.shape != source.shape:
            raise Fault("numpy", f"numpy() of {source!r} has shape {got.shape}")
        if source.size:
            with np.errstate(all="ignore"):
                want = decoded(strided(raw[source.root][source.view_offset :], source), source).reshape(source.shape)
                if not np.array_equal(got.astype(want.dtype), want, equal_nan=want.dtype.kind == "f"):
                    raise Fault("numpy", f"numpy() of {source!r} gives other values than were stored")
        if source.type.is_quantized or can_interpret(source, written=True) or not source.size or _overlaps(source):
            continue
        try:
            source.set(got)
        except GGPlugError as error:
            raise Fault("set", f"set() of {source!r} raises {type(error).__name__}: {error}") from error
        with np.errstate(all="ignore"):
            again = decoded(strided(places[source.root].get()[source.view_offset :], source), source)
        with np.errstate(invalid="ignore"):  # of signalling NaNs
            same = got.astype(again.dtype).reshape(again.shape)
        if not np.array_equal(again, same, equal_nan=again.dtype.kind == "f"):
            raise Fault("set", f"set() of {source!r} stores other values than its argument has")
        source.root.set_bytes(raw[source.root])


def judge_memory(
    built: Built,
    raw: Mapping[Tensor, Bytes],
    places: Mapping[Tensor, Place],
    expected: Expected | None,
    shared: Tensor | None,
    *,
    changed: bool,
) -> None:
    """Nothing outside of the tensors was written, and no leaf but what the op writes, where it writes it.

    ``shared``: the source in whose place the result lies.  ``changed``: whether anything was computed.
    """
    written: dict[Tensor, list[Tensor]] = {}
    if changed:
        for node in built.graph.nodes:
            for number, source in enumerate(written_sources(node)):
                written.setdefault(source.root, []).append(source if number else node)
    for root, place in places.items():
        stray = place.stray()
        if stray:
            raise Fault("outside", f"outside of {root!r}: {stray}")
        if root not in raw:
            continue
        before, after = raw[root], place.get()
        keep = untouched(root, written.get(root, []))
        if shared is not None and shared.root is root:
            keep &= untouched(root, [shared])
        wrong = np.flatnonzero((before != after) & keep)
        if wrong.size:
            what = "between the elements that are written" if root in written else "of a tensor that is only read"
            raise Fault("overwritten", f"{wrong.size} bytes {what} were changed: byte {int(wrong[0])} of {root!r}")
        if root in written and expected is not None:
            _judge_kept(written[root][-1], expected, before, after)


def judge_vast(sources: Sequence[Source | None], extent: int) -> None:
    """A tensor without elements has no bytes, whatever its other extents are, and is read and set without accident."""
    type = next(s.type for s in sources if s is not None)
    for ne in ((0, extent), (type.block_size, 0, extent), (type.block_size * extent, 0)):
        steps: list[Callable[[Tensor], Any]] = [
            lambda t: t.place(HOST.alloc(t.nbytes)),
            lambda t: t.numpy().shape,
            lambda t: t.tobytes(),
            lambda t: t.set(np.empty(0, np.float32)),
            lambda t: gg.compute(gg.cont(t), backends=[ReferenceDevice()]).numpy().shape,
        ]
        try:
            tensor = gg.new_tensor(type, ne)
        except GGPlugError:
            continue
        if tensor.nbytes:
            raise Fault("vast", f"{tensor!r} has {tensor.nbytes} bytes")
        for step in steps:
            try:
                answer = step(tensor)
            except GGPlugError:
                continue
            except Exception as error:
                raise Fault("vast", f"{ne}: untyped {''.join(traceback.format_exception(error))}") from error
            if isinstance(answer, tuple) and answer != tensor.shape:
                raise Fault("vast", f"numpy() of {tensor!r} has shape {answer}")


def untouched(leaf: Tensor, views: Sequence[Tensor]) -> npt.NDArray[np.bool_]:
    """Which bytes of a leaf belong to none of these views of it."""
    kept = np.ones(leaf.nbytes, np.uint8)
    for view in views:
        if view.size:
            covered = strided(kept[view.view_offset :], view)
            covered[...] = np.zeros((), covered.dtype)
    return kept.astype(bool)


def _judge_kept(node: Tensor, expected: Expected, before: Bytes, after: Bytes) -> None:
    """Rows that no index names keep their bits."""
    if node.op is None or node.op.indexes is None or not node.op.writes or not node.size or is_open(node):
        return
    ids = node.src[node.op.indexes.ids]
    assert ids is not None
    chosen = expected.values[ids]
    named = np.zeros(node.ne[:0:-1], bool)
    for k in range(named.shape[0]):
        for j in range(named.shape[1]):
            some = chosen[0, k % chosen.shape[1], j % chosen.shape[2]]
            named[k, j, some[(some >= 0) & (some < node.ne[1])]] = True
    old, new = (np.ascontiguousarray(strided(raw[node.view_offset :], node)[~named]) for raw in (before, after))
    if not np.array_equal(old.view(np.uint8), new.view(np.uint8)):
        raise Fault("overwritten", f"rows of {node!r} that no index names were changed")


def judge_values(built: Built, expected: Expected, found: Mapping[Tensor, Bytes], *, own_sources: bool) -> None:
    """Each node's values are the oracle's, or near enough.

    ``own_sources``: whether all nodes were seen, so that each is judged by its sources as they were.
    """
    if any(is_open(node) for node in built.graph.nodes):
        return
    nodes = built.graph.nodes
    written = {source.root for node in nodes for source in written_sources(node)}
    for node, raw in found.items():
        if node.op is None or not node.size:
            continue
        # What a later node makes of rows that were written is not seen apart from the writing.
        seen = node.root in written or all(s is None or s.root not in written for s in node.src)
        exact = len(nodes) == 1 or (own_sources and seen)
        if (moves_bits(node) and exact) or node not in expected.values:
            wrong = np.flatnonzero(expected.bytes[node] != raw)
            if wrong.size:
                raise Fault("bits", f"{node!r} moves elements, but {wrong.size} of {raw.size} bytes are not kept")
            continue
        blocks = raw.view(node.type.dtype).reshape(*node.ne[:0:-1], -1)
        with np.errstate(all="ignore"):
            got, want = decoded(blocks, node), expected.values[node]
            sources = [None if s is None else expected.values.get(s) for s in node.src]
        reason = difference(node, got, want, sources, expected, own_sources=exact)
        if reason:
            raise Fault("values", f"{node!r}: {reason}")


def judge_others(built: Built, expected: Expected, places: Mapping[Tensor, Place]) -> None:
    """What an op of several leaves in the sources that it writes in addition to the first."""
    if any(is_open(node) for node in built.graph.nodes):
        return
    for source, want in expected.others.items():
        if source.root not in places:
            continue  # a result that the stream placed
        with np.errstate(all="ignore"):
            got = decoded(strided(places[source.root].get()[source.view_offset :], source), source)
        reason = compare(got.reshape(want.shape), want, 1e-10).reason
        if reason:
            raise Fault("values", f"{source!r}, which is written too: {reason}")


def same_again(graph: Graph, results: Sequence[Mapping[Tensor, Bytes]], expected: Expected | None) -> None:
    """Both computations gave the same bits, whatever lay in the memory around."""
    if len(results) < 2 or any(is_open(node) or _in_any_order(node, expected) for node in graph.nodes):
        return
    first, second = results
    for node in first:
        if node in second and not np.array_equal(first[node], second[node]):
            raise Fault("not the same", f"{node!r} is not the same when it is computed again over other garbage")


def _in_any_order(node: Tensor, expected: Expected | None) -> bool:
    """Whether several rows are written to one, and so the last of them stays."""
    if not isinstance(node.op, ops.SetRows) or expected is None or node not in expected.values:
        return False
    sources = [None if source is None else expected.values.get(source) for source in node.src]
    return bool(written_twice(expected.values[node], sources).any())


def is_open(node: Tensor) -> bool:
    """Whether values have no one answer: elements that are written share bytes, or lie on what is read meanwhile."""
    if node.op is None or not node.op.writes or not node.size:
        return False
    if any(_overlaps(source) for source in written_sources(node)[1:]):
        return True
    count = np.zeros(node.root.nbytes, np.uint8)
    one = _one_block(node)
    strided(count[node.view_offset :], node)[...] = one
    if _overlaps(node):
        return True
    for number, source in enumerate(node.src):
        if number not in node.op.writes and source is not None and source.root is node.root and source.size:
            same = (source.ne, source.nb, source.view_offset) == (node.ne, node.nb, node.view_offset)
            read = np.zeros(node.root.nbytes, np.uint8)
            strided(read[source.view_offset :], source)[...] = one
            if (count & read).any() and not same:
                return True
    return False


def _one_block(tensor: Tensor) -> Any:
    """A block of bytes of 1."""
    return np.frombuffer(b"\1" * tensor.type.block_bytes, tensor.type.dtype)[0]


def _overlaps(tensor: Tensor) -> bool:
    """Whether elements of a tensor share bytes."""
    count = np.zeros(tensor.root.nbytes, np.uint8)
    if tensor.size:
        strided(count[tensor.view_offset :], tensor)[...] = _one_block(tensor)
    return int(count.sum()) != tensor.size // tensor.type.block_size * tensor.type.block_bytes


def packed(raw: Bytes, node: Tensor) -> Bytes:
    """The elements of a node, packed, out of the bytes from its first one on."""
    if not node.size:
        return np.empty(0, np.uint8)
    return np.ascontiguousarray(strided(np.ascontiguousarray(raw), node)).reshape(-1).view(np.uint8).copy()
