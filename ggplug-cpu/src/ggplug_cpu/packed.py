"""The buffer type of packed weights, whose bytes are in the order in which products of many columns read them.

The device's extra buffer type (ggml's repack and AMX types).  A kernel packs the bytes when a tensor is set, NumPy what
fills no panel, and NumPy unpacks them when it is read; :mod:`ggplug_cpu.ops.mul_mat.packed` has the order, which
depends on the instructions that kernels are compiled for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ggplug.backend import BufferType, Bytes, Described, Device
from ggplug.errors import BufferUseError
from ggplug.host import ALIGNMENT, HostBuffer, HostBufferType
from ggplug.sharing import accessing
from ggplug.values.arrays import as_bytes
from ggplug.values.buffers import check_whole
from ggplug_cpu import features
from ggplug_cpu.parameters import Place
from ggplug_cpu.topology import default_threads

if TYPE_CHECKING:
    from ggplug_cpu.compiler import Kernel
    from ggplug_cpu.ops.mul_mat.packed import Form


BYTES_OF_A_THREAD = 1 << 18
"""Bytes below which another thread does not pay."""

MOST_THREADS = 8
"""Threads that saturate the memory bandwidth."""


class PackedBufferType(BufferType):
    """Memory of the CPU device for matrices that only products read, packed for the instructions of ``target``.

    Takes contiguous leaves of the types that products of many columns have a packed order for.  ``target`` is the
    current one when the buffer type is made.
    """

    def __init__(self, device: Device, target: features.Target, forms: dict[str, Form]) -> None:
        super().__init__(f"{device.name} packed", device)
        self.target = target
        self.forms = forms
        """The layouts of packed weights, by the names of their types."""
        self._memory = HostBufferType(self.name, device)

    @property
    def alignment(self) -> int:
        return ALIGNMENT

    @property
    def has_own_layout(self) -> bool:
        return True

    def refusal(self, tensor: Described) -> str | None:
        if tensor.op is not None:
            return "results of nodes do not lie in packed memory"
        if tensor.type.name not in self.forms:
            return f"weights of {tensor.type.name} have no packed order for {self.target.level}"
        if not tensor.size or not tensor.is_contiguous():
            return "only tensors with elements and without gaps are packed"
        return None

    def alloc_size(self, tensor: Described) -> int:
        """Bytes of the packed matrices, padding of panels and blocks included, and of plain rows that are kept, too."""
        form = self.forms.get(tensor.type.name)
        if form is None:
            return tensor.nbytes
        panels = form.matrix_bytes(tensor.ne[0], tensor.ne[1]) * tensor.ne[2] * tensor.ne[3]
        return form.panels_at(tensor.nbytes) + panels

    def _alloc(self, size: int) -> PackedBuffer:
        return PackedBuffer(self, self._memory._alloc(size))


class PackedBuffer(HostBuffer):
    """Packed weights.  Tensors are set whole, and read whole or in part, views of them included."""

    type: PackedBufferType

    def __init__(self, type: PackedBufferType, memory: HostBuffer) -> None:
        assert memory._memory is not None
        super().__init__(type, memory._memory)

    def set_tensor(self, tensor: Described, data: Any, start: int, offset: int = 0) -> None:
        raw = as_bytes(data)
        check_whole(self, tensor, raw, offset)
        with accessing(self):
            self.check_there()
            form, packed = self._packed(tensor, start)
            if form.keeps_rows:
                self._pack_behind_rows(form, tensor, raw, packed)
            else:
                pack(form, raw, packed, tensor.ne[0], tensor.ne[1], self._kernel(form, tensor))
            self.fill(start, packed.size)

    def get_tensor(self, tensor: Described, out: Bytes, start: int, offset: int = 0) -> None:
        root = tensor.root
        at = tensor.view_offset + offset
        with accessing(self):
            self.check_there()
            form, packed = self._packed(root, start - tensor.view_offset)
            if form.keeps_rows:
                out[...] = packed[at : at + out.size]
            elif out.size == root.nbytes:
                unpack(form, packed, out, root.ne[0], root.ne[1])
            else:
                whole = np.empty(root.nbytes, np.uint8)
                unpack(form, packed, whole, root.ne[0], root.ne[1])
                out[...] = whole[at : at + out.size]

    def _kernel(self, form: Form, tensor: Described) -> Callable[[int, int], None] | None:
        """The kernel that packs whole panels; None for other instructions than are used now."""
        from ggplug_cpu.ops.mul_mat.weights import pack_own_panels

        if features.target() != self.type.target or tensor.ne[0] % form.numbers:
            return None
        return _callable(pack_own_panels(form.kind, tensor.type.name))

    def _pack_behind_rows(self, form: Form, tensor: Described, raw: Bytes, packed: Bytes) -> None:
        from ggplug_cpu.ops.mul_mat.weights import Packing, pack_panels

        if features.target() != self.type.target:
            raise BufferUseError(
                f"{tensor!r} lies packed for other instructions than are used now, so its panels cannot be made",
                tensor=tensor,
                remedy="place it in the device's extra buffer type as it is now",
            )
        K, M = tensor.ne[0], tensor.ne[1]
        count, matrix, step = -(-M // form.rows), form.matrix_bytes(K, M), form.slice_numbers(K, M)
        rows, panels = packed[: raw.size], packed[form.panels_at(raw.size) :]
        run = _callable(pack_panels(form.kind, tensor.type.name))

        def copy(first: int, last: int) -> None:
            rows[first:last] = raw[first:last]

        def clear(first: int, last: int) -> None:
            panels[first:last] = 0

        def fill(first: int, last: int) -> None:
            there = panels.ctypes.data
            for number in range(panels.size // matrix):
                source = rows.ctypes.data + number * tensor.nb[2]
                for k in range(0, K, step):
                    numbers = min(step, K - k)
                    size = -(-numbers // form.numbers) * form.block_bytes * form.rows
                    words = Packing.words(
                        weights=Place(source, tensor.nb),
                        panels=Place(there + first * size),
                        m_first=first * form.rows,
                        m_last=min(last * form.rows, M),
                        k=k,
                        numbers=numbers,
                        gathered_at=0,
                    )
                    parameters = np.array(words, np.int64)
                    run(0, parameters.ctypes.data)
                    there += count * size

        _on_threads(copy, rows.size, rows.size)
        _on_threads(clear, panels.size, panels.size)
        _on_threads(fill, count, panels.size)

    def _packed(self, root: Described, start: int) -> tuple[Form, Bytes]:
        """The form of a tensor that lies at ``start``, and its packed bytes."""
        form = self.type.forms.get(root.type.name)
        size = self.type.alloc_size(root)
        if form is None or self._memory is None or start < 0 or start + size > self.size:
            raise BufferUseError(f"{root!r} does not lie at byte {start} of {self!r}", tensor=root, got=start)
        return form, self._memory[start : start + size]


def _callable(kernel: Kernel) -> Callable[[int, int], None]:
    return ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(kernel.address())


def pack(
    form: Form, raw: Bytes, packed: Bytes, K: int, M: int, kernel: Callable[[int, int], None] | None = None
) -> None:
    """Packs matrices of ``M`` rows of ``K`` numbers; padding is zero.  ``kernel``: one that packs whole panels."""
    move = _packing if kernel is None else partial(_packing_by_kernel, kernel)
    _in_parts(form, raw, packed, K, M, move)


def unpack(form: Form, packed: Bytes, raw: Bytes, K: int, M: int) -> None:
    """Unpacks matrices to the order of rows."""
    _in_parts(form, raw, packed, K, M, _unpacking)


def _in_parts(form: Form, raw: Bytes, packed: Bytes, K: int, M: int, move: _Moves) -> None:
    panels, width = -(-M // form.rows), form.block_bytes
    rows = raw.reshape(-1, M, raw.size // M // (packed.size // form.matrix_bytes(K, M)))
    step = form.slice_numbers(K, M) // form.numbers * width  # bytes of a row
    whole = -(-K // form.numbers) * width
    parts = []
    at = 0
    for matrix in rows:
        for start in range(0, whole, step):
            size = form.rows * min(step, whole - start)  # bytes of a panel
            parts.append((matrix[:, start : start + step], packed[at : at + panels * size].reshape(panels, size)))
            at += panels * size

    def some(first: int, last: int) -> None:
        for matrix, places in parts:
            move(form, matrix[first * form.rows :], places[first:last])

    _on_threads(some, panels, packed.size)


def _on_threads(work: Callable[[int, int], None], count: int, nbytes: int) -> None:
    """Calls ``work(first, last)`` for parts of ``count`` items, on several threads if there are enough bytes for that.

    NumPy copies without Python's lock, and the first write to a page of new memory makes the system allocate it.
    """
    threads = min(default_threads(), MOST_THREADS, nbytes // BYTES_OF_A_THREAD, count)
    if threads < 2:
        work(0, count)
        return
    bounds = [count * number // threads for number in range(threads + 1)]
    with ThreadPoolExecutor(threads - 1, "ggplug packing") as pool:
        others = [pool.submit(work, *each) for each in pairwise(bounds[1:])]
        work(*bounds[:2])
        for each in others:
            each.result()


_Moves = Callable[["Form", Bytes, Bytes], None]
"""``move(form, rows, panels)``: copies between the rows of a slice of weights and its panels, [panel][byte]."""


def _packing_by_kernel(kernel: Callable[[int, int], None], form: Form, rows: Bytes, panels: Bytes) -> None:
    from ggplug_cpu.ops.mul_mat.weights import Panels

    whole = min(len(panels), len(rows) // form.rows)
    if whole:
        words = Panels.words(
            rows=Place(rows.ctypes.data, (1, rows.strides[0])),
            panels=Place(panels.ctypes.data),
            count=whole,
            blocks=rows.shape[1] // form.block_bytes,
        )
        parameters = np.array(words, np.int64)
        kernel(0, parameters.ctypes.data)
    _packing(form, rows[whole * form.rows :], panels[whole:])


def _packing(form: Form, rows: Bytes, panels: Bytes) -> None:
    panel_rows = np.zeros((form.rows, panels.shape[1] // form.rows), np.uint8)
    for number, panel in enumerate(panels):
        part = rows[number * form.rows : (number + 1) * form.rows]
        panel_rows[len(part) :] = 0
        panel_rows[:, part.shape[1] :] = 0
        panel_rows[: len(part), : part.shape[1]] = part
        _move_panel(form, panel_rows, panel, into_packed=True)


def _unpacking(form: Form, rows: Bytes, panels: Bytes) -> None:
    panel_rows = np.empty((form.rows, panels.shape[1] // form.rows), np.uint8)
    for number, panel in enumerate(panels):
        part = rows[number * form.rows : (number + 1) * form.rows]
        _move_panel(form, panel_rows, panel, into_packed=False)
        part[...] = panel_rows[: len(part), : part.shape[1]]


def _move_panel(form: Form, rows: Bytes, panel: Bytes, *, into_packed: bool) -> None:
    """Copies between ``rows``, [row][byte], and a ``panel``, [byte]."""
    panel = panel.reshape(-1, form.rows * form.block_bytes)
    blocks = len(panel)
    apart = rows.reshape(form.rows, blocks, form.block_bytes)
    at = 0
    for field in form.fields:
        unit = np.dtype(f"u{field.unit}")
        plain = apart[:, :, field.offset : field.offset + field.size].view(unit).transpose(1, 2, 0)
        there = panel[:, at : at + form.rows * field.size].view(unit).reshape(blocks, -1, form.rows)
        if into_packed:
            there[...] = plain
        else:
            plain[...] = there
        at += form.rows * field.size
