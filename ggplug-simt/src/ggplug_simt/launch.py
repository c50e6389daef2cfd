"""What a match answers: a kernel as one or more launches of programs, with everything but addresses."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug.backend import Decline
from ggplug.tensor import Extents, Tensor
from ggplug_simt.source import Source

LIMIT = 1 << 31
"""Work-items and work-groups are counted in 32 bits."""

LONGEST = LIMIT - (1 << 16)
"""Extents are counted in 32 bits too, and loops step somewhat beyond them."""

TENSOR = np.dtype([("offset", "i8"), ("nb", "i8", 4), ("ne", "i4", 4)], align=True)
"""``tensor`` of dialect/access.h."""

_SCALARS = {"float": "f4", "int": "i4"}

DST = -1
"""Position of the result: the others count ``group.operands`` from there, so a node's sources begin at 0."""

SCRATCH = -2
"""Position of memory that only the launches of one kernel share: see ``Kernel.scratch``."""

FAULTS = -3
"""Position of the stream's record of indices out of range: see :mod:`ggplug_simt.faults`."""


class Operand(NamedTuple):
    """A tensor of a launch: which one of the group's, ``delta`` bytes into it, and the extents and strides to use."""

    position: int
    ne: Extents
    nb: Extents
    delta: int = 0


def operand(position: int, tensor: Tensor) -> Operand:
    """A tensor as it is."""
    return Operand(position, tensor.ne, tensor.nb)


@dataclass(frozen=True)
class Product:
    """What a launch runs where the vendor's library multiplies matrices: no program, but arguments like one.

    dst[m, n] = sum over k of a[k, m] b[k, n], of float32, for each matrix of dimension 2; a stride of 0 there takes the
    same one again.  Elements of a row lie side by side.  ``exact``: no bits of a and b are dropped before they
    are multiplied, as tensor cores do.
    """

    exact: bool
    tensors: ClassVar[tuple[str, ...]] = ("dst", "a", "b")
    scalars: ClassVar[tuple[tuple[str, str], ...]] = ()

    def __str__(self) -> str:
        return "library_product[exact]" if self.exact else "library_product"


class Launch(NamedTuple):
    """One launch: ``groups`` work-groups of ``lanes`` items; ``operands`` as the source's tensors are ordered."""

    source: Source | Product
    groups: int
    lanes: int
    operands: tuple[Operand, ...]
    values: tuple[float | int, ...]

    def arguments(self) -> npt.NDArray[Any]:
        """The arguments struct; offsets are those within the operands."""
        filled = np.zeros((), layout(self.source.tensors, self.source.scalars))
        for name, place in zip(self.source.tensors, self.operands, strict=True):
            filled[name]["offset"] = place.delta
            filled[name]["nb"] = place.nb
            filled[name]["ne"] = place.ne
        with np.errstate(over="ignore"):  # what float32 does not reach is infinite in it
            for (name, _), value in zip(self.source.scalars, self.values, strict=True):
                filled[name] = value
        return filled


class Kernel(NamedTuple):
    """How a node is computed: launches in order, and the bytes of scratch memory that they need meanwhile."""

    name: str
    launches: tuple[Launch, ...]
    scratch: int = 0


NOTHING = Kernel("nothing", ())
"""Computes nodes that have no elements."""


@functools.lru_cache(maxsize=1024)
def layout(tensors: tuple[str, ...], scalars: tuple[tuple[str, str], ...]) -> np.dtype[Any]:
    """The arguments struct as C lays it out."""
    fields: list[tuple[str, Any]] = [(name, TENSOR) for name in tensors]
    fields += [(name, _SCALARS[kind]) for name, kind in scalars]
    return np.dtype(fields, align=True)


def launch(
    family: str,
    kernel: str,
    operands: Mapping[str, Operand],
    *,
    groups: int,
    lanes: int,
    defines: Mapping[str, object],
    **values: float | int,
) -> Launch | Decline:
    """A launch of ``kernel`` in ``family``; ``values`` become members of its arguments, as float or int.

    Those of the operand ``ids``, whose type ``defines`` tells as ID_TYPE, may be out of range.  The kernel then has the
    record of such faults as another operand, and the plan tells it what to note there: ``plan`` and ``node``.
    """
    if "ids" in operands:
        operands = {**operands, "faults": Operand(FAULTS, (1, 1, 1, 1), (0, 0, 0, 0))}
        values = {**values, "plan": 0, "node": 0}
    if groups * lanes >= LIMIT:
        return Decline(f"{kernel} counts work-items in 32 bits, {groups * lanes} are too many")
    longest = max(n for o in operands.values() for n in o.ne)
    if longest > LONGEST:
        return Decline(f"{kernel} counts elements of a dimension in 32 bits, {longest} are too many")
    if any(isinstance(value, int) and abs(value) >= LIMIT for value in values.values()):
        return Decline(f"{kernel} has parameters beyond 32 bits: {values}")
    scalars = tuple((name, "float" if isinstance(value, float) else "int") for name, value in values.items())
    spelled = [("LANES", str(lanes)), *((name, str(value)) for name, value in defines.items())]
    source = Source(family, kernel, tuple(spelled), tuple(operands), scalars)
    return Launch(source, groups, lanes, tuple(operands.values()), tuple(values.values()))


def kernel_of(*launches: Launch | Decline, scratch: int = 0) -> Kernel | Decline:
    """The kernel that runs these launches, or the first reason why not."""
    for each in launches:
        if isinstance(each, Decline):
            return each
    made = tuple(each for each in launches if isinstance(each, Launch))
    return Kernel(" + ".join(dict.fromkeys(str(each.source) for each in made)), made, scratch)


def units(ne: Extents, unit: int) -> int:
    """Units of ``unit`` elements in the rows of these extents."""
    return -(-ne[0] // unit) * ne[1] * ne[2] * ne[3]


def collapsed(operands: Sequence[Operand], block_sizes: Sequence[int]) -> list[Operand]:
    """The same elements in as few and as long dimensions as all operands, and counting in 32 bits, allow.

    All have the same extents; strides may be 0.  The first operand's contiguous order is kept.
    """
    ne = list(operands[0].ne)
    strides = [list(o.nb) for o in operands]
    d = 0
    kept = list(range(4))
    while d + 1 < len(kept):
        low, high = kept[d], kept[d + 1]
        if ne[high] == 1 or (
            ne[low] * ne[high] <= LONGEST
            and all(
                nb[high] == (nb[low] * ne[low] // (size if low == 0 else 1))
                for nb, size in zip(strides, block_sizes, strict=True)
            )
        ):
            ne[low] *= ne[high]
            del kept[d + 1]
        elif ne[low] == 1 and low != 0:
            kept.pop(d)
        else:
            d += 1
    extents = [ne[k] for k in kept] + [1] * (4 - len(kept))
    result = []
    for o, nb in zip(operands, strides, strict=True):
        full = [nb[k] for k in kept] + [0] * (4 - len(kept))
        result.append(Operand(o.position, tuple(extents), tuple(full), o.delta))  # type: ignore[arg-type]
    return result
