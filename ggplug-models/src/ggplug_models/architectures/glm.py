"""GLM 3 and 4 (arXiv:2406.12793), GLM 4.5 (arXiv:2508.06471)."""

from __future__ import annotations

from dataclasses import replace

from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.layers.experts import Experts, Gating
from ggplug_models.layers.feed_forward import gated_together
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.networks.transformer import Transformer
from ggplug_models.weights.weights import Weights


@architecture("chatglm")
class ChatGlm(Transformer, Decoder):
    """GLM 3 and 4: part of a head is rotated, in adjacent pairs; ``ffn_up`` holds gate and up."""

    rope_mode = RopeMode.NORMAL

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        return gated_together(block.weights, x, self.n_ff[block.number])


@architecture("glm4")
class Glm4(ChatGlm):
    """GLM 4 of 2025: norms before and after attention and the feed-forward network.

    Files of models that also see (GLM 4.1V, 4.6V Flash, GLM-OCR) say which pairs belong to which part of a position;
    their rows are in the order of pairs that are halves apart.
    """

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        sections = hp.integers("rope.dimension_sections", None, length=4)
        if self.rope is not None and sections is not None and min(sections[:2]) > 0:
            self.rope = replace(self.rope, mode=RopeMode.NEOX)

    def block(self, x: Tensor, block: Block) -> Tensor:
        return self.sandwich(x, block)


@architecture("glm4moe")
class Glm4Moe(Transformer, Decoder):
    """GLM 4.5: experts with sigmoid scores, chosen by a bias, and shared ones; the first blocks have none."""

    needs = ("exp_probs_b.bias",)
    feed_forward_norm = "post_attention_norm"

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.experts = Experts.of(hp, gating=Gating.SIGMOID, normalized=False)

    def normed(self, q: Tensor, k: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
        if "attn_q_norm.weight" not in w:
            return q, k
        return self.norm(w, "attn_q_norm", q), self.norm(w, "attn_k_norm", k)
