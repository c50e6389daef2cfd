"""Encodes rows of weights: by a backend that has compiled kernels for it, else by the references in NumPy."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug import quants
from ggplug.errors import ModelError, ParameterError
from ggplug.registry import REGISTRY
from ggplug.registry.extras import Quantizer
from ggplug.types import BF16, F16, F32, F64, Type

log = logging.getLogger("ggplug")

_MAGNITUDES = {
    F64: (np.uint64, 0x7FFFFFFFFFFFFFFF, 0x40A0000000000000),
    F32: (np.uint32, 0x7FFFFFFF, 0x45000000),
    F16: (np.uint16, 0x7FFF, 0x6800),
    BF16: (np.uint16, 0x7FFF, 0x4500),
}
"""By type: dtype and mask of the bits without the sign, which grow with the magnitude, and the bits of 2^11.

Smaller numbers fit all types.
"""
_EXPONENT = 8
"""Rows with elements up to 2^8 are encoded without overflow: their scales are normal numbers in each type."""
_NEIGHBOURS = 16
"""Elements with a common scale in every type: if it is out of range, all of them are wrong."""


class Misfit(NamedTuple):
    """A number that a type cannot hold: its index among the rows' elements, its value, and whether it is finite."""

    place: int
    value: float
    finite: bool

    def refused(self, path: str, name: str, ne: tuple[int, ...], type: Type, before: int = 0) -> ModelError:
        """The error for a tensor of a file, with extents ``ne``, that is to become ``type``.

        ``before``: number of elements before the rows.
        """
        index = tuple(map(int, np.unravel_index(before + self.place, ne[::-1])))
        wanted = f"numbers that {type.name} holds" if self.finite else "finite numbers"
        return ModelError(
            f"{path}: tensor {name} has {self.value:g} at {list(index)}; {type.name} needs {wanted}",
            tensor=name,
            index=index,
            got=self.value,
            wanted=wanted,
            path=path,
            remedy="use BF16 or F32, which can hold it"
            if self.finite
            else "the file is damaged, or its training failed",
        )


class Encoder:
    """Encodes rows with the first backend that has an encoder, on ``n_threads`` threads (None: the backend's default).

    ``compiled``: False uses the references, which give the same bytes.  Raises ParameterError if ``n_threads`` is less
    than 1.
    """

    def __init__(self, n_threads: int | None = None, *, compiled: bool = True) -> None:
        if n_threads is not None and (not isinstance(n_threads, int) or n_threads < 1):
            raise ParameterError(f"n_threads must be 1 or more, got {n_threads!r}", got=n_threads)
        self._n_threads = n_threads
        self._sought = not compiled
        self._found: Quantizer | None = None

    @property
    def _quantizer(self) -> Quantizer | None:
        """The backend's encoder, or None; backends are loaded when the first rows are encoded."""
        if not self._sought:
            self._sought, self._found = True, _offered(self._n_threads)
        return self._found

    def encode(
        self,
        data: npt.NDArray[np.uint8],
        source: Type,
        type: Type,
        importance: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.uint8]:
        """Rows of ``source``, [rows, row bytes], as rows of ``type``; ``importance``: [ne0] or None."""
        if source is F64:
            with np.errstate(over="ignore"):  # which is what :meth:`misfit` looks for
                data, source = np.ascontiguousarray(data).view(np.float64).astype(np.float32).view(np.uint8), F32
        ne0 = data.shape[1] // source.block_bytes * source.block_size
        quantizer = self._quantizer if data.size and type.is_quantized else None
        if quantizer is not None:
            if quantizer.takes(source, type, weighted=importance is not None):
                out = np.empty((len(data), type.row_bytes(ne0)), np.uint8)
                weights = None if importance is None else quants.balanced(importance, type)
                quantizer.encode(np.ascontiguousarray(data), source, type, weights, out)
                return out
            log.debug("rows of %s are encoded as %s by NumPy", source.name, type.name)
        return quants.quantize(quants.dequantize(data, source), type, importance)

    def misfit(
        self,
        rows: npt.NDArray[np.uint8],
        source: Type,
        encoded: npt.NDArray[np.uint8],
        type: Type,
        importance: npt.NDArray[np.float32] | None = None,
        *,
        into_blocks: bool = False,
    ) -> Misfit | None:
        """A number in rows of ``source`` that ``type`` cannot hold, whose rows were ``encoded``; None if there is none.

        It is the first NaN or infinity, if ``type`` has blocks or ``into_blocks`` says that the rows will be quantised
        later: all numbers of its block would be lost (``ggml_validate_row_data``).  Else it is the largest number that
        is out of range.  If the largest magnitude is small, as nearly always, no other number is checked.
        """
        if source in _MAGNITUDES:
            word, mask, large = _MAGNITUDES[source]
            if (np.ascontiguousarray(rows).view(word) & word(mask)).max(initial=0) < large:
                return None
        values = np.ascontiguousarray(rows).view(np.float64) if source is F64 else quants.dequantize(rows, source)
        finite = np.isfinite(values)
        if (into_blocks or type.is_quantized) and not finite.all():
            place = int(finite.argmin())
            return Misfit(place, float(values.flat[place]), False)
        found = quants.dequantize(encoded, type)
        lost = finite & ~np.isfinite(found)
        if type.is_quantized:
            lost |= self._is_far_off(values, found, type, importance)
        if not lost.any():
            return None
        place = int(np.where(lost, np.abs(values), -1).argmax())
        return Misfit(place, float(values.flat[place]), True)

    def _is_far_off(
        self,
        values: npt.NDArray[np.floating[Any]],
        found: npt.NDArray[np.float32],
        type: Type,
        importance: npt.NDArray[np.float32] | None,
    ) -> npt.NDArray[np.bool_]:
        """Which of the largest elements differ by more than a factor of two from rows scaled down by a power of two.

        Encoding does not depend on the magnitude of a row, unless a scale, or a sum of squares, is out of range.  So a
        difference shows overflow, not the precision of the type.  Single elements may differ if the search for a scale
        chose another one of about the same error.
        """
        far = np.zeros(values.shape, np.bool_)
        exponents = np.frexp(np.abs(values).max(axis=-1, keepdims=True, initial=0))[1] - _EXPONENT
        chosen = exponents[:, 0] + _EXPONENT > 11
        if chosen.any():
            down = -exponents[chosen]
            small = np.ldexp(values[chosen], down).astype(np.float32)
            again = quants.dequantize(self.encode(small.view(np.uint8), F32, type, importance), type)
            is_, should_be = _norms(np.ldexp(found[chosen], down)), _norms(again)
            far[chosen] = (np.abs(small) >= 2.0 ** (_EXPONENT - 2)) & ((2 * is_ < should_be) | (is_ > 2 * should_be))
        return far

    def close(self) -> None:
        """Ends the backend's threads; later calls encode with NumPy."""
        if self._found is not None:
            self._found.close()
        self._sought, self._found = True, None

    def __enter__(self) -> Encoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _norms(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """For each element, the norm of the elements with the same scale."""
    squares = np.square(rows.reshape(*rows.shape[:-1], -1, _NEIGHBOURS)).sum(axis=-1)
    return np.repeat(np.sqrt(squares), _NEIGHBOURS, axis=-1)


def _offered(n_threads: int | None) -> Quantizer | None:
    for registration in REGISTRY.registrations():
        make = registration.get("quantizer")
        if make is not None:
            found = make(n_threads)
            if isinstance(found, Quantizer):
                return found
            log.warning("ignoring the quantizer of %s, which is of class %s", registration.name, type(found).__name__)
    return None
