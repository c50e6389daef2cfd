"""MiMo V2 (Xiaomi, arXiv:2601.02780)."""

from __future__ import annotations

from dataclasses import replace

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.layers.attention import Heads
from ggplug_models.layers.experts import Experts, Gating
from ggplug_models.layers.feed_forward import gated
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.networks.transformer import Transformer
from ggplug_models.weights.weights import Weights


@architecture("mimo2")
class MiMo2(Transformer, Decoder):
    """MiMo V2: most blocks have a window, attention sinks, and more heads of keys; a factor of what attention gives;
    experts with sigmoid scores, chosen by a bias, in some blocks."""

    varies = ("attn_sinks.weight", "ffn_gate_inp.weight")

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        assert self.rope is not None
        self.slide_with_rope(hp, 6, replace(self.rope, base=10000.0))
        self.value_scale = hp.number("attention.value_scale", 0.0) or 1.0
        self.experts = Experts.of(hp, gating=Gating.SIGMOID)

    def sinks(self, w: Weights, heads: Heads) -> Tensor | None:
        return w.optional("attn_sinks.weight", heads.n_head)

    def attention(self, x: Tensor, block: Block) -> Tensor:
        return gg.scale(super().attention(x, block), self.value_scale)

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        if "ffn_gate_inp.weight" in block.weights:
            return super().feed_forward(x, block)
        return gated(block.weights, x, self.n_ff[block.number])
