"""How tensors are divided between the members of a combined device: by fractions of one dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from ggplug.backend import Bytes, Device
from ggplug.errors import ParameterError
from ggplug.tensor import Extents
from ggplug.types import Type


class Divides(Protocol):
    """Where a dimension is cut, as rules use it: known cuts, or cuts that are still to be chosen."""

    def fits(self, extent: int) -> bool:
        """Whether a dimension with this extent can be cut there."""

    def joins(self, other: Divides) -> bool:
        """Whether tensors cut so and tensors cut as ``other`` can be operands of one node."""


class Cuts(NamedTuple):
    """Cuts between members: member m has the elements from ``bounds[m]`` to ``bounds[m + 1]``, as fractions."""

    bounds: tuple[Fraction, ...]

    def fits(self, extent: int) -> bool:
        return all((bound * extent).denominator == 1 for bound in self.bounds)

    def joins(self, other: Divides) -> bool:
        return self == other

    def part(self, member: int, extent: int) -> tuple[int, int]:
        """The first element of a member, and the first one after its last."""
        return int(self.bounds[member] * extent), int(self.bounds[member + 1] * extent)

    def fraction(self, member: int) -> Fraction:
        """The fraction of the elements that a member has."""
        return self.bounds[member + 1] - self.bounds[member]


class Pieces:
    """Cuts that are still to be chosen: between ``count`` equal pieces, of which each of ``least`` members has some.

    Each dimension that has to be cut there reduces the count; joined ones are one from then on.
    """

    def __init__(self, count: int, least: int) -> None:
        self._count, self._least = count, least
        self._joined: Pieces | None = None

    def _first(self) -> Pieces:
        found = self
        while found._joined is not None:
            found = found._joined
        return found

    def fits(self, extent: int) -> bool:
        first = self._first()
        count = math.gcd(first._count, extent)
        if count < first._least:
            return False
        first._count = count
        return True

    def joins(self, other: Divides) -> bool:
        assert isinstance(other, Pieces)
        mine, its = self._first(), other._first()
        if mine is not its:
            if not mine.fits(its._count):
                return False
            its._joined = mine
        return True

    def chosen(self, proportions: Sequence[float]) -> Cuts:
        """The cuts by which the members have these proportions, nearly, and at least one piece each."""
        count = self._first()._count
        ends = np.cumsum(proportions) / np.sum(proportions) * count
        bounds = [0]
        for member, end in enumerate(ends[:-1].tolist(), 1):
            bounds.append(min(max(round(end), bounds[-1] + 1), count - (len(ends) - member)))
        return Cuts(tuple(Fraction(bound, count) for bound in (*bounds, count)))


class Split(NamedTuple):
    """The state of a tensor of which each member has a part: the dimension that is cut (in ne order), and where."""

    axis: int
    by: Divides

    def part(self, member: int, ne: Extents) -> Extents:
        """The extents of a member's part."""
        assert isinstance(self.by, Cuts)
        first, end = self.by.part(member, ne[self.axis])
        parts = list(ne)
        parts[self.axis] = end - first
        return parts[0], parts[1], parts[2], parts[3]

    def slices(self, type: Type, ne: Extents) -> list[tuple[slice, ...]]:
        """For each member the part of an array of bytes ``[ne3, ne2, ne1, bytes of a row]``."""
        assert isinstance(self.by, Cuts)
        extents = (type.row_bytes(ne[0]), *ne[1:])
        found = []
        for member in range(len(self.by.bounds) - 1):
            chosen = [slice(None)] * 4
            chosen[3 - self.axis] = slice(*self.by.part(member, extents[self.axis]))
            found.append(tuple(chosen))
        return found

    def parts(self, whole: Bytes, type: Type, ne: Extents) -> list[Bytes]:
        """The bytes of the members' parts of a contiguous tensor."""
        rows = whole.reshape(*ne[:0:-1], type.row_bytes(ne[0]))
        return [np.ascontiguousarray(rows[chosen]).reshape(-1) for chosen in self.slices(type, ne)]

    def joined(self, parts: Sequence[Bytes], type: Type, ne: Extents) -> Bytes:
        """The bytes of a contiguous tensor, from the members' parts."""
        whole = np.empty((*ne[:0:-1], type.row_bytes(ne[0])), np.uint8)
        for chosen, part in zip(self.slices(type, ne), parts, strict=True):
            target = whole[chosen]
            target[...] = part.reshape(target.shape)
        return whole.reshape(-1)


State: TypeAlias = Split | None
"""How a tensor lies on the members: each has a part, or, for None, each has the whole tensor (it is mirrored)."""


def proportions_of(members: Sequence[Device], proportions: Sequence[float] | None) -> tuple[float, ...]:
    """What the members' parts are proportional to: the given numbers, by default equal ones.

    Measured speeds of the devices would be asked for here.  Raises ParameterError.
    """
    found = tuple(map(float, proportions)) if proportions is not None else (1.0,) * len(members)
    if len(found) != len(members) or min(found) <= 0 or not math.isfinite(sum(found)):
        raise ParameterError(
            f"{len(members)} devices that compute as one need as many positive proportions, with a finite sum, not "
            f"{found}",
            got=found,
            wanted=len(members),
        )
    return found
