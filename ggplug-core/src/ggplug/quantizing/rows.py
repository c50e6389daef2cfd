"""Rows of weights encoded: by a backend that has compiled kernels for it, else by the references in NumPy."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug import quants
from ggplug.errors import ParameterError
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
"""Of floats the bits without the sign, which grow with the magnitude, and those of 2^11: below, no type loses any."""
_EXPONENT = 8
"""Rows with elements up to 2^8 are encoded as well as they can be: scales are normal numbers of each type."""
_NEIGHBOURS = 16
"""Elements that share a scale in every type: where it fails, it fails for all of them."""


class Misfit(NamedTuple):
    """A number that spoils rows: its place among their elements, its value, and whether that is finite."""

    place: int
    value: float
    finite: bool


class Encoder:
    """Encodes rows with the first backend that offers it, on ``n_threads`` threads (None: as many as it takes).

    ``compiled``: False takes the references in any case.  The bytes are the same.  Raises ParameterError for too few
    threads.
    """

    def __init__(self, n_threads: int | None = None, *, compiled: bool = True) -> None:
        if n_threads is not None and (not isinstance(n_threads, int) or n_threads < 1):
            raise ParameterError(f"{n_threads!r} threads cannot compute", got=n_threads)
        self._n_threads = n_threads
        self._sought = not compiled
        self._found: Quantizer | None = None

    @property
    def _quantizer(self) -> Quantizer | None:
        """Backends are loaded when there is something to encode."""
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
                quantizer.encode(np.ascontiguousarray(data), source, type, importance, out)
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
        """A number in rows of ``source`` that spoils what they are as ``type``, ``encoded``.

        That is one that is NaN or infinite, where it takes a block of others with it (``ggml_validate_row_data``); and,
        of those that the type is too small for, the largest.  ``into_blocks``: whether the rows will be quantised later
        on, so that ``type`` takes no such block yet.  None if there is none, as nearly always, which takes a look at
        the largest only.
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
        """Which of the largest elements of rows are not what they are where the rows are smaller by a power of two.

        So a type may be as coarse as it is: what it makes of neighbours does not depend on their scale, unless a sum of
        their squares, or a scale, is none of its numbers any more.  Single elements may differ where such a sum only
        makes a search choose other numbers, which are about as near.
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
        """Ends the backend's threads; encoding goes on with NumPy."""
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
    """For each element that of its neighbours together."""
    squares = np.square(rows.reshape(*rows.shape[:-1], -1, _NEIGHBOURS)).sum(axis=-1)
    return np.repeat(np.sqrt(squares), _NEIGHBOURS, axis=-1)


def _offered(n_threads: int | None) -> Quantizer | None:
    for registration in REGISTRY.registrations():
        make = registration.get("quantizer")
        if make is not None:
            found = make(n_threads)
            if isinstance(found, Quantizer):
                return found
            log.warning("the quantizer of %s is none, but %s", registration.name, type(found).__name__)
    return None
