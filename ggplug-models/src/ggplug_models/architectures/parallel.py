"""Models with attention and network in parallel: Command R and A (Cohere, 2024; arXiv:2504.00698), StableLM 2
(arXiv:2402.17834), Falcon (arXiv:2311.16867)."""

from __future__ import annotations

from typing import Any, ClassVar

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.layers.experts import Experts, Gating
from ggplug_models.layers.feed_forward import plain
from ggplug_models.layers.norms import LayerNorm, Norm, RmsNorm
from ggplug_models.layers.rope import Rope
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.networks.transformer import Transformer
from ggplug_models.weights.weights import Weights


class Parallel(Transformer, Decoder):
    """Attention and network read the same norm; larger models normalise heads, each with its own weights."""

    norm_kind: ClassVar[type[Norm]] = LayerNorm

    def block(self, x: Tensor, block: Block) -> Tensor:
        h = self.norm(block.weights, "attn_norm", x)
        a, h, x = block.outputs(self.attention(h, block), h, x)
        return x + a + block.named("ffn_out", self.feed_forward(h, block))

    def normed(self, q: Tensor, k: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
        if "attn_q_norm.weight" not in w:
            return q, k
        return self.norm(w, "attn_q_norm", q, *q.ne[:2]), self.norm(w, "attn_k_norm", k, *k.ne[:2])


@architecture("command-r")
class CommandR(Parallel):
    """Command R: logits are scaled; the table of embeddings is the output matrix."""

    rope_mode = RopeMode.NORMAL

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.logit_scale = hp.number("logit_scale", 0.0) or 1.0

    def scores(self, x: Tensor) -> Tensor:
        return gg.scale(super().scores(x), self.logit_scale)


@architecture("cohere2")
class Cohere2(CommandR):
    """Command A and R7B: three of four blocks have a window, and only these rotate."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide(hp, 4)

    def rope_of(self, block: Block) -> Rope | None:
        return self.rope if self.windows[block.number] else None


class _EitherNorm(LayerNorm):
    """A root mean square norm if the file has its epsilon, else a layer norm."""

    @classmethod
    def of(cls, hp: Hyperparameters) -> Any:
        return (RmsNorm if RmsNorm.key in hp else LayerNorm).of(hp)


@architecture("cohere2moe")
class Cohere2Moe(Cohere2):
    """Command A with experts (Cohere, 2026), of sigmoid scores; the first blocks have none, and rotate, too."""

    norm_kind = _EitherNorm

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide(hp, 4, first=True)
        self.experts = Experts.needed(hp, gating=Gating.SIGMOID, normalized=False)

    def rope_of(self, block: Block) -> Rope | None:
        assert self.experts is not None
        return self.rope if block.number < self.experts.n_dense else super().rope_of(block)

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        y = super().feed_forward(x, block)
        assert self.experts is not None
        halved = block.number >= self.experts.n_dense and self.experts.n_ff_shared
        return gg.scale(y, 0.5) if halved else y


@architecture("falcon")
class Falcon(Parallel):
    """Falcon: a network without a gate; in larger models, attention has a norm of its own."""

    needs = ("attn_norm.bias", "output_norm.bias")

    def block(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        h = self.norm(w, "attn_norm", x)
        of_attention = self.norm(w, "attn_norm_2", x) if "attn_norm_2.weight" in w else h
        a, h, x = block.outputs(self.attention(of_attention, block), h, x)
        return x + a + block.named("ffn_out", self.feed_forward(h, block))

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        return plain(block.weights, x, self.n_ff[block.number])


@architecture("stablelm")
class StableLm(Parallel):
    """StableLM 2: parallel only in the largest models; in files with a second norm, the network follows attention."""

    needs = ("attn_norm.bias", "output_norm.bias")

    def block(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        if "ffn_norm.weight" not in w:
            return super().block(x, block)
        a, x = block.outputs(self.attention(self.norm(w, "attn_norm", x), block), x)
        x = block.named("ffn_inp", x + a)
        return x + block.named("ffn_out", self.feed_forward(self.norm(w, "ffn_norm", x), block))
