"""LLaMA 1 to 3 (arXiv:2302.13971, arXiv:2407.21783), Mistral (arXiv:2310.06825), Mixtral (arXiv:2401.04088), and
families with the same block."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.layers.feed_forward import plain, relu_squared
from ggplug_models.layers.linear import LINEAR_BIASES
from ggplug_models.layers.norms import NORM_BIASES, LayerNorm
from ggplug_models.layers.rope import Rope
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.networks.transformer import Transformer


@architecture("llama")
class Llama(Transformer, Decoder):
    """LLaMA; its files have rows of queries and keys in an order for RoPE of adjacent pairs.

    All blocks have the window of the file, if it has one: Mistral's, which llama.cpp ignores.
    """

    rope_mode: ClassVar[RopeMode | None] = RopeMode.NORMAL

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide(hp, 0)
        self.scale = hp.number("attention.scale", 0.0, at_least=0) or self.scale


class GrowingQueries(Transformer):
    """Queries grow with the logarithm of the position in units of the original context length, if the file says so."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.growth = hp.number("attention.temperature_scale", 0.0)
        self.stretch = self.rope.n_ctx_orig if self.rope is not None else 0
        if self.growth and not self.stretch:
            raise hp.refused("rope.scaling.original_context_length", "an integer of at least 1")

    def queries(self, q: Tensor, block: Block) -> Tensor:
        if not self.growth:
            return q

        def grown(positions: npt.NDArray[np.int64]) -> npt.NDArray[np.floating]:
            return np.asarray(np.log(positions // self.stretch + 1.0) * self.growth + 1)

        return q * block.inputs.of_positions("growth of queries", grown)


@architecture("mistral3")
class Mistral3(GrowingQueries, Llama):
    """Ministral 3: queries grow with the position."""


@architecture("smollm3")
class SmolLm3(Llama):
    """SmolLM3: every fourth block has no RoPE (arXiv:2501.18795)."""

    def rope_of(self, block: Block) -> Rope | None:
        return None if block.number % 4 == 3 else self.rope


@architecture("internlm2")
class InternLm2(Llama):
    """InternLM 2 (arXiv:2403.17297): LLaMA's block."""


@architecture("xverse")
class Xverse(Llama):
    """XVERSE (2023): LLaMA's block."""


@architecture("ernie4_5")
class Ernie45(Llama):
    """ERNIE 4.5 (Baidu, 2025): LLaMA's block; published models rotate adjacent pairs, too."""


@architecture("ernie4_5-moe")
class Ernie45Moe(Ernie45):
    """ERNIE 4.5 with experts, which may be chosen by a bias, and a shared expert; the first blocks have none."""


@architecture("seed_oss")
class SeedOss(Llama):
    """Seed-OSS (ByteDance, 2025): biases of queries, keys and values."""

    rope_mode = RopeMode.NEOX
    feed_forward_norm = "post_attention_norm"


@architecture("arcee")
class Arcee(Llama):
    """Arcee (AFM, 2025): a network with squared ReLU and without a gate."""

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        return plain(block.weights, x, self.n_ff[block.number], relu_squared)


@architecture("orion")
class Orion(Llama):
    """Orion (arXiv:2401.12246): layer norms with biases."""

    needs: ClassVar[Collection[str]] = NORM_BIASES
    rope_mode = RopeMode.NEOX
    norm_kind = LayerNorm


@architecture("nemotron")
class Nemotron(Orion):
    """Nemotron 4 (arXiv:2402.16819): layer norms, a part of each head is rotated, squared ReLU without a gate."""

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        return plain(block.weights, x, self.n_ff[block.number], relu_squared)


@architecture("jais2")
class Jais2(Nemotron):
    """Jais 2 (Inception, 2025): biases everywhere, whole heads rotated."""

    needs = (*NORM_BIASES, *LINEAR_BIASES)
