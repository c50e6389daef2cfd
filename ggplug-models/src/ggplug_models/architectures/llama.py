"""LLaMA 1 to 3 (arXiv:2302.13971, arXiv:2407.21783), Mistral (arXiv:2310.06825), Mixtral (arXiv:2401.04088)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.layers.rope import Rope
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.networks.transformer import Transformer


@architecture("llama")
class Llama(Transformer, Decoder):
    """LLaMA; its files have rows of queries and keys in an order for RoPE of adjacent pairs."""

    rope_mode = RopeMode.NORMAL

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.scale = hp.number("attention.scale", 0.0, at_least=0) or self.scale


@architecture("mistral3")
class Mistral3(Llama):
    """Ministral 3: queries grow with the logarithm of the position in units of the original context length."""

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


@architecture("smollm3")
class SmolLm3(Llama):
    """SmolLM3: every fourth block has no RoPE (arXiv:2501.18795)."""

    def rope_of(self, block: Block) -> Rope | None:
        return None if block.number % 4 == 3 else self.rope
