"""Memory of a combined device: mirrored on all members, or, for weights, split between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ggplug.backend import Buffer, BufferType, Bytes, Described, Device
from ggplug.combined.cuts import Cuts, Split
from ggplug.errors import BufferUseError, GGPlugError
from ggplug.memory.layout import aligned
from ggplug.sharing import accessing
from ggplug.tensor import Extents, Spec, Tensor
from ggplug.types import Type
from ggplug.values.arrays import as_bytes


class Part(NamedTuple):
    """Bytes of a member's buffer; ``tensor``: the leaf that they are, if its memory has a layout of its own."""

    buffer: Buffer
    offset: int
    nbytes: int
    tensor: Tensor | None = None

    def fetch(self) -> Bytes:
        """A copy of the bytes in host memory."""
        found = np.empty(self.nbytes, np.uint8)
        if self.tensor is None:
            self.buffer.get(self.offset, found)
        else:
            self.buffer.get_tensor(self.tensor, found, self.offset)
        return found

    def store(self, data: Bytes) -> None:
        """Replaces the bytes."""
        if self.tensor is None:
            self.buffer.set(self.offset, data)
        else:
            self.buffer.set_tensor(self.tensor, data, self.offset)


class Spread(NamedTuple):
    """A result of which each member has a part, from the beginning of the result's own bytes on."""

    offset: int
    nbytes: int
    type: Type
    ne: Extents
    state: Split

    @property
    def end(self) -> int:
        """The first byte after the result."""
        return self.offset + self.nbytes

    def parts(self, buffers: Sequence[Buffer]) -> list[Part]:
        """The bytes of each member's part."""
        of_rows = (self.state.part(member, self.ne) for member in range(len(buffers)))
        sizes = (self.type.row_bytes(ne[0]) * math.prod(ne[1:]) for ne in of_rows)
        return [Part(buffer, self.offset, size) for buffer, size in zip(buffers, sizes, strict=True)]

    def joined(self, buffers: Sequence[Buffer]) -> Bytes:
        """The bytes of the whole result."""
        return self.state.joined([part.fetch() for part in self.parts(buffers)], self.type, self.ne)


class CombinedBuffer(Buffer):
    """A buffer with one buffer on each member, in ``members``."""

    def __init__(self, type: BufferType, size: int, members: Sequence[Buffer]) -> None:
        super().__init__(type, size)
        self.members = tuple(members)

    def _free(self) -> None:
        free_all([member.free for member in self.members])


class MirroredBuffer(CombinedBuffer):
    """Bytes that each member has.  ``spread``: the results that are split now; reading one joins it."""

    spread: tuple[Spread, ...] = ()

    def _set(self, offset: int, data: Bytes) -> None:
        self._overwrite(offset, offset + data.size)
        for member in self.members:
            member.set(offset, data)

    def memset(self, offset: int, size: int, value: int) -> None:
        with accessing(self):
            offset, size, value = self.check_fill(offset, size, value)
            self._overwrite(offset, offset + size)
            for member in self.members:
                member.memset(offset, size, value)

    def _overwrite(self, first: int, end: int) -> None:
        """Results in a range are not split any more; what remains of one is mirrored."""
        for each in self.spread:
            if each.offset < end and first < each.end and (each.offset < first or end < each.end):
                self.mirror(each.offset, each.nbytes)
        self.spread = tuple(each for each in self.spread if end <= each.offset or each.end <= first)

    def _get(self, offset: int, out: Bytes) -> None:
        self.members[0].get(offset, out)
        for each in self.spread:
            first, end = max(offset, each.offset), min(offset + out.size, each.end)
            if first < end:
                whole = each.joined(self.members)
                out[first - offset : end - offset] = whole[first - each.offset : end - each.offset]

    def mirror(self, offset: int, nbytes: int) -> None:
        """Gives each member the whole of the results in a range."""
        for each in self.spread:
            if each.offset < offset + nbytes and offset < each.end:
                whole = each.joined(self.members)
                self.spread = tuple(other for other in self.spread if other is not each)
                for member in self.members:
                    member.set(each.offset, whole)


