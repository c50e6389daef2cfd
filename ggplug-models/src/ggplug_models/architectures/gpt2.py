"""GPT-2 (Radford et al. 2019), and StarCoder 2 (arXiv:2402.19173)."""

from __future__ import annotations

from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.layers.feed_forward import plain
from ggplug_models.layers.linear import rows
from ggplug_models.layers.norms import LayerNorm
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block, Inputs
from ggplug_models.networks.transformer import Transformer


class _LayerNormed(Transformer, Decoder):
    """Layer norms, biases for all products, and a GELU network without a gate."""

    norm_kind = LayerNorm

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        return plain(block.weights, x, self.n_ff[block.number])


@architecture("gpt2")
class Gpt2(_LayerNormed):
    """GPT-2: learned position embeddings."""

    rope_mode = None

    @property
    def most_positions(self) -> int | None:
        """The number of rows of the position embeddings."""
        return self.n_ctx

    def embedding(self, inputs: Inputs) -> Tensor:
        self.w("position_embd.weight", self.n_embd, self.n_ctx)
        return super().embedding(inputs) + rows(self.w, "position_embd", self.n_embd, inputs.positions)


@architecture("starcoder2")
class StarCoder2(_LayerNormed):
    """StarCoder 2: RoPE; several query heads share keys and values."""

    rope_mode = RopeMode.NEOX
