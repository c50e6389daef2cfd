"""Families of 2026 with the block of Qwen 3 or LLaMA, of which most blocks have a sliding window."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.architectures.llama import Llama
from ggplug_models.architectures.qwen import Qwen3
from ggplug_models.layers.attention import joined, split
from ggplug_models.layers.experts import Experts, Gating
from ggplug_models.layers.feed_forward import gated
from ggplug_models.layers.linear import capped, linear
from ggplug_models.layers.norms import RmsNorm
from ggplug_models.layers.rope import Rope
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block, Inputs
from ggplug_models.networks.transformer import Transformer


class GatedHeads(Transformer):
    """What heads give is multiplied by gates of the block's input: one for each head, or for each element."""

    def joined_heads(self, y: Tensor, block: Block, x: Tensor) -> Tensor:
        n_head = self.heads[block.number].n_head
        width = block.weights("attn_gate.weight", self.n_embd, -1).ne[1]
        gate = self.gate_of_heads(linear(block.weights, "attn_gate", x, n_head if width == n_head else y.ne[0]))
        return joined(split(y, n_head) * split(gate, n_head))

    def gate_of_heads(self, x: Tensor) -> Tensor:
        """The activation of the gates."""
        return gg.sigmoid(x)


class RotatedInWindows(Transformer):
    """Only blocks with a window rotate."""

    def rope_of(self, block: Block) -> Rope | None:
        return self.local_rope if self.windows[block.number] else None


@architecture("mellum")
class Mellum(Qwen3):
    """Mellum 2 (JetBrains): experts; three of four blocks have a window, and no scaling of RoPE.

    Blocks with a window have the base of the others, whatever ``rope.freq_base_swa`` says, as in llama.cpp.
    """

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        if hp.integer("attention.sliding_window", 0, at_least=0):
            self.slide(hp, 4)
        assert self.rope is not None
        self.local_rope = Rope(self.rope.mode, self.rope.n_dims, self.rope.base)


@architecture("maple")
class Maple(RotatedInWindows, Qwen3):
    """Maple: experts with clipped gates; only blocks with a window rotate."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide_with_rope(hp, 0)
        self.experts = Experts.needed(hp)
        self.limits = hp.numbers_of_blocks("swiglu_clamp_exp", len(self.windows), at_least=0)

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        assert self.experts is not None
        limit = self.limits[block.number]
        return self.experts(block.weights, x, partial(gg.swiglu_clamp, limit=limit) if limit else gg.swiglu)


@architecture("spark2_5")
class Spark25(GatedHeads, Llama):
    """Spark 2.5 (iFlytek): a gate for each head; GELU in the network."""

    rope_mode = RopeMode.NEOX

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide_with_rope(hp, 0)

    def gate(self, x: Tensor, up: Tensor) -> Tensor:
        return gg.geglu(x, up)


@architecture("muse-glimmer")
class MuseGlimmer(GatedHeads, RotatedInWindows, Qwen3):
    """Muse Glimmer: normalised embeddings; only blocks with a window rotate; gates of attention; norms before and
    after."""

    rope_mode = RopeMode.NORMAL

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide_with_rope(hp, 4)
        self.norm_behind = RmsNorm(1e-8)
        self.logit_scale = hp.number("logit_scale")
        self.logit_cap = hp.number("final_logit_softcapping", 0.0, at_least=0)

    def embedding(self, inputs: Inputs) -> Tensor:
        return gg.rms_norm(super().embedding(inputs), eps=self.norm.eps)

    def block(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        a, x = block.outputs(self.attention(self.norm(w, "attn_norm", x), block), x)
        x = block.named("ffn_inp", x + self.norm_behind(w, "post_attention_norm", a))
        y = block.named("ffn_out", self.feed_forward(self.norm(w, "ffn_norm", x), block))
        return x + self.norm_behind(w, "post_ffw_norm", y)

    def scores(self, x: Tensor) -> Tensor:
        y = gg.scale(super().scores(x), self.logit_scale)
        return capped(y, self.logit_cap)


@architecture("laguna")
class Laguna(GatedHeads, Qwen3):
    """Laguna (Poolside): softplus gates of attention; experts with sigmoid scores, chosen by a bias, and a shared one;
    blocks with a window may have other numbers of heads and rotate without scaling."""

    needs = ("exp_probs_b.bias",)

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        assert self.rope is not None
        if hp.integer("attention.sliding_window", 0, at_least=0):
            n_dims = hp.integer("rope.dimension_count_swa", self.rope.n_dims, at_most=self.heads[0].d_k)
            self.slide_with_rope(hp, 4, Rope(self.rope.mode, n_dims, self.rope.base), first=True)
        self.experts = Experts.needed(hp, gating=Gating.SIGMOID, normalized=False)

    def gate_of_heads(self, x: Tensor) -> Tensor:
        return gg.softplus(x)


@architecture("step35")
class Step35(GatedHeads, Qwen3):
    """Step 3.5 (StepFun, 2026): a gate for each head; listed blocks have a window, may have other numbers of heads, and
    rotate whole heads, where others rotate half of them; experts with sigmoid scores, chosen by a bias, and a shared
    one; activations are clipped after SiLU."""

    varies = ("ffn_gate_inp.weight",)
    guesses = False

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        hp.text("rope.scaling.type", "none", one_of=("none", "linear", "yarn"))
        whole = self.rope
        assert whole is not None
        if whole.n_dims % 4:
            raise hp.refused("rope.dimension_count", "a multiple of 4")
        self.rope = replace(whole, n_dims=whole.n_dims // 2)
        n_dims = hp.integer("rope.dimension_count_swa", whole.n_dims, at_most=self.heads[0].d_k)
        self.slide_with_rope(hp, 0, replace(whole, n_dims=n_dims, scale=1.0))
        self.experts = Experts.needed(hp, gating=Gating.SIGMOID, normalized=False)
        count, keys = len(self.windows), ("swiglu_clamp_exp", "swiglu_clamp_shexp")
        of_keys = [hp.numbers_of_blocks(key, count, at_least=0) if key in hp else [0.0] * count for key in keys]
        self.limits = list(zip(*of_keys, strict=True))

    def rope_factors(self, block: Block) -> Tensor | None:
        if self.windows[block.number] or "rope_freqs.weight" not in self.w:
            return None
        assert self.rope is not None
        assert self.local_rope is not None
        widest = self.local_rope if any(self.windows[: self.n_layer]) else self.rope
        return self.w("rope_freqs.weight", widest.n_dims // 2)

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        w, experts = block.weights, self.experts
        assert experts is not None
        own, shared = (partial(_clipped, limit=each) if each else gg.swiglu for each in self.limits[block.number])
        if "ffn_gate_inp.weight" not in w:
            return gated(w, x, self.n_ff[block.number], shared)
        y = experts.chosen(w, x, own, x)
        return y + experts.shared(w, x, shared) if experts.n_ff_shared else y


def _clipped(x: Tensor, up: Tensor, limit: float) -> Tensor:
    """As gg.swiglu, with SiLU at most ``limit``, and ``up`` from -limit to limit."""
    return gg.clamp(gg.silu(x), -math.inf, limit) * gg.clamp(up, -limit, limit)