class CombinedBufferType(BufferType):
    """Memory of which each member's part is of its own buffer type, in ``members``."""

    device: Device

    def __init__(self, name: str, device: Device, members: Sequence[BufferType]) -> None:
        super().__init__(name, device)
        self.members = tuple(members)

    @property
    def alignment(self) -> int:
        return max(member.alignment for member in self.members)

    def offset_of(self, member: int, offset: int) -> int:
        """Where a tensor at ``offset`` begins on a member; for the size of a buffer, the member's bytes of it."""
        raise NotImplementedError

    def _alloc_each(self, sizes: Sequence[int]) -> list[Buffer]:
        """One buffer on each member, or none and the error of the member that failed."""
        buffers: list[Buffer] = []
        try:
            for member, size in zip(self.members, sizes, strict=True):
                buffers.append(member.alloc(size))
        except BaseException:
            for buffer in buffers:
                buffer.free()
            raise
        return buffers


class MirroredBufferType(CombinedBufferType):
    """The default memory of a combined device: each member has all bytes."""

    @property
    def max_size(self) -> int | None:
        return min((each for member in self.members if (each := member.max_size) is not None), default=None)

    def alloc_size(self, tensor: Described) -> int:
        return max(member.alloc_size(tensor) for member in self.members)

    def offset_of(self, member: int, offset: int) -> int:
        return offset

    def _alloc(self, size: int) -> MirroredBuffer:
        return MirroredBuffer(self, size, self._alloc_each([size] * len(self.members)))


