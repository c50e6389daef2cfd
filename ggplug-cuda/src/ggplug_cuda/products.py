"""Matrix products of many columns by cuBLAS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ggplug_simt import Bound
from ggplug_simt.c.launch import MatrixProduct, layout

# cublasOperation_t and cublasMath_t
_AS_IT_IS, _TRANSPOSED = 0, 1
_FLOAT32, _TF32 = 0, 3

_ARGUMENTS = layout(MatrixProduct.tensors, MatrixProduct.scalars)
_ONE_ZERO = np.array([1.0, 0.0], np.float32)  # alpha and beta, which cuBLAS reads from the host


class BlasQueue(Protocol):
    """A queue with a handle of cuBLAS."""

    @property
    def cuda(self) -> Any: ...
    @property
    def stream(self) -> Any: ...
    @property
    def blas(self) -> tuple[Any, int]: ...


class CudaProduct(Bound):
    """``cublasSgemmStridedBatched``: dst = a^T b, all by columns, which is how ggml's rows look to BLAS."""

    capturable = False  # CuPy does not let cuBLAS be captured

    def __init__(self, exact: bool) -> None:
        self._math = _FLOAT32 if exact else _TF32
        self._pointers = [0] * len(MatrixProduct.tensors)
        self._offsets = [0] * len(MatrixProduct.tensors)
        self._extents = (0, 0, 0)
        self._strides: list[tuple[int, int]] = []
        self._count = 0

    def set_buffer(self, position: int, handle: Any) -> None:
        self._pointers[position] = handle.ptr

    def set_arguments(self, position: int, arguments: npt.NDArray[np.uint8]) -> None:
        decoded = arguments.view(_ARGUMENTS)[0]
        dst, a, b = (decoded[name] for name in MatrixProduct.tensors)
        self._offsets = [int(each["offset"]) for each in (dst, a, b)]
        self._strides = [(int(each["nb"][1]) // 4, int(each["nb"][2]) // 4) for each in (dst, a, b)]
        self._extents = int(dst["ne"][0]), int(dst["ne"][1]), int(a["ne"][0])
        self._count = int(dst["ne"][2])

    def launcher(self, queue: BlasQueue, groups: int, lanes: int) -> Callable[[], object]:
        one = _ONE_ZERO.ctypes.data
        zero = one + _ONE_ZERO.itemsize

        def multiply() -> None:
            blas, handle = queue.blas
            places = (pointer + offset for pointer, offset in zip(self._pointers, self._offsets, strict=True))
            dst, a, b = ((place, *strides) for place, strides in zip(places, self._strides, strict=True))
            how = _TRANSPOSED, _AS_IT_IS, *self._extents
            if not queue.cuda.runtime.is_hip:
                blas.setMathMode(handle, self._math)
            with queue.stream:
                blas.sgemmStridedBatched(handle, *how, one, *a, *b, zero, *dst, self._count)

        return multiply
