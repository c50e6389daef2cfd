"""Memory for all tensors of a context at once, such as a model's weights."""

from __future__ import annotations

from ggplug.backend import Backend, Buffer, BufferType, Device
from ggplug.errors import OutOfMemoryError, ParameterError
from ggplug.memory.layout import aligned
from ggplug.memory.planned import PlannedBuffer
from ggplug.memory.tensor_allocator import TensorAllocator, view_init
from ggplug.tensor import Context, Tensor
from ggplug.types import BufferUsage


def allocate(
    context: Context,
    where: BufferType | Device | Backend,
    usage: BufferUsage = BufferUsage.ANY,
    *,
    zeroed: bool = False,
    planned: bool = False,
) -> list[Buffer]:
    """Places all tensors of a context that have no place in new buffers (ggml_backend_alloc_ctx_tensors_from_buft).

    ``where``: a buffer type, or a device or stream, of which the default type is used.  ``usage``: with WEIGHTS the
    scheduler computes nodes where these tensors lie.  ``zeroed``: sets all tensors to zero, in host memory without
    touching it.  ``planned``: the buffers are planned ones without memory
    (:class:`~ggplug.memory.planned.PlannedBuffer`), for graphs that are scheduled but not computed.  Allocates several
    buffers if one would exceed the type's ``max_size``.  The context owns the buffers, which are also returned.
    Computing with a tensor that was neither set nor written by a node raises TensorStateError.

    Raises OutOfMemoryError; then no tensor was placed and no buffer stays allocated.
    """
    kind = buffer_type_of(where)
    buffers: list[Buffer] = []
    placed: list[Tensor] = []
    try:
        for tensors, size in _groups(context, kind):
            if planned:
                buffer: Buffer = PlannedBuffer(kind, size)
            else:
                buffer = kind.alloc_zeroed(size) if zeroed and not kind.has_own_layout else kind.alloc(size)
            buffer.usage = usage
            buffers.append(buffer)
            allocator = TensorAllocator(buffer)
            for tensor in tensors:
                allocator.place(tensor)
                placed.append(tensor)
                if zeroed and kind.has_own_layout and not planned:
                    tensor.set_zero()
            if not zeroed:
                buffer.unset.add({t.offset: t.offset + t.nbytes for t in tensors if t.nbytes})
        for tensor in context:
            if tensor.view_src is not None and tensor.view_src.buffer in buffers:
                view_init(tensor)
    except BaseException:
        for tensor in placed:
            tensor.place(None)
        for buffer in buffers:
            buffer.free()
        raise
    context.buffers.extend(buffers)
    return buffers


def allocated_size(context: Context, where: BufferType | Device | Backend) -> int:
    """Bytes that :func:`allocate` would allocate, with padding (ggml_backend_alloc_ctx_tensors_from_buft_size)."""
    return sum(size for _, size in _groups(context, buffer_type_of(where)))


def buffer_type_of(where: BufferType | Device | Backend) -> BufferType:
    """``where`` itself if it is a buffer type, or the default type of a device or stream."""
    if isinstance(where, BufferType):
        return where
    if isinstance(where, Backend):
        return where.device.buffer_type
    if isinstance(where, Device):
        return where.buffer_type
    raise ParameterError(f"where must be a buffer type, a device or a stream, got {where!r:.100}", got=type(where))


def _groups(context: Context, kind: BufferType) -> list[tuple[list[Tensor], int]]:
    """For each buffer, the tensors to place in it and its bytes."""
    limit = kind.max_size
    groups: list[tuple[list[Tensor], int]] = []
    tensors: list[Tensor] = []
    total = 0
    for tensor in context:
        if tensor.is_view or tensor.buffer is not None:
            continue
        size = aligned(kind.alloc_size(tensor), kind.alignment)
        if limit is not None and size > limit:
            raise OutOfMemoryError(
                f"{tensor!r} takes {size} bytes, more than the largest buffer of {kind.name}, {limit} bytes",
                device=kind.device,
                tensor=tensor,
                requested=size,
                free=limit,
            )
        if limit is not None and total + size > limit:
            groups.append((tensors, total))
            tensors, total = [], 0
        tensors.append(tensor)
        total += size
    if tensors:
        groups.append((tensors, total))
    return groups
