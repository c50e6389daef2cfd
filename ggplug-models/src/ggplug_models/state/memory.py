"""The tensors that hold keys and values, or the state, of each block, on the device that computes the block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import ggplug as gg
from ggplug.backend import BufferType, Device
from ggplug.combined.memory import shares
from ggplug.errors import ParameterError
from ggplug.memory import allocate
from ggplug.system.copying import Uncopied
from ggplug.tensor import Context, Tensor
from ggplug.types import BufferUsage, Type
from ggplug_models.checks.arguments import LARGEST
from ggplug_models.state.cells import SOURCE, Cells, CompressedCells, SourceCells


@dataclass(frozen=True)
class KeysValues:
    """A block with attention.  ``keys``, ``values``: elements that it stores of a token; ``head``: elements of a head.

    ``window``: number of positions that a token attends to, its own included; 0: all; :data:`.SOURCE`: those of a
    source text; another negative number -r: all, of which r adjacent ones have a key together.  ``values`` 0: the
    values are a part of the keys.  ``type``: how they are stored; None: as the session says.
    """

    keys: int
    values: int
    head: int
    window: int = 0
    type: Type | None = None


@dataclass(frozen=True)
class State:
    """A block with a recurrent state of fixed size.  ``parts``: the number of elements of each of its tensors."""

    parts: tuple[int, ...]


Kind: TypeAlias = KeysValues | State | None
"""What a session keeps for a block; None: nothing."""


def cells_of(kinds: Sequence[Kind], n_seq: int, n_ctx: int, n_step: int) -> dict[int, Cells]:
    """The cells of a session, by the windows of the blocks."""
    windows = sorted({kind.window for kind in kinds if isinstance(kind, KeysValues)})
    return {window: _cells(window, n_seq, n_ctx, n_step) for window in windows}


def _cells(window: int, n_seq: int, n_ctx: int, n_step: int) -> Cells:
    if window == SOURCE:
        return SourceCells(n_seq, n_ctx)
    return CompressedCells(n_seq, n_ctx, -window) if window < 0 else Cells(n_seq, n_ctx, n_step, window)


class Memory(Uncopied):
    """The tensors that a session of ``n_seq`` sequences keeps for each block of a model.

    ``devices``: the device of each block; None makes tensors without a place, for graphs that are only inspected.
    ``cells``: the number of cells of a sequence, by window.  ``type``: of keys and values whose kind has none; it may
    be quantised.  ``blocks``: a tuple of tensors for each block: keys and values [elements, n_cells n_seq], or the
    parts of a state, F32 [elements, n_seq].  ``usage``: with WEIGHTS the nodes that read the tensors are computed where
    these lie.
    ``planned``: the memory is planned and not allocated (:class:`~ggplug.memory.PlannedBuffer`).  ``split``: by name,
    the memory of tensors that lie split on their device (:mod:`ggplug.combined`).  Call :meth:`free` to release the
    memory.

    Raises ParameterError for a type whose blocks do not divide the heads, OutOfMemoryError.
    """

    def __init__(
        self,
        kinds: Sequence[Kind],
        devices: Sequence[Device] | None,
        n_seq: int,
        cells: Mapping[int, int],
        type: Type,
        usage: BufferUsage = BufferUsage.ANY,
        *,
        planned: bool = False,
        split: Mapping[str, BufferType] = MappingProxyType({}),
    ) -> None:
        self.kinds = tuple(kinds)
        self.n_seq = n_seq
        self.type = type
        self.blocks: list[tuple[Tensor, ...]] = []
        self._contexts: dict[tuple[Device, BufferType] | None, Context] = {}
        try:
            for number, kind in enumerate(kinds):
                block = []
                for tensor in self._block(number, kind, cells):
                    where = None
                    if devices is not None:
                        device, own = devices[number], split.get(tensor.name)
                        fits = own is not None and own.device is device and own.refusal(tensor) is None
                        where = device, own if own is not None and fits else device.buffer_type
                    block.append(self._contexts.setdefault(where, Context("cache")).add(tensor))
                self.blocks.append(tuple(block))
            for where, context in self._contexts.items():
                if where is not None:
                    # Attention also reads masked cells that no token was stored in.  Uninitialised memory may hold NaN,
                    # for which kernels take another path that rounds differently.
                    allocate(context, where[1], usage, zeroed=True, planned=planned)
        except BaseException:
            self.free()
            raise

    def _block(self, number: int, kind: Kind, cells: Mapping[int, int]) -> tuple[Tensor, ...]:
        if isinstance(kind, KeysValues):
            type = kind.type or self.type
            if kind.head % type.block_size:
                raise ParameterError(
                    f"a head has {kind.head} elements, which {type.name} cannot store: they must be a multiple of "
                    f"its block size, {type.block_size}",
                    got=type,
                    wanted=type.block_size,
                    remedy="use another cache type, such as f16",
                )
            rows = cells[kind.window] * self.n_seq
            if rows > LARGEST:
                raise ParameterError(
                    f"a KV cache of {self.n_seq} sequences of {cells[kind.window]} cells has more than {LARGEST} rows",
                    got=rows,
                    wanted=LARGEST,
                    remedy="use a smaller n_ctx or n_seq",
                )
            widths = {"k": kind.keys, "v": kind.values}
            return tuple(
                gg.new_tensor(type, (width, rows), f"cache.{number}.{name}") for name, width in widths.items() if width
            )
        parts = kind.parts if kind else ()
        return tuple(
            gg.new_tensor(gg.F32, (size, self.n_seq), f"state.{number}.{part}") for part, size in enumerate(parts)
        )

    def held(self) -> Counter[Device]:
        """Bytes of the buffers by device."""
        found: Counter[Device] = Counter()
        for where, context in self._contexts.items():
            if where is not None:
                for buffer in context.buffers:
                    for device, _, nbytes in shares(buffer.type, buffer.size):
                        found[device] += nbytes
        return found

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        return sum(context.nbytes for context in self._contexts.values())

    def of_sequence(self, seq: int) -> list[Tensor]:
        """Views of the tensors' parts that belong to one sequence: [elements, cells], of a state [elements, 1]."""
        views = []
        for tensor in (tensor for block in self.blocks for tensor in block):
            cells = tensor.ne[1] // self.n_seq
            views.append(gg.view(tensor, tensor.ne[0], cells, nb=(tensor.nb[1],), offset=seq * cells * tensor.nb[1]))
        return views

    def cells(self, seq: int, first: int, last: int) -> list[Tensor]:
        """Views of the keys and values of the positions from ``first`` to ``last - 1`` of a sequence, in the blocks
        that attend to all positions: [elements, last - first]."""
        return [
            gg.view(
                tensor,
                tensor.ne[0],
                last - first,
                nb=(tensor.nb[1],),
                offset=(seq * (tensor.ne[1] // self.n_seq) + first) * tensor.nb[1],
            )
            for kind, block in zip(self.kinds, self.blocks, strict=True)
            for tensor in block
            if isinstance(kind, KeysValues) and kind.window == 0
        ]

    def states(self, seq: int) -> list[Tensor]:
        """Views of the states of one sequence, [elements, 1]."""
        return [
            gg.view(tensor, tensor.ne[0], 1, nb=(tensor.nb[1],), offset=seq * tensor.nb[1])
            for kind, block in zip(self.kinds, self.blocks, strict=True)
            for tensor in block
            if isinstance(kind, State)
        ]

    def free(self) -> None:
        """Releases the memory.  Raises BufferUseError while arrays share it."""
        for context in self._contexts.values():
            context.free()
