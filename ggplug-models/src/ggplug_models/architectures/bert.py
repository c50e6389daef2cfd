"""BERT (arXiv:1810.04805) and encoders that are derived from it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import ClassVar

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.embedding.pooling import Pooling
from ggplug_models.layers.attention import joined
from ggplug_models.layers.feed_forward import gated, gated_together, plain
from ggplug_models.layers.linear import rows
from ggplug_models.layers.norms import LayerNorm
from ggplug_models.layers.rope import frequency_base
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.encoder import Encoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block, Inputs
from ggplug_models.networks.ranking import Floats, gelu
from ggplug_models.networks.transformer import Transformer
from ggplug_models.weights.weights import Weights

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gg.gelu_erf,
    "gelu_new": gg.gelu,
    "gelu_pytorch_tanh": gg.gelu,
    "relu": gg.relu,
    "silu": gg.silu,
}
"""Activations by their Hugging Face names; "gelu" is the erf form."""

GATES: dict[str, Callable[..., Tensor]] = {
    "gelu": gg.geglu,
    "gelu_pytorch_tanh": gg.geglu,
    "silu": gg.swiglu,
    "relu": gg.reglu,
}
"""Gates of ModernBERT by the same names; as in llama.cpp, "gelu" is the tanh form."""


OF_NORMS = ("token_embd_norm.bias", "attn_output_norm.bias", "layer_output_norm.bias")
"""The biases that all encoders with norms after the residual connections have."""


class PostNorm(Transformer, Encoder):
    """Encoders with norms after the residual connections, and normalised embeddings."""

    needs: ClassVar[Collection[str]] = OF_NORMS
    norm_kind = LayerNorm
    rope_mode: ClassVar[RopeMode | None] = None

    def embedding(self, inputs: Inputs) -> Tensor:
        x = super().embedding(inputs)
        if "token_types.weight" in self.w:
            x = x + gg.view(self.w("token_types.weight", self.n_embd, -1), self.n_embd)  # all tokens have the type 0
        return self.norm(self.w, "token_embd_norm", self.placed(x, inputs))

    def placed(self, x: Tensor, inputs: Inputs) -> Tensor:
        """Hook for families with position embeddings; returns the embeddings with these added."""
        return x

    def block(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        x = self.norm(w, "attn_output_norm", block.named("ffn_inp", self.attention(x, block) + x))
        return self.norm(w, "layer_output_norm", block.named("ffn_out", self.feed_forward(x, block)) + x)


@architecture("bert")
class Bert(PostNorm):
    """BERT: learned positions.  Files of llama.cpp do not name the activation, which then is the tanh form of GELU."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.activation = ACTIVATIONS[hp.text("hidden_activation", "gelu_pytorch_tanh", one_of=ACTIVATIONS)]

    def placed(self, x: Tensor, inputs: Inputs) -> Tensor:
        self.w("position_embd.weight", self.n_embd, self.n_ctx)
        return x + rows(self.w, "position_embd", self.n_embd, inputs.positions)

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        return plain(block.weights, x, self.n_ff[block.number], self.activation)


@architecture("nomic-bert")
class NomicBert(PostNorm):
    """nomic-embed: RoPE, and a gated network (arXiv:2402.01613)."""

    rope_mode = RopeMode.NEOX


@architecture("jina-bert-v3")
class JinaBertV3(NomicBert):
    """jina-embeddings-v3 (arXiv:2409.10173): RoPE, and a network without a gate."""

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        return plain(block.weights, x, self.n_ff[block.number])


@architecture("nomic-bert-moe")
class NomicBertMoe(JinaBertV3):
    """nomic-embed v2 (arXiv:2502.07972): experts in every n-th block."""

    normalized_experts = False

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.every = hp.integer("moe_every_n_layers", 0, at_least=0)
        self.experts = self.experts and replace(self.experts, activation=gg.gelu)

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        if self.experts is not None and self.every and block.number % self.every == 1 % self.every:
            return self.experts(block.weights, x)
        return super().feed_forward(x, block)


@architecture("jina-bert-v2")
class JinaBertV2(PostNorm):
    """jina-embeddings-v2 (arXiv:2310.19923): ALiBi in both directions; queries and keys may be normalised."""

    needs = (*OF_NORMS, "token_types.weight", "attn_output.bias", "ffn_down.bias")

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.max_bias = 8.0

    def normed(self, q: Tensor, k: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
        return self._normed(q, w, "attn_q_norm"), self._normed(k, w, "attn_k_norm")

    def _normed(self, x: Tensor, w: Weights, name: str) -> Tensor:
        return gg.reshape(self.norm(w, name, joined(x)), *x.ne[:3]) if f"{name}.weight" in w else x

    def block(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        a = self.norm(w, "attn_output_norm", block.named("ffn_inp", self.attention(x, block) + x))
        if "attn_norm_2.weight" in w:
            a = self.norm(w, "attn_norm_2", a + x)
        return self.norm(w, "layer_output_norm", block.named("ffn_out", self.feed_forward(a, block)) + a)

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        w, n_ff = block.weights, self.n_ff[block.number]
        if "ffn_gate.weight" in w:
            return gated(w, x, n_ff, gg.geglu)
        up = w("ffn_up.weight", self.n_embd, -1)
        return gated_together(w, x, n_ff, gg.geglu) if up.ne[1] == 2 * n_ff else plain(w, x, n_ff)


@architecture("modern-bert")
class ModernBert(Transformer, Encoder):
    """ModernBERT: norms before attention and network, except the first attention; two of three blocks have a window
    (arXiv:2412.13663)."""

    norm_kind = LayerNorm
    CLASSIFIED = Pooling.MEAN

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide(hp, 3, first=True)
        self.act = GATES[hp.text("hidden_activation", "gelu", one_of=GATES)]
        assert self.rope is not None
        self.local_rope = replace(self.rope, base=frequency_base(hp, "rope.freq_base_swa", 10000.0), scale=1.0)

    def classifier_activation(self, x: Floats) -> Floats:
        return gelu(x)

    def embedding(self, inputs: Inputs) -> Tensor:
        return self.norm(self.w, "token_embd_norm", super().embedding(inputs))

    def block(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        h = x if block.number == 0 and "attn_norm.weight" not in w else self.norm(w, "attn_norm", x)
        x = block.named("ffn_inp", x + self.attention(h, block))
        y = gated_together(w, self.norm(w, "ffn_norm", x), self.n_ff[block.number], self.act)
        return x + block.named("ffn_out", y)

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(self.w, "output_norm", x)


@architecture("eurobert")
class EuroBert(Transformer, Encoder):
    """EuroBERT (arXiv:2503.05500): LLaMA's block with attention in both directions."""

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(self.w, "output_norm", x)


@architecture("llama-embed")
class LlamaEmbed(EuroBert):
    """LLaMA's block with attention in both directions (llama-embed-nemotron, arXiv:2511.07025)."""

    rope_mode = RopeMode.NORMAL


@architecture("neo-bert")
class NeoBert(LlamaEmbed):
    """NeoBERT (arXiv:2502.19587): fused queries, keys and values; fused gate and up."""

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        return gated_together(block.weights, x, self.n_ff[block.number])

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(self.w, "enc.output_norm", x)
