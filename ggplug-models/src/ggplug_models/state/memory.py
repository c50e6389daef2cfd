"""What blocks remember, and the tensors that hold it, on the device where the block is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import ggplug as gg
from ggplug.backend import Device
from ggplug.errors import ParameterError
from ggplug.memory import allocate
from ggplug.tensor import Context, Tensor
from ggplug.types import Type
from ggplug_models.checks.arguments import LARGEST


@dataclass(frozen=True)
class KeysValues:
    """A block that attends: numbers of the keys and of the values of a token, in heads of ``head`` at least.

    ``window``: positions back that it sees, with its own; 0: all.  ``values`` 0: the values are a part of the keys.
    """

    keys: int
    values: int
    head: int
    window: int = 0


@dataclass(frozen=True)
class State:
    """A block whose memory has one size, whatever the number of tokens: numbers of each of its parts."""

    parts: tuple[int, ...]


Kind: TypeAlias = KeysValues | State | None
"""What a block remembers; None: nothing."""


class Memory:
    """The tensors of a model's blocks for ``n_seq`` sequences.

    ``blocks``: of each block a tuple of tensors: keys and values [numbers, n_cells n_seq], of a type that may be
    quantised, or the parts of a state, F32 [numbers, n_seq].  ``devices``: of each block, where its tensors lie; None
    makes tensors without a place, for graphs that are not computed.  Owns its memory: :meth:`free`.

    Raises ParameterError for a type that does not fit the heads, OutOfMemoryError.
    """

    def __init__(
        self, kinds: Sequence[Kind], devices: Sequence[Device] | None, n_seq: int, cells: Mapping[int, int], type: Type
    ) -> None:
        self.kinds = tuple(kinds)
        self.n_seq = n_seq
        self.type = type
        self.blocks: list[tuple[Tensor, ...]] = []
        self._contexts: dict[Device | None, Context] = {}
        try:
            for number, kind in enumerate(kinds):
                device = None if devices is None else devices[number]
                context = self._contexts.setdefault(device, Context("cache"))
                self.blocks.append(self._block(context, number, kind, cells))
            for device, context in self._contexts.items():
                if device is not None:
                    allocate(context, device)
            # Attention reads cells that no token was written to and hides them; what memory held before may be NaN,
            # which takes another way through its kernels that rounds otherwise.
            for tensor in (tensor for block in self.blocks for tensor in block) if devices is not None else ():
                tensor.set_zero()
        except BaseException:
            self.free()
            raise

    def _block(self, context: Context, number: int, kind: Kind, cells: Mapping[int, int]) -> tuple[Tensor, ...]:
        if isinstance(kind, KeysValues):
            if kind.head % self.type.block_size:
                raise ParameterError(
                    f"heads of {kind.head} numbers are no whole blocks of {self.type.name}",
                    got=self.type,
                    wanted=self.type.block_size,
                    remedy="take another cache type, such as f16",
                )
            rows = cells[kind.window] * self.n_seq
            if rows > LARGEST:
                raise ParameterError(
                    f"{self.n_seq} sequences of {cells[kind.window]} cells are more than {LARGEST} rows",
                    got=rows,
                    wanted=LARGEST,
                    remedy="take a smaller n_ctx or n_seq",
                )
            widths = {"k": kind.keys, "v": kind.values}
            return tuple(
                context.new_tensor(self.type, (width, rows), f"cache.{number}.{name}")
                for name, width in widths.items()
                if width
            )
        parts = kind.parts if kind else ()
        return tuple(
            context.new_tensor(gg.F32, (size, self.n_seq), f"state.{number}.{part}") for part, size in enumerate(parts)
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(context.nbytes for context in self._contexts.values())

    def of_sequence(self, seq: int) -> list[Tensor]:
        """Views of what belongs to one sequence: [numbers, cells], or of a state [numbers, 1]."""
        views = []
        for tensor in (tensor for block in self.blocks for tensor in block):
            cells = tensor.ne[1] // self.n_seq
            views.append(gg.view(tensor, tensor.ne[0], cells, nb=(tensor.nb[1],), offset=seq * cells * tensor.nb[1]))
        return views

    def states(self, seq: int) -> list[Tensor]:
        """Views of the states of one sequence, [numbers, 1]."""
        return [
            gg.view(tensor, tensor.ne[0], 1, nb=(tensor.nb[1],), offset=seq * tensor.nb[1])
            for kind, block in zip(self.kinds, self.blocks, strict=True)
            for tensor in block
            if isinstance(kind, State)
        ]

    def free(self) -> None:
        """Gives the memory back; raises BufferUseError while arrays share it."""
        for context in self._contexts.values():
            context.free()
