"""Sources made ready for kernels that read single numbers of one type: in place, or copied into the workspace first."""

from __future__ import annotations

from dataclasses import dataclass

from ggplug.tensor import Extents, Tensor, contiguous_strides
from ggplug.types import F32, Type
from ggplug_cpu.ops.copy.choosers import copied
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import WORKSPACE, Entry


@dataclass(frozen=True)
class Ready:
    """Where a source lies when the ``entries`` are done; ``workspace_bytes`` is where the workspace it takes ends."""

    place: Ref
    ne: Extents
    nb: Extents
    entries: tuple[Entry, ...] = ()
    workspace_bytes: int = 0
    scratch_bytes: int = 0

    def as_place(self, *nb: int) -> Place:
        """The source as an operand, with other strides if they are given."""
        return Place(self.place, nb or self.nb)


def in_f32(x: Tensor, place: Ref, at: int = 0, *, rows: bool = False) -> Ready:
    """``x`` as f32: in place, or from byte ``at`` of the workspace on; ``rows`` asks for contiguous rows."""
    if x.type is F32 and (x.nb[0] == 4 or not rows):
        return Ready(place, x.ne, x.nb, (), at)
    return in_workspace(x.type, F32, x.ne, place, x.nb, at)


def in_workspace(type: Type, other: Type, ne: Extents, place: Ref, nb: Extents, at: int) -> Ready:
    """A contiguous copy of ``type`` as ``other`` from byte ``at`` of the workspace on."""
    start = -(-at // 64) * 64
    strides = contiguous_strides(other, ne)
    target = Ref(WORKSPACE, start)
    if 0 in ne:
        return Ready(target, ne, strides, (), start)
    entries, _, scratch = copied(type, other, ne, place, nb, target, strides)
    return Ready(target, ne, strides, entries, start + strides[3] * ne[3], scratch)
