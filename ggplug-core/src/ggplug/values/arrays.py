"""Conversions between NumPy arrays, raw bytes, and the bytes of tensors."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug.errors import ShapeError, TypeMismatchError
from ggplug.system.lazy import whole
from ggplug.types import BF16, Type
from ggplug.values.described import Described


def whole_number(value: Any, what: str) -> int:
    """An integer of any type, such as NumPy's, as a plain int; ``what`` names it in the error.

    Offsets and sizes are converted by it before arithmetic, because NumPy's integers overflow.
    Raises TypeMismatchError for everything else, also for floats without a fraction and for booleans.
    """
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeMismatchError(f"{what} must be an integer, got {value!r:.100}", got=type(value), wanted=int)


def as_name(value: Any) -> str:
    """``value``, if it is a text, for a name.  Raises TypeMismatchError."""
    if not isinstance(value, str):
        raise TypeMismatchError(f"a name must be a text, got a {type(value).__name__}", got=type(value), wanted=str)
    return value


def as_array(values: Any) -> npt.NDArray[Any]:
    """Converts values to a NumPy array; does not copy if the object allows that.

    ``values``: an array, anything with the buffer protocol, ``__array_interface__`` or DLPack, nested sequences,
    scalars.  Raises ShapeError for sequences of different lengths; TypeMismatchError for values that are no numbers, or
    lie in memory that the host cannot read.
    """
    if isinstance(values, np.ndarray):
        return values
    try:
        if hasattr(values, "__array_interface__") or isinstance(values, (memoryview, bytes, bytearray)):
            return np.asarray(values)
        if hasattr(values, "__dlpack__"):
            return np.from_dlpack(values)
    except MemoryError:
        raise
    except Exception as error:  # the object's own library may raise anything
        raise TypeMismatchError(
            f"the memory of this {type(values).__name__} cannot be read: {error}",
            got=type(values),
            remedy="copy the values to an array in host memory",
        ) from error
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ShapeError(f"values are not a regular array: {error}") from None
    if array.dtype == object:
        raise TypeMismatchError(f"values of type {type(values).__name__} are not numbers", got=type(values))
    return array


def as_values(values: Any) -> npt.NDArray[Any]:
    """As :func:`as_array`, for values that are stored.  Raises TypeMismatchError for masked ones, too."""
    if np.ma.is_masked(values):
        raise TypeMismatchError(
            "some values are masked", got=type(values), remedy="give them numbers: values.filled(0)"
        )
    return as_array(values)


def as_bytes(data: Any) -> npt.NDArray[np.uint8]:
    """The raw bytes of an array or of anything with the buffer protocol, as a flat uint8 array.

    Does not copy contiguous bytes.  Raises TypeMismatchError, also for arrays of Python objects, whose bytes are
    addresses; ShapeError.
    """
    array = np.frombuffer(data, np.uint8) if isinstance(data, (bytes, bytearray)) else as_array(data)
    if array.dtype.hasobject:
        raise TypeMismatchError("an array of Python objects has no raw bytes", got=array.dtype)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def encode(array: npt.NDArray[Any], type: Type, *, stored: bool = False) -> npt.NDArray[np.uint8]:
    """Contiguous bytes of values in NumPy order, converted to ``type``; ``stored`` as for ``quants.quantize``.

    Integers convert only if every value fits.  Raises TypeMismatchError.
    """
    if array.dtype.kind not in "fiub":
        raise TypeMismatchError(f"cannot store {array.dtype} values as {type.name}", got=array.dtype, wanted=type)
    dtype = type.dtype
    if array.size == 0:
        return np.empty(0, np.uint8)
    if not type.is_quantized and dtype.kind == "i":
        if array.dtype.kind == "f" or not np.can_cast(array.dtype, dtype):
            with np.errstate(invalid="ignore"):  # infinities and NaN are out of range
                exact = array.astype(dtype)
            if not np.array_equal(exact, array):
                position = tuple(map(int, np.argwhere(exact != array)[0]))
                value = array[position].item()
                raise TypeMismatchError(
                    f"values do not fit into {type.name}: {value!r} at {list(position)}",
                    got=array.dtype,
                    wanted=type,
                    value=value,
                    position=position,
                )
        return as_bytes(array.astype(dtype))
    if not type.is_quantized and array.dtype == dtype and dtype.kind == "f":
        return as_bytes(array)
    with np.errstate(over="ignore", invalid="ignore"):  # for overflow of F32, and signalling NaN
        if not type.is_quantized and dtype == np.float64:
            return as_bytes(array.astype(dtype))
        # Imported here: many programs never convert, and codecs would take a tenth of the time of `import ggplug`.
        quantize = whole("ggplug.quants").quantize
        return as_bytes(quantize(np.ascontiguousarray(array, np.float32), type, stored=stored))


class TensorLayout(NamedTuple):
    """The layout of a tensor's elements in its bytes; axes in NumPy's order, outermost first, always four.

    ``dtype``: of an element, or of a block where the type has blocks.  ``shape``: extents, along the axis
    :data:`BLOCK_AXIS` in blocks.  ``strides``: in elements or blocks, so multiples of ``dtype.itemsize`` bytes.
    ``block_size``: elements of a block, 1 for plain types.  ``alignment``: in host memory, the address of the first
    element is a multiple of it, in bytes.  ``nbytes``: from the first to the last byte.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]
    block_size: int
    alignment: int
    nbytes: int

    @classmethod
    def of(cls, tensor: Described) -> TensorLayout:
        """The layout of a tensor, relative to the tensor's first byte, also for a view."""
        kind, (n0, n1, n2, n3) = tensor.type, tensor.ne
        s0, s1, s2, s3 = (stride // kind.dtype.itemsize for stride in tensor.nb)
        shape = (n3, n2, n1, n0 // kind.block_size)
        return cls(kind.dtype, shape, (s3, s2, s1, s0), kind.block_size, kind.alignment, tensor.nbytes)

    @property
    def byte_strides(self) -> tuple[int, int, int, int]:
        """Strides in bytes, as in NumPy."""
        a, b, c, d = (stride * self.dtype.itemsize for stride in self.strides)
        return a, b, c, d


BLOCK_AXIS = 3
"""The axis of a :class:`TensorLayout` along which blocks are counted: the innermost, ne0."""


def strided(raw: npt.NDArray[np.uint8], tensor: Described) -> npt.NDArray[Any]:
    """A strided array over a tensor's raw bytes: four-dimensional, outermost first, of the type's dtype.

    For block types the innermost axis counts blocks.
    """
    layout = TensorLayout.of(tensor)
    return np.ndarray(layout.shape, layout.dtype, raw.data, 0, layout.byte_strides)


def decode(raw: npt.NDArray[np.uint8], tensor: Described) -> npt.NDArray[Any]:
    """The values in a tensor's raw bytes: four-dimensional, outermost first."""
    kind = tensor.type
    stored = strided(raw, tensor)
    if not kind.is_quantized and kind is not BF16:
        return stored
    if stored.size == 0:
        return np.empty(tensor.ne[::-1], np.float32)
    packed = np.ascontiguousarray(stored)
    rows = packed.view(np.uint8).reshape(*packed.shape[:3], -1)
    values: npt.NDArray[Any] = whole("ggplug.quants").dequantize(rows, kind)
    return values.reshape(tensor.ne[::-1])
