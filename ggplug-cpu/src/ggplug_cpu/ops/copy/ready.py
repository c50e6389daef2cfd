"""Prepares sources for kernels that read one type: a source is used in place, or copied into the workspace first."""

from __future__ import annotations

from dataclasses import dataclass

from ggplug.tensor import Extents, Tensor, contiguous_strides
from ggplug.types import F32, Type
from ggplug_cpu.ops.copy.choosers import copied
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import WORKSPACE, Entry


@dataclass(frozen=True)
class Ready:
    """A prepared source: its place once the ``entries`` are done; ``workspace_bytes``: end of the workspace that it
    uses.
    """

    place: Ref
    ne: Extents
    nb: Extents
    entries: tuple[Entry, ...] = ()
    workspace_bytes: int = 0
    scratch_bytes: int = 0

    def as_place(self, *nb: int) -> Place:
        """The source as an operand, with its own strides or with ``nb``."""
        return Place(self.place, nb or self.nb)


def in_f32(x: Tensor, place: Ref, at: int = 0, *, rows: bool = False) -> Ready:
    """Prepares ``x`` as f32: in place, or copied to byte ``at`` of the workspace; with ``rows``, rows are
    contiguous.
    """
    if x.type is F32 and (x.nb[0] == 4 or not rows):
        return Ready(place, x.ne, x.nb, (), at)
    return in_workspace(x.type, F32, x.ne, place, x.nb, at)


def in_workspace(type: Type, other: Type, ne: Extents, place: Ref, nb: Extents, at: int) -> Ready:
    """Copies elements of ``type`` as contiguous ``other`` to byte ``at`` of the workspace."""
    start = -(-at // 64) * 64
    strides = contiguous_strides(other, ne)
    target = Ref(WORKSPACE, start)
    if 0 in ne:
        return Ready(target, ne, strides, (), start)
    entries, _, scratch = copied(type, other, ne, place, nb, target, strides)
    return Ready(target, ne, strides, entries, start + strides[3] * ne[3], scratch)
