"""Gemma 1 to 3 (arXiv:2403.08295, arXiv:2408.00118, arXiv:2503.19786); in files, 1 is added to the norms' weights."""

from __future__ import annotations

from dataclasses import replace

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.layers.linear import capped, linear
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.encoder import Encoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block, Inputs
from ggplug_models.networks.transformer import Transformer
from ggplug_models.weights.weights import Weights


class _Gemma(Transformer):
    """Embeddings multiplied by the square root of their width, and GELU gates."""

    def embedding(self, inputs: Inputs) -> Tensor:
        return gg.scale(super().embedding(inputs), self.n_embd**0.5)

    def gate(self, x: Tensor, up: Tensor) -> Tensor:
        return gg.geglu(x, up)


class _Sandwich(_Gemma):
    """Norms before and after attention and the feed-forward network; blocks with a window have another RoPE base."""

    def block(self, x: Tensor, block: Block) -> Tensor:
        return self.sandwich(x, block)


class NormedHeads(_Sandwich):
    """Heads of queries and keys are normalised before the rotation; blocks with a window do not scale positions."""

    def normed(self, q: Tensor, k: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
        return self.norm(w, "attn_q_norm", q), self.norm(w, "attn_k_norm", k)

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        assert self.rope is not None
        self.slide_with_rope(hp, 6, replace(self.rope, base=10000.0, scale=1.0))


class Capped(_Sandwich, Decoder):
    """Logits are soft-capped if the file has a cap."""

    largest: int
    """Number of blocks of the largest model, whose queries are scaled by n_embd / n_head instead of d_k."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.logit_cap = hp.number("final_logit_softcapping", 0.0, at_least=0)
        if self.n_layer == self.largest:
            self.scale = (self.n_embd // self.heads[0].n_head) ** -0.5

    def scores(self, x: Tensor) -> Tensor:
        y = super().scores(x)
        return capped(y, self.logit_cap)


@architecture("gemma")
class Gemma(_Gemma, Decoder):
    """Gemma 1: LLaMA's block."""


@architecture("gemma2")
class Gemma2(Capped):
    """Gemma 2: every second block has a window; the logits of attention and of tokens are soft-capped."""

    largest = 46

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide_with_rope(hp, 2, default=4096)
        self.softcap = hp.number("attn_logit_softcapping", 50.0, at_least=0)
        self.logit_cap = hp.number("final_logit_softcapping", 30.0, at_least=0)


@architecture("gemma3")
class Gemma3(NormedHeads, Capped):
    """Gemma 3: five blocks with a window are followed by one without."""

    largest = 62


@architecture("gemma-embedding")
class GemmaEmbedding(NormedHeads, Encoder):
    """EmbeddingGemma: windows in both directions; two linear layers may follow the pooling (arXiv:2509.20354)."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        keys = ("dense_2_feat_out", "dense_3_feat_out")
        self.dense = [hp.integer(key, 0, at_least=0) for key in keys]
        last = max((number for number, n in enumerate(self.dense) if n), default=None)
        if last is not None and self.dense[last] != self.n_embd:
            raise hp.refused(keys[last], f"the length of the model's vectors ({self.n_embd})")

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(self.w, "output_norm", x)

    def pooled(self, x: Tensor) -> Tensor:
        for name, n_out in zip(("dense_2", "dense_3"), self.dense, strict=True):
            x = linear(self.w, name, x, n_out) if f"{name}.weight" in self.w else x
        return x
