"""Rows of weights encoded: by a backend that has compiled kernels for it, else by the references in NumPy."""

from __future__ import annotations

import logging
from types import TracebackType

import numpy as np
import numpy.typing as npt

from ggplug import quants
from ggplug.errors import ParameterError
from ggplug.registry import REGISTRY
from ggplug.registry.extras import Quantizer
from ggplug.types import Type

log = logging.getLogger("ggplug")


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
        ne0 = data.shape[1] // source.block_bytes * source.block_size
        quantizer = self._quantizer if data.size else None
        if quantizer is not None:
            if quantizer.takes(source, type, weighted=importance is not None):
                out = np.empty((len(data), type.row_bytes(ne0)), np.uint8)
                quantizer.encode(np.ascontiguousarray(data), source, type, importance, out)
                return out
            log.debug("rows of %s are encoded as %s by NumPy", source.name, type.name)
        return quants.quantize(quants.dequantize(data, source), type, importance)

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


def _offered(n_threads: int | None) -> Quantizer | None:
    for registration in REGISTRY.registrations():
        make = registration.get("quantizer")
        if make is not None:
            found = make(n_threads)
            if isinstance(found, Quantizer):
                return found
            log.warning("the quantizer of %s is none, but %s", registration.name, type(found).__name__)
    return None
