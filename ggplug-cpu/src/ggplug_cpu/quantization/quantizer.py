"""Quantises weights on all threads, for ``ggplug quantize``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ggplug import quants
from ggplug.types import Type
from ggplug_cpu.choosing.places import reader
from ggplug_cpu.parameters import Place
from ggplug_cpu.parts.nest import BLOCK
from ggplug_cpu.quantization.encode import Encoding, encode_rows, scratch_bytes
from ggplug_cpu.quantization.searches import CompiledSearches
from ggplug_cpu.tape import Entry, Tape
from ggplug_cpu.team import Team
from ggplug_cpu.types import BLOCKS

#: Numbers of a chunk, which one thread encodes.
_AT_ONCE = 1 << 14


class Quantizer:
    """A :class:`ggplug.registry.extras.Quantizer` with a team of its own; ``n_threads`` as :class:`Team` takes it."""

    def __init__(self, n_threads: int | None = None) -> None:
        self._team = Team(n_threads)

    def takes(self, source: Type, type: Type, *, weighted: bool) -> bool:
        """Whether there are kernels for the two types."""
        if type in quants.searched_types():
            return quants.can_dequantize(source)
        blocks = BLOCKS.get(type.name)
        if blocks is None or reader(source) is None:
            return False
        return (weighted and blocks.weigh is not None) or (blocks.file or blocks.encode) is not None

    def encode(
        self,
        data: npt.NDArray[np.uint8],
        source: Type,
        type: Type,
        importance: npt.NDArray[np.float32] | None,
        out: npt.NDArray[np.uint8],
    ) -> None:
        """See :meth:`ggplug.registry.extras.Quantizer.encode`."""
        if type in quants.searched_types():
            numbers = quants.dequantize(data, source)
            out[:] = quants.quantize(numbers, type, importance, searches=CompiledSearches(self._team))
            return
        rows, row_bytes = data.shape
        n = row_bytes // source.block_bytes * source.block_size
        convert = reader(source)
        in_place = source.dtype == np.float32
        assert convert is not None
        weighted = importance is not None and BLOCKS[type.name].weigh is not None
        weights = np.ascontiguousarray(importance, np.float32) if importance is not None else None
        words = Encoding.words(
            y=Place(out.ctypes.data, (0, out.shape[1], 0, 0)),
            x=Place(
                data.ctypes.data,
                (0, row_bytes, 0, 0),
                0 if in_place else convert,
                BLOCK // source.block_size * source.block_bytes,
            ),
            importance=Place(0 if weights is None else weights.ctypes.data),
            n=n,
            rows=rows,
            at_once=max(1, _AT_ONCE // n),
        )
        entry = Entry(encode_rows(type.name, weighted), words)
        self._team.run(Tape([entry], thread_scratch_bytes=scratch_bytes(n)).bind())

    def close(self) -> None:
        """Ends the threads."""
        self._team.close()