class SplitBufferType(CombinedBufferType):
    """Memory for leafs of which each member has a part: rows (``state.axis`` 1) or columns (0).

    The memory of a member may have a layout of its own, for packed weights.
    """

    def __init__(self, name: str, device: Device, members: Sequence[BufferType], state: Split) -> None:
        super().__init__(name, device, members)
        assert isinstance(state.by, Cuts)
        self.state, self.cuts = state, state.by
        self._fractions = [self.cuts.fraction(member) for member in range(len(members))]
        self._padding = math.ceil(self.alignment / min(self._fractions))
        self.packs = any(member.has_own_layout for member in members)
        """Whether a member stores its part in a layout of its own."""

    @property
    def has_own_layout(self) -> bool:
        return True

    def leaf(self, tensor: Described, member: int) -> Tensor:
        """A member's part of a leaf, without a place, as one in that member's memory."""
        found = Tensor(Spec(tensor.type, self.state.part(member, tensor.ne), tensor.rank), name=tensor.name)
        if self.members[member].has_own_layout:
            found.buffer_type = self.members[member]
        return found

    def refusal(self, tensor: Described) -> str | None:
        if tensor.op is not None:
            return "results of nodes do not lie in split memory"
        if not tensor.size or not tensor.is_contiguous():
            return "only tensors with elements and without gaps are split"
        extent = tensor.ne[self.state.axis]
        if not self.cuts.fits(extent if self.state.axis else extent // tensor.type.block_size):
            return f"ne{self.state.axis} of {extent} cannot be cut at {', '.join(map(str, self.cuts.bounds[1:-1]))}"
        found = (kind.refusal(self.leaf(tensor, member)) for member, kind in enumerate(self.members))
        return next(filter(None, found), None)

    def alloc_size(self, tensor: Described) -> int:
        """The bytes of all parts, and padding, so that the parts of two tensors do not overlap on any member."""
        sizes = (kind.alloc_size(self.leaf(tensor, member)) for member, kind in enumerate(self.members))
        most = max(math.ceil(size / fraction) for size, fraction in zip(sizes, self._fractions, strict=True))
        return max(most, tensor.nbytes) + self._padding

    def _alloc(self, size: int) -> SplitBuffer:
        members = range(len(self.members))
        return SplitBuffer(self, size, self._alloc_each([self.offset_of(member, size) for member in members]))

    def offset_of(self, member: int, offset: int) -> int:
        return aligned(math.ceil(offset * self._fractions[member]), self.members[member].alignment)


class SplitBuffer(CombinedBuffer):
    """Leafs that are split between the members.

    Tensors whose columns are split are set and read in any part; others are set whole, and read in any part.
    """

    type: SplitBufferType

    def set_tensor(self, tensor: Described, data: Any, start: int, offset: int = 0) -> None:
        raw = as_bytes(data)
        with accessing(self):
            self.check_there()
            rows, parts, at = self._rows(tensor, start, offset, raw.size)
            row = tensor.type.row_bytes(rows[0])
            if raw.size != row * math.prod(rows[1:]):
                if self._is_whole_only:
                    raise BufferUseError(
                        f"{tensor!r} lies split in {self!r}: {raw.size} bytes at offset {offset} cannot be set on "
                        "their own",
                        tensor=tensor,
                        remedy=f"set the whole of {tensor.root!r} at once",
                    )
                whole = self.type.state.joined([part.fetch() for part in parts], tensor.type, rows)
                whole[at : at + raw.size] = raw
                raw = whole
            for part, own in zip(parts, self.type.state.parts(raw, tensor.type, rows), strict=True):
                part.store(own)
            self.fill(start, tensor.nbytes)

    def get_tensor(self, tensor: Described, out: Bytes, start: int, offset: int = 0) -> None:
        with accessing(self):
            self.check_there()
            rows, parts, at = self._rows(tensor, start, offset, out.size)
            whole = self.type.state.joined([part.fetch() for part in parts], tensor.type, rows)
            out[...] = whole[at : at + out.size]

    @property
    def _is_whole_only(self) -> bool:
        return bool(self.type.state.axis) or self.type.packs

    def _rows(self, tensor: Described, start: int, offset: int, size: int) -> tuple[Extents, list[Part], int]:
        """The members' parts of the rows that have ``size`` bytes of a tensor; all rows, if these are split.

        The first element has the extents of these rows together, the last one says at which of their bytes it begins.
        """
        root, kind, state = tensor.root, tensor.type, self.type.state
        begin, at = start - tensor.view_offset, tensor.view_offset + offset
        ne, first = root.ne, 0
        if not self._is_whole_only:
            row = kind.row_bytes(ne[0])
            first = at // row
            ne, at = (ne[0], -(-(at + size) // row) - first, 1, 1), at - first * row
        parts = []
        for member, buffer in enumerate(self.members):
            own = state.part(member, ne)
            row = kind.row_bytes(own[0])
            leaf = self.type.leaf(root, member) if buffer.type.has_own_layout else None
            parts.append(Part(buffer, self.type.offset_of(member, begin) + first * row, row * math.prod(own[1:]), leaf))
        return ne, parts, at

    def _set(self, offset: int, data: Bytes) -> None:
        raise NotImplementedError  # check_write refuses raw bytes

    def _get(self, offset: int, out: Bytes) -> None:
        raise NotImplementedError  # check_read refuses raw bytes


def shares(kind: BufferType, size: int) -> Iterator[tuple[Device, BufferType, int]]:
    """The devices that hold a buffer of this size, with the kind of memory and the bytes of each."""
    if isinstance(kind, CombinedBufferType):
        for member, each in enumerate(kind.members):
            yield from shares(each, kind.offset_of(member, size))
    elif isinstance(kind.device, Device):
        yield kind.device, kind, size


def free_all(actions: Sequence[Callable[[], None]]) -> None:
    """Calls all, also those after one that raises; then raises the first error."""
    failed: GGPlugError | None = None
    for action in actions:
        try:
            action()
        except GGPlugError as error:
            failed = failed or error
    if failed is not None:
        raise failed
