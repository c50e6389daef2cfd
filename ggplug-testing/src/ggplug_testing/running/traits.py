"""What can be said of a case by looking at its node: types, strides, offsets, extents, parameters, special values.

Where each case that fails has a trait that no case has that passed, the trait is a hint at the fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np

from ggplug.tensor import Extents, Operation, Tensor
from ggplug.types import BF16, F16, F32
from ggplug_testing.running.placement import Bytes

_MULTIPLES = (2, 4, 8, 16, 32, 64, 256)
_MANY = (16, 32, 64, 128, 256, 512, 1024, 4096, 65535)
"""Sizes of vector registers, work groups, tiles and counters."""

_COUNTS = ("row length", "number of rows", "number of matrices", "number of batches")
"""What the extents of a tensor count."""

_LARGEST = {F32: (np.uint32, 0x7F800000), F16: (np.uint16, 0x7C00), BF16: (np.uint16, 0x7F80)}
"""The bits of the exponent, which are all set in what is not finite."""


def traits_of(node: Tensor, values: Mapping[Tensor, Bytes], fault: object = None) -> Iterator[str]:
    """The traits of a node, each a phrase behind "has"; a node that is not computed, because it is empty, has none.

    ``values``: the bytes of leafs; ``fault``: an id out of range, if there is one.  Of traits that differ only in a
    number the last says the most.
    """
    if not node.size:
        return
    if fault is not None:
        yield "an id out of range"
    op = node.op
    assert op is not None
    for name, source in zip(op.sources, node.src, strict=True):
        if source is None:
            yield f"no {name}"
            continue
        yield f"{name} of {source.type.name}"
        yield from _layout(name, source)
        yield from _extents(name, source.ne)
        raw = values.get(source.root)
        if raw is not None and _has_others_than_numbers(source.root, raw):
            yield f"NaN or infinities in {name}"
        for dim in range(4):
            if source.ne[dim] != node.ne[dim]:
                yield f"a result with another {_COUNTS[dim]} than {name}"
    yield f"a result of {node.type.name}"
    yield from _layout("the result", node)
    yield from _extents("the result", node.ne)
    yield from _parameters(op)


def _layout(name: str, tensor: Tensor) -> Iterator[str]:
    if tensor.view_offset:
        yield f"an offset of {name}"
        if tensor.view_offset % 16:
            yield f"an offset of {name} that is no multiple of 16 bytes"
    if not tensor.is_contiguous():
        yield f"strides of {name} that leave gaps or are in another order"
        if tensor.nb[0] != tensor.type.block_bytes:
            yield f"elements of {name} that are apart"
        if tensor.is_permuted():
            yield f"a permuted {name}"


@lru_cache(maxsize=1024)
def _extents(name: str, ne: Extents) -> list[str]:
    length, rows = ne[0], math.prod(ne[1:])
    found = [] if math.prod(ne) else [f"no elements in {name}"]
    found += [f"rows of {name} whose length is a multiple of {unit}" for unit in _MULTIPLES if length % unit == 0]
    found += [f"rows of {name} whose length is no multiple of {unit}" for unit in _MULTIPLES[::-1] if length % unit]
    for count in _MANY:
        if length > count:
            found.append(f"rows of {name} longer than {count:,}")
        if rows > count:
            found.append(f"more than {count:,} rows in {name}")
    found.append(f"rows of {name} of {'one element' if length == 1 else 'several elements'}")
    found.append(f"a single row in {name}" if rows == 1 else f"several rows in {name}")
    return found + [f"a {_COUNTS[dim]} of {name} above one" for dim in (2, 3) if ne[dim] > 1]


def _parameters(op: Operation) -> Iterator[str]:
    for name in op.parameters:
        value, default = getattr(op, name), getattr(type(op), name, None)
        if isinstance(value, (bool, int, float, str, tuple)):
            yield f"{name}={value!r}"
            if default is not None and value != default:
                yield f"{name} other than {default!r}"


def _has_others_than_numbers(root: Tensor, raw: Bytes) -> bool:
    known = _LARGEST.get(root.type)
    if known is None:
        return False
    dtype, exponent = known
    return bool(((raw.view(dtype) & exponent) == exponent).any())
