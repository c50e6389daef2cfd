"""Loads the tensors of a GGUF file into the memory of devices."""

from __future__ import annotations

import mmap as memory_map
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from ggplug.backend import Buffer, BufferType, Device
from ggplug.errors import ParameterError
from ggplug.gguf.format import TensorInfo, Value, is_foreign, swap_byte_order
from ggplug.gguf.reader import GGUFReader
from ggplug.host import HOST
from ggplug.memory import allocate
from ggplug.memory.contexts import buffer_type_of
from ggplug.tensor import Context, Tensor
from ggplug.types import BufferUsage

#: Where weights are stored: a device (its memory, or the file's map if it can use that), a type of memory, or ``None``:
#: the file's map, which is host memory that belongs to no device.
Place: TypeAlias = Device | BufferType | None

# ggml aligns tensors to this; a device that uses host memory in place must accept it.
_IN_PLACE_ALIGNMENT = 32


def load(
    path: str | os.PathLike[str],
    where: Place | Callable[[str], Place] = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Context, Mapping[str, Value]]:
    """Load a model: place all tensors of a GGUF file, and read its metadata.

    For a device that can use host memory (``capabilities.buffer_from_host``), and where ``where`` is None, the tensors
    lie in the memory map: nothing is copied, pages are read when they are first used, and the tensors are read-only.
    Otherwise they are copied into new buffers: for devices with memory of their own, into a named buffer type, from a
    file in another byte order, where the memory pads a tensor, or where a tensor's offset is no multiple of 32 (or of
    the memory's alignment, if that is less, or if the host cannot address the memory).  Pages of the map that were read
    only to be copied are released.

    Args:
        path: the file; of a split model the first one.
        where: a device, a buffer type, ``None``, or a function from a tensor's name to one of these.
        progress: called with (bytes placed, all bytes) after each tensor.

    Returns:
        A context that owns the buffers, marked as weights: free it, or use it as a context manager.  Tensors
        have the names of the file.  And the metadata, which stays usable after the context was freed.

    Raises:
        GGUFError: the file is malformed.
        ParameterError: ``where``, or its result, is no device, buffer type or None.
        OSError: the file is missing or cannot be read.
        OutOfMemoryError: a device has too little free memory; nothing stays allocated.
    """
    context = Context(os.fspath(path))
    try:
        with GGUFReader(path) as reader:
            _Loader(reader, context, progress).run(where if callable(where) else lambda _: where)
            return context, reader.metadata
    except BaseException:
        context.free()
        raise


class PlannedWeights(NamedTuple):
    """The tensors of a file in planned buffers.

    ``mapped``: for each buffer with tensors that stay in the file's map, the bytes of these.
    """

    context: Context
    mapped: Mapping[Buffer, int]


def planned(reader: GGUFReader, where: Callable[[str], Device | BufferType]) -> PlannedWeights:
    """The tensors of a file in buffers without memory, of the kinds in which :func:`load` would place them.

    ``where``: as for :func:`load`.  Reads no tensor, and allocates nothing.
    """
    context = Context("weights")
    groups: dict[tuple[Device | BufferType, bool], Context] = {}
    for info in reader.tensors.values():
        tensor = context.new_tensor(info.type, info.ne, info.name)
        place = where(info.name)
        stays = isinstance(place, Device) and place.capabilities.buffer_from_host and not is_foreign(reader.endian)
        stays = stays and _stays_in_map(tensor, info, buffer_type_of(place))
        groups.setdefault((place, stays), Context("weights")).add(tensor)
    mapped: dict[Buffer, int] = {}
    for (place, stays), group in groups.items():
        buffers = allocate(group, place, BufferUsage.WEIGHTS, planned=True)
        context.buffers.extend(buffers)
        if stays:
            mapped |= {each: sum(tensor.nbytes for tensor in group if tensor.buffer is each) for each in buffers}
    return PlannedWeights(context, mapped)


def _stays_in_map(tensor: Tensor, info: TensorInfo, kind: BufferType) -> bool:
    """Whether memory of this kind over the file's map can hold a tensor where the file has it."""
    alignment = min(kind.alignment, _IN_PLACE_ALIGNMENT) if kind.is_host else kind.alignment
    return bool(info.nbytes) and not info.offset % alignment and kind.alloc_size(tensor) == info.nbytes


class _Loader:
    def __init__(self, reader: GGUFReader, context: Context, progress: Callable[[int, int], None] | None) -> None:
        self.reader = reader
        self.context = context
        self.progress = progress
        self.foreign = is_foreign(reader.endian)
        self.total = sum(info.nbytes for info in reader.tensors.values())
        self.done = 0
        self.mapped: dict[tuple[Place, int], Buffer] = {}

    def run(self, where: Callable[[str], Place]) -> None:
        copies: dict[Place, list[tuple[Tensor, TensorInfo]]] = {}
        for info in self.reader.tensors.values():
            tensor = self.context.new_tensor(info.type, info.ne, info.name)
            place = where(info.name)
            if not isinstance(place, Device | BufferType | None):
                raise ParameterError(
                    f"where must be a Device, a BufferType or None for tensor {info.name!r}, got {place!r:.100}",
                    got=place,
                    remedy="ggplug.device(name) finds a device by its name" if isinstance(place, str) else None,
                )
            if not self.place_in_map(tensor, info, place):
                copies.setdefault(place, []).append((tensor, info))
        for place, pairs in copies.items():
            self.copy(place, pairs)

    def place_in_map(self, tensor: Tensor, info: TensorInfo, place: Place) -> bool:
        """Place the tensor in the file's map, if the device can use it there."""
        if self.foreign or not info.nbytes:
            return False
        if isinstance(place, BufferType) or (place is not None and not place.capabilities.buffer_from_host):
            return False
        buffer = self.mapped.get((place, info.shard))
        if buffer is None:
            buffer = self.mapped[place, info.shard] = self.wrap(place, info.shard)
        if not _stays_in_map(tensor, info, buffer.type):
            return False
        tensor.place(buffer, info.offset)
        buffer.init_tensor(tensor)
        self.advance(info)
        return True

    def wrap(self, place: Place, shard: int) -> Buffer:
        opened = self.reader.maps[shard]
        if hasattr(memory_map, "MADV_WILLNEED"):
            opened.madvise(memory_map.MADV_WILLNEED)
        # An array, not the map itself: while it exists, the map that holds the tensors cannot be closed.
        memory = np.frombuffer(opened, np.uint8)
        wrap = place.buffer_from_host if isinstance(place, Device) else HOST.wrap
        buffer = wrap(memory, usage=BufferUsage.WEIGHTS)
        self.context.buffers.append(buffer)
        return buffer

    def copy(self, place: Place, pairs: list[tuple[Tensor, TensorInfo]]) -> None:
        group = Context(self.context.name)
        for tensor, _ in pairs:
            group.add(tensor)
        try:
            allocate(group, HOST if place is None else place, usage=BufferUsage.WEIGHTS)
        finally:
            self.context.buffers.extend(group.buffers)
        for tensor, info in pairs:
            data = self.reader.data(info)
            if data.size:
                tensor.set_bytes(swap_byte_order(data, info.type) if self.foreign else data)
                self.reader.release(info)  # pages that a tensor in the map uses too are kept
            self.advance(info)

    def advance(self, info: TensorInfo) -> None:
        self.done += info.nbytes
        if self.progress is not None:
            self.progress(self.done, self.total)
