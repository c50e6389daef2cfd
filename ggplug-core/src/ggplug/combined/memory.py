"""Memory of a combined device: mirrored on all members, or, for weights, split between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ggplug.backend import Buffer, BufferType, Bytes, Described, Device
from ggplug.combined.cuts import Cuts, Split
from ggplug.errors import BufferUseError, GGPlugError
from ggplug.memory.layout import aligned
from ggplug.sharing import accessing
from ggplug.tensor import Extents
from ggplug.types import Type
from ggplug.values.arrays import as_bytes


class Part(NamedTuple):
    """Bytes of a member's buffer."""

    buffer: Buffer
    offset: int
    nbytes: int

    def fetch(self) -> Bytes:
        """A copy of the bytes in host memory."""
        found = np.empty(self.nbytes, np.uint8)
        self.buffer.get(self.offset, found)
        return found


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

    def offset_of(self, member: int, offset: int) -> int:
        """Where a tensor at ``offset`` begins in a member's buffer."""
        raise NotImplementedError

    def _free(self) -> None:
        free_all([member.free for member in self.members])


class MirroredBuffer(CombinedBuffer):
    """Bytes that each member has.  ``spread``: the results that are split now; reading one joins it."""

    spread: tuple[Spread, ...] = ()

    def offset_of(self, member: int, offset: int) -> int:
        return offset

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

    def _alloc(self, size: int) -> MirroredBuffer:
        return MirroredBuffer(self, size, self._alloc_each([size] * len(self.members)))


class SplitBufferType(CombinedBufferType):
    """Memory for weights of which each member has a part: rows (``state.axis`` 1) or columns (0)."""

    def __init__(self, name: str, device: Device, members: Sequence[BufferType], state: Split) -> None:
        super().__init__(name, device, members)
        assert isinstance(state.by, Cuts)
        self.state, self._cuts = state, state.by
        least = min(self._cuts.fraction(member) for member in range(len(members)))
        self._padding = math.ceil(self.alignment / least)

    @property
    def has_own_layout(self) -> bool:
        return True

    def refusal(self, tensor: Described) -> str | None:
        if tensor.op is not None:
            return "results of nodes do not lie in memory for split weights"
        if not tensor.size or not tensor.is_contiguous():
            return "only tensors with elements and without gaps are split"
        extent = tensor.ne[self.state.axis]
        if not self._cuts.fits(extent if self.state.axis else extent // tensor.type.block_size):
            return f"ne{self.state.axis} of {extent} cannot be cut at {', '.join(map(str, self._cuts.bounds[1:-1]))}"
        return None

    def alloc_size(self, tensor: Described) -> int:
        """The bytes of all parts, and padding, so that the parts of two tensors do not overlap on any member."""
        return tensor.nbytes + self._padding

    def _alloc(self, size: int) -> SplitBuffer:
        members = range(len(self.members))
        return SplitBuffer(self, size, self._alloc_each([self.offset_of(member, size) for member in members]))

    def offset_of(self, member: int, offset: int) -> int:
        """Where a tensor at ``offset`` begins on a member."""
        return aligned(math.ceil(offset * self._cuts.fraction(member)), self.members[member].alignment)


class SplitBuffer(CombinedBuffer):
    """Weights that are split between the members.  Tensors are set whole, and read whole or in part."""

    type: SplitBufferType

    def offset_of(self, member: int, offset: int) -> int:
        return self.type.offset_of(member, offset)

    def set_tensor(self, tensor: Described, data: Any, start: int, offset: int = 0) -> None:
        raw = as_bytes(data)
        if tensor.view_src is not None or offset or raw.size != tensor.nbytes:
            raise BufferUseError(
                f"{tensor!r} lies split in {self!r}: {raw.size} bytes at offset {offset} cannot be set on their own",
                tensor=tensor,
                remedy=f"set the whole of {tensor.root!r} at once",
            )
        with accessing(self):
            self.check_there()
            parts = self.type.state.parts(raw, tensor.type, tensor.ne)
            for member, (buffer, part) in enumerate(zip(self.members, parts, strict=True)):
                buffer.set(self.offset_of(member, start), part)
            self.fill(start, tensor.nbytes)

    def get_tensor(self, tensor: Described, out: Bytes, start: int, offset: int = 0) -> None:
        root = tensor.root
        begin = start - tensor.view_offset
        with accessing(self):
            self.check_there()
            spread = Spread(0, root.nbytes, root.type, root.ne, self.type.state)
            parts = [
                part._replace(offset=self.offset_of(member, begin)).fetch()
                for member, part in enumerate(spread.parts(self.members))
            ]
            whole = self.type.state.joined(parts, root.type, root.ne)
            at = tensor.view_offset + offset
            out[...] = whole[at : at + out.size]

    def _set(self, offset: int, data: Bytes) -> None:
        raise NotImplementedError  # check_write refuses raw bytes

    def _get(self, offset: int, out: Bytes) -> None:
        raise NotImplementedError  # check_read refuses raw bytes


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
