"""Families with LLaMA's block and experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.architectures.llama import Llama
from ggplug_models.architectures.qwen import Qwen3
from ggplug_models.layers.experts import Experts, Gating
from ggplug_models.layers.feed_forward import gated
from ggplug_models.layers.linear import capped, linear
from ggplug_models.layers.norms import LayerNorm
from ggplug_models.layers.rope import Rope, frequency_base
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block, Inputs
from ggplug_models.state.cells import Cells, ChunkedCells
from ggplug_models.weights.weights import Weights


@architecture("deepseek")
class DeepSeek(Llama):
    """DeepSeekMoE (arXiv:2401.06066): routed and shared experts; the first blocks have none."""

    normalized_experts = False


@architecture("deepseek2-ocr")
class DeepSeekOcr(DeepSeek):
    """The language model of DeepSeek-OCR (arXiv:2510.18234): DeepSeekMoE's block with halves rotated.

    Heads are rotated as a whole, whatever ``rope.dimension_count`` says: it is 0 in published files.
    """

    rope_mode = None

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.windows = [0] * len(self.windows)  # some files have one, and llama.cpp and the authors' code ignore it
        hp.text("rope.scaling.type", "none", one_of=("none",))
        self.rope = Rope(RopeMode.NEOX, self.heads[0].d_k, base=frequency_base(hp, "rope.freq_base", 10000.0))


@architecture("bailingmoe")
class BailingMoe(DeepSeek):
    """Ling (arXiv:2503.05139): DeepSeekMoE's block."""


@architecture("bailingmoe2")
class BailingMoe2(Qwen3):
    """Ling 2 (arXiv:2510.22115): experts with sigmoid scores, chosen by a bias from groups; the first blocks have none.

    The blocks at the end that predict further tokens are not used.
    """

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        experts = Experts.needed(hp, normalized=False)
        width = hp.integer("expert_shared_feed_forward_length", 0, at_least=0) or experts.n_ff
        self.experts = replace(experts, n_ff_shared=width * hp.integer("expert_shared_count", 0, at_least=0))


@architecture("hy_v3")
class HunyuanV3(Qwen3):
    """Hunyuan 3 (Tencent, 2026): experts with sigmoid scores, chosen by a bias, and a shared one; the first blocks have
    none."""

    varies = ("ffn_gate_inp.weight",)

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        experts = Experts.needed(hp, gating=Gating.SIGMOID, normalized=False)
        self.experts = replace(experts, n_ff_shared=experts.n_ff_shared or experts.n_ff)

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        if "ffn_gate_inp.weight" in block.weights:
            return super().feed_forward(x, block)
        return gated(block.weights, x, self.n_ff[block.number])


@architecture("dbrx")
class Dbrx(Llama):
    """DBRX (Databricks, 2024): layer norms; queries, keys and values may be clamped."""

    rope_mode = RopeMode.NEOX
    norm_kind = LayerNorm
    feed_forward_norm = "attn_output_norm"


