"""Cases of single nodes, made of what makes their sources; extents of whole blocks; what labels say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ggplug.errors import GGPlugError
from ggplug.ops.base import Array, Op
from ggplug.sketches import Sizes, Sketch, node
from ggplug.tensor import Tensor
from ggplug.types import KERNEL_FLOATS, Type
from ggplug_testing.cases.case import LAYOUTS, Case, Layout, Leafs

Make = Callable[[Leafs], Tensor]
"""Makes a source, or a node of sources."""


def leaf(type: Type, ne: Sequence[int], layout: Layout = "packed", **values: Any) -> Make:
    """A source; see :meth:`Leafs.tensor`."""
    return lambda leafs: leafs.tensor(type, *ne, layout=layout, **values)


def indices(count: tuple[int, ...], below: int, **how: Any) -> Make:
    """A source of indices; see :meth:`Leafs.indices`."""
    return lambda leafs: leafs.indices(count, below, **how)


def array(type: Type, values: Array) -> Make:
    """A source that holds these values."""
    return lambda leafs: leafs.array(type, values)


def bits(type: Type, words: Array) -> Make:
    """A source with these bits; see :meth:`Leafs.bits`."""
    return lambda leafs: leafs.bits(type, words)


def made(op: type[Op], /, *sources: Make | None, **parameters: Any) -> Make:
    """Makes a node: applies an op to the tensors that ``sources`` make; None for sources that are left out."""
    return lambda leafs: node(op, *(None if each is None else each(leafs) for each in sources), **parameters)


def case(op: type[Op], label: str, /, *sources: Make | None, **parameters: Any) -> Case:
    """A case of a single node."""
    return Case(op.name, label, made(op, *sources, **parameters))


def extents_of(sources: str, sizes: Sizes) -> list[list[int]]:
    """The extents of sources by names, as sketches have them: ``"n h, n 1"``."""
    return Sketch(tuple(sources.split(", "))).extents(sizes)


def taken(case: Case) -> Tensor | Exception:
    """The node of a case, or what its op raises where its shape rule refuses the sources."""
    try:
        node = case.make(Leafs(0))
    except (GGPlugError, TypeError) as error:  # TypeError: an op may have parameters without a default
        return error
    assert isinstance(node, Tensor)
    return node


def named(parameters: Mapping[str, object]) -> str:
    """``s0=2 p0=1``: parameters in a label."""
    return " ".join(f"{name}={value}" for name, value in parameters.items())


def laid(
    op: type[Op],
    ne: Sequence[int],
    /,
    types: Iterable[Type] = KERNEL_FLOATS,
    layouts: Iterable[Layout] = LAYOUTS,
    *,
    what: str = "",
    values: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> Iterator[Case]:
    """Cases of a source of each of these types in each of these layouts; ``what`` ends their labels."""
    for type in types:
        for layout in layouts:
            yield case(op, spell(type, ne, layout) + what, leaf(type, ne, layout, **(values or {})), **parameters)


def spell(type: Type, ne: Iterable[int], layout: Layout = "packed") -> str:
    """``f32[7x5] permuted``: a source in a label."""
    return f"{type.name}[{'x'.join(map(str, ne))}]" + ("" if layout == "packed" else f" {layout}")


def in_blocks(length: int, *types: Type) -> int:
    """The next length that is a whole number of blocks of each type."""
    unit = math.lcm(*(type.block_size for type in types))
    return -(-length // unit) * unit


def whole_blocks(ne: tuple[int, ...], *types: Type) -> tuple[int, ...]:
    """These extents, but rows as :func:`in_blocks` makes them."""
    return (in_blocks(ne[0], *types), *ne[1:])
