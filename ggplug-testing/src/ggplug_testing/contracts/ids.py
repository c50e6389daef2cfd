"""Nodes of every op that reads ids: their computation fails if an id is out of range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ggplug.backend import Device, limit_of_ids
from ggplug.ops.base import OPS
from ggplug.sketches import EXTENTS, Outlines, maker, sketches
from ggplug.tensor import Tensor
from ggplug.values.arrays import encode
from ggplug_testing.running.placement import Bytes


def nodes_with_ids(device: Device) -> Iterator[Tensor]:
    """A small node of each op with ids in each of the types of its cases, as far as the device supports them."""
    for op in OPS.values():
        seen = set()
        for sketch in sketches(op) if op.indexes is not None else ():
            types = sketch.kinds()
            if types in seen:
                continue
            seen.add(types)
            node = maker(op, sketch, EXTENTS, sketch.layouts())(Outlines())
            if device.supports_op(node):
                yield node


def values_of(node: Tensor) -> Mapping[Tensor, Bytes]:
    """Bytes for the sources of such a node, with ids that are in range."""
    random = np.random.default_rng(len(node.src))
    found: dict[Tensor, Bytes] = {}
    for source in node.src:
        if source is not None and source is not ids_of(node):
            found[source] = encode(random.uniform(0.5, 2, source.ne[::-1]).astype(np.float32).round(), source.type)
    return {**found, ids_of(node): ids(node)}


def ids_of(node: Tensor) -> Tensor:
    """The source that holds the ids."""
    assert node.op is not None
    assert node.op.indexes is not None
    found = node.src[node.op.indexes.ids]
    assert found is not None
    return found


def ids(node: Tensor, *, wrong: bool = False) -> Bytes:
    """Ids 0, 1, 2, ... for each row of them; the first one just out of range if ``wrong``."""
    source = ids_of(node)
    limit = limit_of_ids(node)
    chosen = np.resize(np.arange(source.ne[0]) % limit, source.ne[::-1])
    if wrong:
        chosen.flat[0] = limit
    return encode(chosen, source.type)
