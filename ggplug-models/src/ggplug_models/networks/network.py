"""What encoders and language models have in common: a table of embeddings, blocks, a norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from ggplug.backend import Device
from ggplug.tensor import Context, Tensor
from ggplug_models.layers.linear import rows
from ggplug_models.layers.norms import Norm, RmsNorm
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.model import Model
from ggplug_models.state.steps import Step
from ggplug_models.weights.weights import Weights

MOST_BLOCKS = 1 << 16

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]


class Inputs(Protocol):
    """What a graph is made over: tokens of a step of a language model, or whole texts."""

    @property
    def tokens(self) -> Tensor:
        """The ids, I32 [T]: sequences one after the other."""

    @property
    def positions(self) -> Tensor:
        """The positions, I32 [T]."""

    def outputs(self, x: Tensor) -> Tensor:
        """The columns of ``x`` whose results are wanted."""

    @property
    def attend(self) -> Callable[..., Tensor]:
        """``attend(number, q, k, v, scale=...)``: what queries of a block mix of values, [d_v n_head, T]."""

    @property
    def n_ctx(self) -> int:
        """Tokens that a sequence may have at most."""

    def of_positions(self, name: str, values: Callable[[Ints], Floats]) -> Tensor:
        """An input with a number for each token, F32 [1, 1, T]: ``values`` of the positions."""


@dataclass(frozen=True)
class Block:
    """A block of a model while a graph is made: its number, its weights, whether it is the last one, and the inputs."""

    number: int
    weights: Weights
    is_last: bool
    inputs: Inputs = field(repr=False)

    @property
    def positions(self) -> Tensor:
        """The positions of the tokens, I32 [T]."""
        return self.inputs.positions

    @property
    def step(self) -> Step:
        """The step of a language model that the graph is for: blocks with a state need it."""
        assert isinstance(self.inputs, Step)
        return self.inputs

    def outputs(self, *xs: Tensor) -> Iterator[Tensor]:
        """In the last block the columns whose results are wanted: what comes after attention needs no others."""
        return (self.inputs.outputs(x) if self.is_last else x for x in xs)

    def attend(self, q: Tensor, k: Tensor, v: Tensor | None, **how: Any) -> Tensor:
        """Attention of this block; see ``attend`` of the inputs."""
        return self.inputs.attend(self.number, q, k, v, **how)


class Network(Model):
    """A table of embeddings, blocks, and what comes behind them.

    A family says in :meth:`read` what it takes from the metadata, and in :meth:`block` what a block computes.
    """

    norm_kind: ClassVar[type[Norm]] = RmsNorm

    def __init__(self, weights: Context, metadata: Mapping[str, Any], devices: Sequence[Device]) -> None:
        super().__init__(weights, metadata, devices)
        self.read(self.hyperparameters)
        self.n_vocab = self.w("token_embd.weight", self.n_embd, -1).ne[1]
        self.sample()  # a file that lacks a tensor is refused now

    def read(self, hp: Hyperparameters) -> None:
        """Takes the numbers that the family needs; looks at no tensor.  Raises ModelError."""
        self.n_embd = hp.integer("embedding_length")
        self.n_layer = hp.integer("block_count", at_most=MOST_BLOCKS)
        self.n_ctx = hp.integer("context_length")
        self.norm = self.norm_kind.of(hp)

    def embedding(self, inputs: Inputs) -> Tensor:
        """What the first block gets: [n_embd, T]."""
        return rows(self.w, "token_embd", self.n_embd, inputs.tokens)

    def block(self, x: Tensor, block: Block) -> Tensor:
        """What a block makes of [n_embd, T]."""
        raise NotImplementedError

    def hidden(self, x: Tensor) -> Tensor:
        """What the model makes of the last block's result, the vectors of tokens: [n_embd, ...]."""
        return self.norm(self.w, "output_norm", x)

    def forward(self, inputs: Inputs) -> Tensor:
        """The last block's result, [n_embd, T], or the columns of it that are asked for."""
        x = self.embedding(inputs)
        for number in range(self.n_layer):
            x = self.block(x, Block(number, self.w.block(number), number == self.n_layer - 1, inputs))
        return inputs.outputs(x)
