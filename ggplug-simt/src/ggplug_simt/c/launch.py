"""Launches of programs in C: their argument structs, and how choosers make them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ggplug.backend import Decline
from ggplug.tensor import Extents
from ggplug_simt.c.source import Source
from ggplug_simt.library import FAULTS, Launch, Launches, TensorArgument, VendorProgram

LIMIT = 1 << 31
"""Work-items and work-groups are counted in 32 bits."""

LONGEST = LIMIT - (1 << 16)
"""Extents are counted in 32 bits too, and loop counters exceed them slightly."""

TENSOR = np.dtype([("offset", "i8"), ("nb", "i8", 4), ("ne", "i4", 4)], align=True)
"""``tensor`` of dialect/access.h."""

RECORD = np.dtype([("plan", "i4"), ("node", "i4"), ("id", "i8"), ("number", "i8")], align=True)
"""``fault_record`` of dialect/faults.h."""

_SCALARS = {"float": "f4", "int": "i4"}


@dataclass(frozen=True)
class MatrixProduct(VendorProgram):
    """Matrix products by the vendor's library of functions (cuBLAS).

    dst[m, n] = sum over k of a[k, m] b[k, n], of float32, for each matrix of dimension 2; a stride of 0 there repeats
    the same one.  Rows are dense.  ``exact``: a and b are not rounded before they are multiplied, as tensor cores
    do.
    """

    exact: bool
    kernel: ClassVar[str] = "library_product"
    tensors: ClassVar[tuple[str, ...]] = ("dst", "a", "b")
    scalars: ClassVar[tuple[tuple[str, str], ...]] = ()

    def __str__(self) -> str:
        return "library_product[exact]" if self.exact else "library_product"


def arguments(launch: Launch, **noted: int) -> npt.NDArray[np.uint8]:
    """The bytes of the arguments struct; offsets are those within the tensors."""
    program = launch.program
    assert isinstance(program, (Source, MatrixProduct))
    filled = np.zeros((), layout(program.tensors, program.scalars))
    for name, each in zip(program.tensors, launch.tensors, strict=True):
        filled[name]["offset"] = each.delta
        filled[name]["nb"] = each.nb
        filled[name]["ne"] = each.ne
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinite
        for (name, _), value in zip(program.scalars, launch.values, strict=True):
            filled[name] = noted.get(name, value) if name in ("plan", "node") else value
    return np.frombuffer(filled.tobytes(), np.uint8)


@functools.lru_cache(maxsize=1024)
def layout(tensors: tuple[str, ...], scalars: tuple[tuple[str, str], ...]) -> np.dtype[Any]:
    """The arguments struct as C lays it out."""
    fields: list[tuple[str, Any]] = [(name, TENSOR) for name in tensors]
    fields += [(name, _SCALARS[kind]) for name, kind in scalars]
    return np.dtype(fields, align=True)


def launch(
    family: str,
    kernel: str,
    tensors: Mapping[str, TensorArgument],
    *,
    groups: int,
    lanes: int,
    defines: Mapping[str, object],
    **values: float | int,
) -> Launch | Decline:
    """A launch of ``kernel`` in ``family``; ``values`` become members of its arguments, as float or int.

    Elements of the tensor ``ids``, whose type is the define ID_TYPE, may be out of range.  The kernel then has the
    record of faults as another tensor, and the plan sets the values that it records: ``plan`` and ``node``.
    """
    if "ids" in tensors:
        record = TensorArgument(FAULTS, (1, 1, 1, 1), (0, 0, 0, 0), span=RECORD.itemsize, written=True)
        tensors = {**tensors, "faults": record}
        values = {**values, "plan": 0, "node": 0}
    if groups * lanes >= LIMIT:
        return Decline(f"{kernel} counts work-items in 32 bits, {groups * lanes} are too many")
    longest = max(n for o in tensors.values() for n in o.ne)
    if longest > LONGEST:
        return Decline(f"{kernel} counts elements of a dimension in 32 bits, {longest} are too many")
    if any(isinstance(value, int) and abs(value) >= LIMIT for value in values.values()):
        return Decline(f"{kernel} has parameters beyond 32 bits: {values}")
    scalars = tuple((name, "float" if isinstance(value, float) else "int") for name, value in values.items())
    spelled = [("LANES", str(lanes)), *((name, str(value)) for name, value in defines.items())]
    writes = tuple(name for name, each in tensors.items() if each.written)
    source = Source(family, kernel, tuple(spelled), tuple(tensors), writes, scalars)
    return Launch(source, groups, lanes, tuple(tensors.values()), tuple(values.values()))


def launches_of(*launches: Launch | Decline, scratch: int = 0) -> Launches | Decline:
    """These launches, one after the other, or the first decline."""
    for each in launches:
        if isinstance(each, Decline):
            return each
    made = tuple(each for each in launches if isinstance(each, Launch))
    return Launches(" + ".join(dict.fromkeys(str(each.program) for each in made)), made, scratch)


def units(ne: Extents, unit: int) -> int:
    """The number of units in all rows; a unit is ``unit`` elements of a row, and the last one may have fewer."""
    return -(-ne[0] // unit) * ne[1] * ne[2] * ne[3]


def collapsed(tensors: Sequence[TensorArgument], block_sizes: Sequence[int]) -> list[TensorArgument]:
    """Merges dimensions: the same elements in as few dimensions as all strides, and 32-bit counters, allow.

    All have the same extents; strides may be 0.  The first tensor's contiguous order is kept.
    """
    ne = list(tensors[0].ne)
    strides = [list(o.nb) for o in tensors]
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
    for o, nb in zip(tensors, strides, strict=True):
        full = [nb[k] for k in kept] + [0] * (4 - len(kept))
        result.append(o._replace(ne=tuple(extents), nb=tuple(full)))  # type: ignore[arg-type]
    return result
