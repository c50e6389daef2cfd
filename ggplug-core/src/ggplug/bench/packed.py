"""What packing weights once is worth: products with plain and with packed weights, measured alternately."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.backend import BufferType, Device
from ggplug.bench.alternating import speed_relative, timed_alternately
from ggplug.bench.products import SEED, WEIGHTS, K, MatrixVector, on, prepared, stream_on, weights
from ggplug.errors import UnsupportedOpError
from ggplug.registry.extras import Options
from ggplug.tensor import new_tensor
from ggplug.types import Type


class PackedWeights:
    """``mul_mat`` with weights in each extra buffer type that packs them, and with the same weights plain."""

    name = "packed"
    description = "weights packed once: the speed of products relative to plain weights, and the bytes"
    REPEATS = 9
    #: Columns, and rows of weights: one column from memory, as generating a token reads them; a short text; a long one.
    CASES = ((1, 0), (8, 0), (100, 2048))

    def run(self, device: Device, options: Options) -> Iterator[Mapping[str, Any]]:
        """A row for each type of weights and number of columns.

        Raises UnsupportedOpError if the device packs no weights.
        """
        kinds = [kind for kind in device.extra_buffer_types if kind.has_own_layout]
        if not kinds:
            raise UnsupportedOpError(f"{device.name} has no memory for packed weights", device=device)
        for kind in kinds:
            for type in WEIGHTS:
                yield from self._rows(device, kind, type, options)

    def _rows(self, device: Device, kind: BufferType, type: Type, options: Options) -> Iterable[Mapping[str, Any]]:
        for columns, rows in self.CASES:
            plain = weights(device, type, rows or MatrixVector.size(device) // type.row_bytes(K))
            packed = new_tensor(type, plain.ne[:2], "packed")
            if (reason := kind.refusal(packed)) is not None:
                yield {"case": type.name, "note": reason}
                return
            with stream_on(device, options) as stream, kind.alloc(kind.alloc_size(packed)) as buffer:
                packed.place(buffer)
                packed.set_bytes(plain.tobytes())
                x = on(device, np.random.default_rng(SEED).standard_normal((columns, K), np.float32))
                products = {each: prepared(stream, ops.mul_mat(each, x)) for each in (plain, packed)}
                taken = timed_alternately({"plain": products[plain], "packed": products[packed]}, self.REPEATS)
                yield {
                    "case": f"{type.name}, {columns} columns",
                    "megabytes": round(plain.nbytes / 1e6, 1),
                    "packed_megabytes": round(buffer.size / 1e6, 1),
                    "milliseconds": min(taken["plain"]) * 1e3,
                    "packed_milliseconds": min(taken["packed"]) * 1e3,
                    "speed_relative_to_plain": speed_relative(taken, "packed", "plain"),
                }
                packed.place(None)
            assert plain.buffer is not None
            plain.buffer.free()
