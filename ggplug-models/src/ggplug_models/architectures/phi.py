"""Phi 2, 3 and 3.5 (Microsoft, 2023; arXiv:2404.14219)."""

from __future__ import annotations

from ggplug.tensor import Tensor
from ggplug_models.layers.experts import Experts
from ggplug_models.layers.feed_forward import gated_together, plain
from ggplug_models.layers.linear import LINEAR_BIASES
from ggplug_models.layers.norms import LayerNorm
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.networks.transformer import Transformer


@architecture("phi2")
class Phi2(Transformer, Decoder):
    """Phi 2: attention and network in parallel, after one layer norm; biases; a part of each head is rotated."""

    needs = ("attn_norm.bias", "output_norm.bias", *LINEAR_BIASES, "output.bias")
    norm_kind = LayerNorm

    def block(self, x: Tensor, block: Block) -> Tensor:
        h = self.norm(block.weights, "attn_norm", x)
        a, h, x = block.outputs(self.attention(h, block), h, x)
        return a + block.named("ffn_out", self.feed_forward(h, block)) + x

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        return plain(block.weights, x, self.n_ff[block.number])


@architecture("phi3")
class Phi3(Transformer, Decoder):
    """Phi 3: one matrix for queries, keys and values, one for gate and up; LongRoPE (arXiv:2402.13753).

    All blocks have the window of the file, which llama.cpp ignores.
    """

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide(hp, 0)

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        if self.experts is not None:
            return super().feed_forward(x, block)
        return gated_together(block.weights, x, self.n_ff[block.number])


@architecture("phimoe")
class PhiMoe(Phi3):
    """Phi 3.5 MoE: a matrix each for queries, keys and values; experts; biases.

    Norms are RMS norms with biases, as in llama.cpp; the authors' code has layer norms.
    """

    needs = ("attn_norm.bias", "attn_output.bias", "ffn_norm.bias", "output_norm.bias", "output.bias")

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.experts = Experts.needed(hp)
