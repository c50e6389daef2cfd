"""OLMo 1 to 3 (arXiv:2402.00838, arXiv:2501.00656, arXiv:2512.13961), OLMoE (arXiv:2409.02060), MiniMax M2."""

from __future__ import annotations

from dataclasses import replace

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.architectures.llama import Llama
from ggplug_models.layers.attention import joined
from ggplug_models.layers.experts import Experts, Gating
from ggplug_models.layers.norms import LayerNorm
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.networks.transformer import Transformer
from ggplug_models.weights.weights import Weights


class _BareNorm(LayerNorm):
    """Layer norm without weights."""

    def __call__(self, weights: Weights, name: str, x: Tensor, *ne: int) -> Tensor:
        return weights.named(name, gg.norm(x, eps=self.eps))


@architecture("olmo")
class Olmo(Llama):
    """OLMo: norms without weights; queries, keys and values may be clamped."""

    norm_kind = _BareNorm


class _NormedWidth(Transformer, Decoder):
    """Queries and keys are normalised before the rotation, all heads of a token together."""

    def normed(self, q: Tensor, k: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
        return self._normed(q, w, "attn_q_norm"), self._normed(k, w, "attn_k_norm")

    def _normed(self, x: Tensor, w: Weights, name: str) -> Tensor:
        flat = joined(x)
        return gg.reshape(self.norm(w, name, flat), *x.ne[:3])


@architecture("olmo2")
class Olmo2(_NormedWidth):
    """OLMo 2 and 3: norms after attention and the feed-forward network, none before.

    In OLMo 3, three of four blocks have a window, and RoPE without scaling, whose base may be another one.
    """

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        assert self.rope is not None
        self.slide_with_rope(hp, 4, replace(self.rope, scale=1.0, extrapolation=0.0, magnitude=1.0))

    def block(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        a, x = block.outputs(self.attention(x, block), x)
        x = block.named("ffn_inp", x + self.norm(w, "post_attention_norm", a))
        return x + self.norm(w, "post_ffw_norm", block.named("ffn_out", self.feed_forward(x, block)))


@architecture("olmoe")
class Olmoe(_NormedWidth):
    """OLMoE: many small experts; their weights are not normalised."""

    normalized_experts = False


@architecture("minimax-m2")
class MiniMaxM2(_NormedWidth):
    """MiniMax M2 (2025): experts with sigmoid scores, chosen by a bias; a part of each head is rotated."""

    needs = ("exp_probs_b.bias",)

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.experts = Experts.of(hp, gating=Gating.SIGMOID)