@architecture("arctic")
class Arctic(Llama):
    """Arctic (Snowflake, 2024): a dense network after attention, and experts that read the block's input."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.experts = Experts.needed(hp)

    def block(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        assert self.experts is not None
        a, x = block.outputs(self.attention(self.norm(w, "attn_norm", x), block), x)
        routed = self.experts(w, self.norm(w, "ffn_norm_exps", x), self.gate)
        x = block.named("ffn_inp", x + a)
        dense = block.named("ffn_out", gated(w, self.norm(w, "ffn_norm", x), self.n_embd, self.gate))
        return x + dense + routed


@architecture("grok")
class Grok(Llama):
    """Grok 1 and 2 (xAI, 2024): soft-capped logits, norms before and after attention and experts, GELU gates.

    Files with a dense network add half of the root of 2 of its result and that of the experts.
    """

    rope_mode = RopeMode.NEOX

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.embedding_scale = hp.number("embedding_scale", 78.38367176906169)
        self.logit_scale = hp.number("logit_scale", 0.5773502691896257)
        self.scale = hp.number("attention.output_scale", 0.08838834764831845)
        self.softcap = hp.number("attn_logit_softcapping", 30.0, at_least=0)
        self.logit_cap = hp.number("final_logit_softcapping", 0.0, at_least=0)

    def embedding(self, inputs: Inputs) -> Tensor:
        return gg.scale(super().embedding(inputs), self.embedding_scale)

    def gate(self, x: Tensor, up: Tensor) -> Tensor:
        return gg.geglu(x, up)

    def block(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        a, x = block.outputs(self.attention(self.norm(w, "attn_norm", x), block), x)
        x = block.named("ffn_inp", x + self.norm(w, "attn_output_norm", a))
        y = block.named("ffn_out", self.feed_forward(self.norm(w, "ffn_norm", x), block))
        behind = "layer_output_norm" if "layer_output_norm.weight" in w else "post_ffw_norm"
        return x + self.norm(w, behind, y)

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        y = super().feed_forward(x, block)
        if "ffn_up.weight" not in block.weights:
            return y
        return gg.scale(gated(block.weights, x, self.n_ff[block.number], self.gate) + y, 0.5**0.5)

    def scores(self, x: Tensor) -> Tensor:
        y = gg.scale(super().scores(x), self.logit_scale)
        return capped(y, self.logit_cap)


@architecture("afmoe")
class Afmoe(Qwen3):
    """Trinity (Arcee, 2025): three of four blocks have a window, and only these rotate; the result of attention is
    multiplied by a gate; norms before and after; experts with sigmoid scores, chosen by a bias."""

    needs = ("exp_probs_b.bias",)

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide_with_rope(hp, 4)
        self.experts = Experts.of(hp, gating=Gating.SIGMOID, normalized=False)

    def embedding(self, inputs: Inputs) -> Tensor:
        return gg.scale(super().embedding(inputs), self.n_embd**0.5)

    def block(self, x: Tensor, block: Block) -> Tensor:
        return self.sandwich(x, block)

    def rope_of(self, block: Block) -> Rope | None:
        return None if block.number % 4 == 3 else super().rope_of(block)

    def joined_heads(self, y: Tensor, block: Block, x: Tensor) -> Tensor:
        return y * gg.sigmoid(linear(block.weights, "attn_gate", x, y.ne[0]))


SMALL_WINDOW = 4096
"""Window of SmallThinker, whatever its files say, as in llama.cpp."""


@architecture("smallthinker")
class SmallThinker(Llama):
    """SmallThinker (arXiv:2507.20984): the router reads the block's input; in models with windows every fourth block
    has none and does not rotate; ReLU gates."""

    rope_mode = RopeMode.NEOX

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.experts = Experts.needed(hp)
        self.slides = hp.integer("attention.sliding_window", 0, at_least=0) > 0
        if self.slides:
            self.slide_with_rope(hp, 4, first=True)
            self.windows = [SMALL_WINDOW if window else 0 for window in self.windows]

    def rope_of(self, block: Block) -> Rope | None:
        return super().rope_of(block) if not self.slides or block.number % 4 else None

    def gate(self, x: Tensor, up: Tensor) -> Tensor:
        return gg.reglu(x, up)

    def block(self, x: Tensor, block: Block) -> Tensor:
        w, before = block.weights, x
        assert self.experts is not None
        a, x, before = block.outputs(self.attention(self.norm(w, "attn_norm", x), block), x, before)
        x = block.named("ffn_inp", x + a)
        return x + block.named("ffn_out", self.experts(w, self.norm(w, "ffn_norm", x), self.gate, before))


CHUNK = 8192
"""Positions that attend to each other in most blocks of Llama 4."""


@architecture("llama4")
class Llama4(Llama):
    """Llama 4 (Meta, 2025): three of four blocks rotate, and normalise heads after that; experts with sigmoid scores,
    which multiply what they read, and a shared one.

    Blocks that rotate attend within chunks of 8192 positions.
    """

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide_with_rope(hp, 4, default=CHUNK)
        self.windows = [CHUNK if window else 0 for window in self.windows]
        self.chunked = hp.integer("attention.sliding_window", CHUNK, at_least=0) > 0
        self.every = hp.integer("interleave_moe_layer_step")
        experts = Experts.needed(hp, gating=Gating.SIGMOID, normalized=False)
        self.norms_heads = experts.n_expert != 128
        self.experts = replace(experts, weighs_inputs=True, n_ff_shared=experts.n_ff)

    def cells(self, n_seq: int, n_ctx: int, n_step: int) -> dict[int, Cells]:
        found = super().cells(n_seq, n_ctx, n_step)
        return found | {CHUNK: ChunkedCells(n_seq, n_ctx, n_step, CHUNK)} if CHUNK in found else found

    def rope_of(self, block: Block) -> Rope | None:
        if not self.chunked:
            return self.rope
        return None if block.number % 4 == 3 else self.local_rope

    def positioned(self, q: Tensor, k: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        q, k = super().positioned(q, k, block)
        if self.rope_of(block) is None or not self.norms_heads:
            return q, k
        return gg.rms_norm(q, eps=self.norm.eps), gg.rms_norm(k, eps=self.norm.eps)

    def queries(self, q: Tensor, block: Block) -> Tensor:
        if self.rope_of(block) is not None:
            return q

        def grown(positions: npt.NDArray[np.int64]) -> npt.NDArray[np.floating]:
            return np.asarray(np.log((positions + 1) // CHUNK + 1.0) * 0.1 + 1)

        return q * block.inputs.of_positions("growth of queries", grown)

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        if (block.number + 1) % self.every == 0:
            return super().feed_forward(x, block)
        return gated(block.weights, x, self.n_ff[block.number])


@dataclass(frozen=True)
class _OfGroups(Experts):
    """Experts of which each belongs to a group of ``n_group`` others, and is chosen with any of these."""

    n_group: int = 1

    def route(self, weights: Weights, x: Tensor, numbers: Tensor | None = None) -> tuple[Tensor, Tensor]:
        scores = gg.soft_max(linear(weights, "ffn_gate_inp", x, self.n_expert * self.n_group))
        chosen = gg.cast(gg.argsort_top_k(scores, self.n_used), gg.F32)
        chosen = gg.cast(gg.scale(chosen, 1 / self.n_group), gg.I32)
        return chosen, self.weighted(weights, scores, chosen)


@architecture("grovemoe")
class GroveMoe(Qwen3):
    """GroveMoE (arXiv:2508.07785): experts in groups, each with a further expert, which reads what the chosen experts
    give.

    As in llama.cpp, the weight of a further expert is that of the expert with its number.
    """

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        experts = self.experts = Experts.needed(hp)
        n_group = hp.integer("experts_per_group", at_most=experts.n_expert)
        if experts.n_expert % n_group:
            raise hp.refused("experts_per_group", f"a divisor of {hp.prefix}expert_count ({experts.n_expert})")
        count = experts.n_expert // n_group
        width = hp.integer("expert_chunk_feed_forward_length", 0, at_least=0) or self.heads[0].d_k
        used = min(experts.n_used, count)
        self.further = _OfGroups(
            count, used, width, normalized=experts.normalized, scale=experts.scale, suffix="_chexps", n_group=n_group
        )
        self.factor = hp.number("expert_group_scale")

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        assert self.experts is not None
        w = block.weights
        y = self.experts.chosen(w, x, self.gate, x)
        return y + gg.scale(self.further.chosen(w.called("further_"), y, self.gate, x), self.factor)
