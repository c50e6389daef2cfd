"""The inputs of a language model's graph over whole texts, without a cache, so that gradients can be computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

import ggplug as gg
from ggplug.errors import ModelError
from ggplug.gradients.rules import packed
from ggplug.tensor import Tensor
from ggplug.types import Type
from ggplug_models.layers.attention import by_sequence, mixed, mixed_as_one, of_heads
from ggplug_models.state.memory import KeysValues, Memory
from ggplug_models.state.steps import Outputs, Shape, Step, Tokens, Values

if TYPE_CHECKING:
    from ggplug_models.networks.decoder import Decoder


class WholeTexts(Step):
    """A step over whole texts: each begins at position 0, and tokens attend to earlier ones of the same text.

    ``ids``: I32 [n, texts], the tokens.  All inputs but these are constants of the graph.  Recurrent states are zero at
    the beginning, and forgotten at the end.
    """

    def __init__(self, model: Decoder, ids: Tensor) -> None:
        n, n_seq = ids.ne[:2]
        cells = model.cells(n_seq, n, n)
        memory = Memory(model.kinds, None, n_seq, {window: each.count for window, each in cells.items()}, gg.F32)
        super().__init__(Shape(0, n_seq, n, (), Outputs.ALL), memory, cells, n)
        self._ids = ids
        positions = np.tile(np.arange(n), (n_seq, 1))
        self._places = Tokens(np.zeros_like(positions), positions, np.full(n_seq, n))
        self._constants: dict[str, Tensor] = {}
        self._held: dict[int, tuple[Tensor, Tensor]] = {}

    def input(self, name: str, type: Type, ne: Sequence[int], values: Values) -> Tensor:
        if name not in self._constants:
            computed = np.broadcast_to(np.asarray(values(self._places), type.dtype), tuple(ne)[::-1])
            self._constants[name] = gg.tensor(computed, type, name=name)
        return self._constants[name]

    def whole_numbers(self, name: str, count: int, values: Values) -> Tensor:
        return self.input(name, gg.I32, (count,), values)

    @property
    def tokens(self) -> Tensor:
        return gg.reshape(self._ids, self.n_tokens)

    def attend(
        self,
        number: int,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        *,
        scale: float,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
        max_bias: float = 0.0,
        d_v: int = 0,
        of: int = 0,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
        further: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        kind = self.memory.kinds[of if k is None else number]
        assert isinstance(kind, KeysValues)
        if k is not None:
            self._held[number] = packed(k), packed(of_heads(k, 0, d_v) if v is None else v)
        q, (keys, values) = packed(q), self._held[of if k is None else number]  # gradients of views need it
        mask = self._mask_of(kind.window, distances=max_bias > 0)
        if softcap or sinks is not None:
            keys, values = (by_sequence(each, self.shape.n_seq) for each in (keys, values))
            mask = gg.cast(mask, gg.F16)
            return mixed_as_one(q, keys, values, mask, scale=scale, softcap=softcap, sinks=sinks, max_bias=max_bias)
        # The gradients of products take a fraction of the time of those of the single op.
        return mixed(q, keys, values, mask, scale=scale, n_seq=self.shape.n_seq, max_bias=max_bias, bias=bias)

    def _mask_of(self, window: int, *, distances: bool) -> Tensor:
        """The mask of all texts, F32 [n, n]: 0, or with ``distances`` that of ALiBi, where a token attends."""
        n = self.shape.n
        apart = np.arange(n) - np.arange(n)[:, np.newaxis]
        seen = (apart <= 0) & ((apart > -window) if window else True)
        values = np.where(seen, apart if distances else 0, -np.inf)
        return self.input(f"mask {window}", gg.F32, (n, n), lambda _: values)

    def stored(self, number: int, *columns: Tensor) -> list[Tensor]:
        """Raises ModelError: there is no cache, from which some families choose or compute keys."""
        raise ModelError(
            "models that choose or compress the keys that a token attends to cannot be trained",
            got=self.memory.kinds[number],
            remedy="train a model of another family, or with texts that are short enough for it to see all keys",
        )

    def state(self, number: int) -> list[Tensor]:
        """The parts of the state of a block at the beginning: zeros."""
        return [
            self.input(f"state {each.ne[0]}", gg.F32, (each.ne[0], self.shape.n_seq), lambda _: 0.0)
            for each in self.memory.blocks[number]
        ]

    def remember(self, number: int, *parts: Tensor) -> None:
        """Nothing: no text follows."""
