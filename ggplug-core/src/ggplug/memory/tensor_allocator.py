"""Places persistent tensors in a buffer: one after another, or at a given offset."""

from __future__ import annotations

from ggplug.backend import Buffer
from ggplug.errors import BufferUseError, OutOfMemoryError, ParameterError, TensorStateError
from ggplug.memory.layout import aligned
from ggplug.system.copying import Uncopied
from ggplug.tensor import Tensor


class TensorAllocator(Uncopied):
    """Places tensors one after another in a buffer (ggml_tallocr).

    ``used``: bytes that are taken, padding included.
    """

    def __init__(self, buffer: Buffer) -> None:
        if buffer.freed:
            raise BufferUseError(f"{buffer!r} was freed")
        self.buffer = buffer
        self.used = 0

    @property
    def free(self) -> int:
        """Bytes that are left."""
        return self.buffer.size - self.used

    def place(self, tensor: Tensor) -> int:
        """Places a tensor after the last one and returns its offset in bytes (ggml_tallocr_alloc).

        Raises OutOfMemoryError if it does not fit, TensorStateError if it has a place already.
        """
        kind = self.buffer.type
        size = aligned(kind.alloc_size(tensor), kind.alignment)
        if size > self.free:
            raise OutOfMemoryError(
                f"{tensor!r} takes {size} bytes, {self.buffer!r} has {self.free} bytes left",
                device=kind.device,
                tensor=tensor,
                requested=size,
                free=self.free,
            )
        offset = self.used
        tensor_alloc(tensor, self.buffer, offset)
        self.used = offset + size
        return offset


def tensor_alloc(tensor: Tensor, buffer: Buffer, offset: int) -> None:
    """Places one tensor at ``offset`` bytes into a buffer, and initialises it there (ggml_backend_tensor_alloc).

    ``offset``: a multiple of the alignment of the buffer's type.  Raises TensorStateError if the tensor has a place
    already, BufferUseError for another offset, and as :meth:`Tensor.place`.
    """
    if tensor.buffer is not None:
        raise TensorStateError(
            f"{tensor!r} has a place already", tensor=tensor, remedy="remove it with tensor.place(None)"
        )
    tensor.place(buffer, offset)
    try:
        if tensor.offset % buffer.type.alignment:
            raise BufferUseError(
                f"{tensor!r}: offset {offset} is no multiple of {buffer.type.name}'s alignment {buffer.type.alignment}",
                tensor=tensor,
                got=offset,
                wanted=buffer.type.alignment,
            )
        buffer.init_tensor(tensor)
    except BaseException:
        tensor.place(None)
        raise


def view_init(view: Tensor) -> None:
    """Calls ``init_tensor`` of the buffer in which the view's root lies (ggml_backend_view_init).

    Needed only for the few types of buffers that override it.  Raises ParameterError if the tensor is no view,
    TensorStateError if its root has no place.
    """
    root = view.view_src
    if root is None:
        raise ParameterError(f"{view!r} is no view", tensor=view)
    if root.buffer is None:
        raise TensorStateError(f"{root!r} has no place yet", tensor=root)
    root.buffer.init_tensor(view)
