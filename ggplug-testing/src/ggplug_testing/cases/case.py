"""What a case is, and the random leafs that it is made of."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ggplug import quants
from ggplug.errors import ParameterError
from ggplug.graph import Graph
from ggplug.ops.base import Array
from ggplug.sketches import LAYOUTS as LAYOUTS
from ggplug.sketches import Layout as Layout
from ggplug.sketches import laid
from ggplug.sketches import node as node
from ggplug.tensor import Extents, Tensor, extents
from ggplug.types import I32, Type, as_type
from ggplug.values.arrays import as_bytes, encode
from ggplug_testing.judging.comparison import Agreement

ROWWISE: tuple[Layout, ...] = LAYOUTS[:5]
"""The layouts whose rows are contiguous."""

QUANTIZED: tuple[Type, ...] = quants.block_types()
ENCODED: tuple[Type, ...] = tuple(filter(quants.can_store, QUANTIZED))
"""The block types that values can be rounded to."""

LENGTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 1025)
"""Row lengths around the widths of vector registers, work groups and blocks, and odd ones."""

Bytes = npt.NDArray[np.uint8]
Values = Callable[[np.random.Generator, tuple[int, ...]], Array]


class Leafs:
    """Makes the leafs of one case and remembers their bytes; the same seed makes the same ones.

    The bytes are made, in the order of the leafs, when :attr:`values` or :attr:`random` is first used: a case
    that a device declines costs none.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._values: dict[Tensor, Bytes] = {}
        self._pending: list[Callable[[], object]] = []

    @property
    def values(self) -> dict[Tensor, Bytes]:
        """The bytes of each leaf, which may be changed."""
        self._make_pending()
        return self._values

    @property
    def random(self) -> np.random.Generator:
        """Draws what comes next; what leafs that are there already need was drawn before."""
        self._make_pending()
        return self._random

    def change(self, how: Callable[[dict[Tensor, Bytes]], object]) -> None:
        """Changes the bytes of leafs that are there already, when they are made."""
        self._pending.append(lambda: how(self._values))

    def _make_pending(self) -> None:
        pending, self._pending = self._pending, []
        for make in pending:
            make()

    def _made(self, type: Type | str, ne: tuple[int, ...], layout: Layout, make: Callable[[Tensor], Bytes]) -> Tensor:
        """A tensor of these extents; ``make`` answers the bytes of its root."""
        full, rank = extents(ne)
        made = self._lay(as_type(type), full, rank, layout)
        self.change(lambda values: values.update({made.root: make(made)}))
        return made

    def tensor(
        self,
        type: Type | str,
        *ne: int,
        layout: Layout = "packed",
        values: Values | None = None,
        low: float | None = None,
        high: float | None = None,
    ) -> Tensor:
        """A tensor of these extents, perhaps a view of a larger leaf, with random values.

        Floats are normally distributed, or uniform between ``low`` and ``high``; integers uniform from ``low`` to
        ``high - 1``, or over the whole range of their type, most of which a float of the same size does not hold;
        ``values`` is a function that makes them instead.  Bytes of the leaf outside of a view are random too.  For a
        type without an encoder, blocks are random bytes with scales of some hundredths.
        """
        kind = as_type(type)
        if kind.is_quantized and not quants.can_store(kind):
            return self._made(kind, ne, layout, lambda made: _random_blocks(self._random, made.root))
        generate = values or (lambda random, shape: _random(random, shape, kind, low, high))
        return self._made(kind, ne, layout, lambda made: encode(generate(self._random, made.root.ne[::-1]), kind))

    def array(self, type: Type | str, values: Array, layout: Layout = "packed") -> Tensor:
        """A tensor that holds these values, in NumPy order."""
        return self._made(type, values.shape[::-1], layout, lambda made: _surrounded(made, values))

    def bits(self, type: Type | str, words: Array) -> Tensor:
        """A contiguous tensor of a plain type with these bits, as unsigned integers in NumPy order."""
        return self._made(
            type, words.shape[::-1], "packed", lambda made: as_bytes(words.astype(f"u{made.type.block_bytes}"))
        )

    def any_bytes(self, type: Type | str, *ne: int, layout: Layout = "packed") -> Tensor:
        """A tensor of these extents whose root holds any bytes at all, also blocks that no numbers are rounded to."""
        return self._made(type, ne, layout, lambda made: self._random.integers(0, 256, made.root.nbytes, np.uint8))

    def indices(
        self,
        count: tuple[int, ...],
        below: int,
        *,
        type: Type | str = I32,
        distinct: bool = False,
        layout: Layout = "packed",
    ) -> Tensor:
        """Indices of ``count`` (ne order) in 0 .. ``below`` - 1; ``distinct`` ones differ within each row."""
        shape = count[::-1]

        def chosen() -> Array:
            if not distinct:
                return self._random.integers(0, max(below, 1), shape)
            rows = [self._random.permutation(below)[: shape[-1]] for _ in range(math.prod(shape[:-1]))]
            return np.array(rows, np.int64).reshape(shape)

        return self._made(type, count, layout, lambda made: _surrounded(made, chosen()))

    def _lay(self, type: Type, ne: Extents, rank: int, layout: Layout) -> Tensor:
        return laid(type, ne, rank, layout)


