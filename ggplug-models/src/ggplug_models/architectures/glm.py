"""GLM-4 of 2025 (arXiv:2406.12793)."""

from __future__ import annotations

from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.layers.feed_forward import gated_together
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.networks.transformer import Transformer


@architecture("glm4")
class Glm4(Transformer, Decoder):
    """Norms before and after attention and the feed-forward network; part of a head is rotated, in adjacent pairs."""

    rope_mode = RopeMode.NORMAL

    def block(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        a, x = block.outputs(self.attention(self.norm(w, "attn_norm", x), block), x)
        x = block.named("ffn_inp", x + self.norm(w, "post_attention_norm", a))
        y = block.named("ffn_out", gated_together(w, self.norm(w, "ffn_norm", x), self.n_ff[block.number]))
        return x + self.norm(w, "post_ffw_norm", y)