def _surrounded(tensor: Tensor, values: Array) -> Bytes:
    """The bytes of a tensor's root, of which the tensor shows these values.

    What surrounds a view is filled with the first value, so that it is a valid one (an index, say).
    """
    type, root = tensor.type, tensor.root
    values = values.reshape(tensor.ne[::-1])
    if root is tensor:
        return encode(values, type)
    raw = encode(np.full(root.ne[::-1], values.flat[0] if values.size else 0), type)
    target = np.ndarray(tensor.ne[::-1], type.dtype, raw.data, tensor.view_offset, tensor.nb[::-1])
    target[...] = encode(values, type).view(type.dtype).reshape(tensor.ne[::-1])
    return raw


def _random(
    random: np.random.Generator, shape: tuple[int, ...], type: Type, low: float | None, high: float | None
) -> Array:
    if type.dtype.kind == "i" and not type.is_quantized:
        limits = np.iinfo(type.dtype)
        first, last = limits.min if low is None else int(low), limits.max if high is None else int(high) - 1
        return random.integers(first, last, shape, type.dtype, endpoint=True)
    if low is None and high is None:
        return random.standard_normal(shape).astype(np.float32)
    return random.uniform(low or 0, 1 if high is None else high, shape).astype(np.float32)


def _random_blocks(random: np.random.Generator, tensor: Tensor) -> Bytes:
    """Blocks of any bits, but for scales of some hundredths, which leave numbers of about one."""
    raw = random.integers(0, 256, tensor.size // tensor.type.block_size * tensor.type.block_bytes, np.uint8)
    quants.put_scales(raw, tensor.type, random.uniform(0.01, 0.04, tensor.size // tensor.type.block_size))
    return raw


@dataclass(frozen=True)
class Case:
    """One graph to compute: a recipe that makes it, so that a case costs nothing until it runs.

    ``op``: the name of the op under test.  ``label``: what is special, unique within the op.  ``make``: builds the
    graph and answers its result.  ``agreement``: how closely results have to agree; how precise they have to be is
    derived (:mod:`ggplug_testing.precision`).  ``every_type``: it is computed in each run, also where cases that differ
    in nothing but a block type are chosen by rotation.  ``seed`` follows from op and label.
    """

    op: str
    label: str
    make: Callable[[Leafs], Tensor | Iterable[Tensor]]
    agreement: Agreement = "values"
    every_type: bool = False

    @property
    def seed(self) -> int:
        return zlib.crc32(f"{self.op} {self.label}".encode())

    def graph(self, leafs: Leafs) -> Graph:
        """The graph over leafs of their own."""
        made = self.make(leafs)
        return Graph(*([made] if isinstance(made, Tensor) else made))

    def __str__(self) -> str:
        return f"{self.op}: {self.label}"


def labelled(cases: Iterable[Case]) -> list[Case]:
    """The cases, each with a label of its own.  Raises ParameterError if two of an op have the same."""
    result = list(cases)
    seen: set[tuple[str, str]] = set()
    for case in result:
        if (case.op, case.label) in seen:
            raise ParameterError(
                f"two cases of {case.op} are called {case.label!r}",
                got=case.label,
                remedy="say in each label what is special, or leave one of them out",
            )
        seen.add((case.op, case.label))
    return result
