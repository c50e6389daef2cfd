"""Gemma 3n (Google, 2025) and Gemma 4 (Google, 2026): further embeddings of tokens for each block; the last blocks read
the keys and values of earlier ones."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.architectures.gemma import Capped, NormedHeads
from ggplug_models.layers.attention import split
from ggplug_models.layers.experts import Experts
from ggplug_models.layers.feed_forward import activated, gated
from ggplug_models.layers.linear import linear, rows
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block, Inputs
from ggplug_models.state.memory import Kind
from ggplug_models.weights.weights import Weights


class _Nested(NormedHeads, Capped):
    """Queries are not scaled, and values are normalised, without weights.

    ``per_layer`` of the nodes that blocks share: the embeddings of tokens for each block, [n, n_layer, T].
    """

    largest = 0
    n_own: int
    """Number of blocks that have keys and values."""
    n_nested: int
    """Number of elements of a token's further embedding for a block; 0: there is none."""

    def read_nested(self, hp: Hyperparameters, n_shared: int) -> None:
        """Reads the hyperparameters of this class.  ``n_shared``: if the file does not say how many blocks at the end
        read keys and values of others."""
        self.n_own = self.n_layer - hp.integer(
            "attention.shared_kv_layers", n_shared, at_least=0, at_most=self.n_layer - 1
        )
        self.n_nested = hp.integer("embedding_length_per_layer_input", 0, at_least=0)
        self.scale = 1.0
        if any(self.source(number) is None for number in range(self.n_layer)):
            raise hp.refused("attention.shared_kv_layers", "such that earlier blocks have the same windows")

    def source(self, number: int) -> int | None:
        """The block whose keys and values a block reads: its own, or the last one of the same window that has any."""
        if number < self.n_own:
            return number
        alike = (each for each in reversed(range(self.n_own)) if self.windows[each] == self.windows[number])
        return next(alike, None)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(kind if number < self.n_own else None for number, kind in enumerate(super().kinds))

    def embedding(self, inputs: Inputs) -> Tensor:
        x = super().embedding(inputs)
        if self.n_nested:
            n, count, shape = self.n_nested, self.n_layer, (self.n_nested, self.n_layer, x.ne[1])
            table = gg.reshape(rows(self.w, "per_layer_token_embd", n * count, inputs.tokens), *shape)
            projected = gg.scale(linear(self.w, "per_layer_model_proj", x, n * count), self.n_embd**-0.5)
            projected = self.norm(self.w, "per_layer_proj_norm", gg.reshape(projected, *shape))
            inputs.shared["per_layer"] = gg.scale(projected + gg.scale(table, n**0.5), 0.5**0.5)
        return x

    def of_nested(self, x: Tensor, block: Block) -> Tensor:
        """What a token's further embedding for this block, multiplied by a gate of ``x`` [n_embd, ...], adds."""
        w, n, all_blocks = block.weights, self.n_nested, block.inputs.shared["per_layer"]
        own = gg.view(all_blocks, n, all_blocks.ne[2], nb=(all_blocks.nb[2],), offset=block.number * all_blocks.nb[1])
        (own,) = block.outputs(gg.cont(own))
        return self.norm(w, "post_norm", linear(w, "proj", gg.geglu(linear(w, "inp_gate", x, n), own), self.n_embd))

    def attention(self, x: Tensor, block: Block) -> Tensor:
        w, heads, of = block.weights, self.heads[block.number], self.source(block.number)
        q = split(linear(w, "attn_q", x, heads.d_k * heads.n_head), heads.n_head)
        q = self.rotated(self.norm(w, "attn_q_norm", q), block)
        k = v = None
        if of == block.number:
            k = split(linear(w, "attn_k", x, heads.k_width), heads.n_head_kv)
            has_values = bool(self.windows[block.number]) or "attn_v.weight" in w
            v = split(linear(w, "attn_v", x, heads.v_width), heads.n_head_kv) if has_values else k
            k, v = self.rotated(self.norm(w, "attn_k_norm", k), block), gg.rms_norm(v, eps=self.norm.eps)
        y = block.attend(q, k, v, scale=self.scale, of=of)
        return block.named("attn_out", linear(w, "attn_output", y, self.n_embd))


class _Router(Experts):
    """A router that weighs the elements of what it reads."""

    def logits(self, weights: Weights, x: Tensor) -> Tensor:
        n = x.ne[0]
        scaled = gg.scale(x, n**-0.5) * weights("ffn_gate_inp.scale", n)
        return gg.mul_mat(weights("ffn_gate_inp.weight", n, self.n_expert), scaled)


@architecture("gemma4")
class Gemma4(_Nested):
    """Gemma 4: heads of blocks without a window have a width of their own; in larger models, a dense network and
    experts read the same vectors; each block's result has a factor."""

    needs = ("rope_freqs.weight",)

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.experts = _Router.of(hp)
        assert self.local_rope is not None
        d_k, d_v = (hp.integer(f"attention.{of}_length_swa", self.heads[0].d_k) for of in ("key", "value"))
        n_dims = hp.integer("rope.dimension_count_swa", d_k, at_most=d_k)
        self.local_rope = replace(self.local_rope, n_dims=n_dims)
        pairs = zip(self.heads, self.windows, strict=True)
        self.heads = [replace(each, d_k=d_k, d_v=d_v) if window else each for each, window in pairs]
        self.read_nested(hp, 0)

    def rope_factors(self, block: Block) -> Tensor | None:
        return None if self.windows[block.number] else super().rope_factors(block)

    def block(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        a, x = block.outputs(self.attention(self.norm(w, "attn_norm", x), block), x)
        x = block.named("ffn_inp", x + self.norm(w, "post_attention_norm", a))
        x = x + self.norm(w, "post_ffw_norm", block.named("ffn_out", self.feed_forward(x, block)))
        if self.n_nested:
            x = x + self.of_nested(x, block)
        scale = w.optional("layer_output_scale.weight", 1)
        return x if scale is None else x * scale

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        y = gated(w, self.norm(w, "ffn_norm", x), self.n_ff[block.number], self.gate)
        if self.experts is None or "ffn_gate_inp.weight" not in w:
            return y
        read, routed = self.norm(w, "pre_ffw_norm_2", x), gg.rms_norm(x, eps=self.norm.eps)
        z = self.experts.chosen(w, read, self.gate, routed)
        return self.norm(w, "post_ffw_norm_1", y) + self.norm(w, "post_ffw_norm_2", z)


LEAST_POWER = 1e-5
"""Lower limit of the mean squares that the further streams of a token are divided by."""


@architecture("gemma3n")
class Gemma3n(_Nested):
    """Gemma 3n: a token has several streams, of which blocks compute one and predict the others (AltUp,
    arXiv:2301.13310); a short path around attention (LAuReL, arXiv:2411.07501); sparse gates in the first blocks.

    Between blocks, the streams of a token lie in one column: [n_embd n_streams, T].
    """

    SPARSE: ClassVar[tuple[int, float]] = 10, 1.6448533535003662
    """Number of blocks with sparse gates in a file that does not say it, and the number of standard deviations."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.slide_with_rope(hp, 5, self.local_rope)
        self.logit_cap = hp.number("final_logit_softcapping", 30.0, at_least=0)
        self.n_streams = hp.integer("altup.num_inputs", 4, at_least=2)
        self.active = hp.integer("altup.active_idx", 0, at_least=0, at_most=self.n_streams - 1)
        self.read_nested(hp, max(0, self.n_layer - 20))
        if not self.n_nested:
            raise hp.refused("embedding_length_per_layer_input", "an integer of at least 1")
        key, (first, deviations) = "activation_sparsity_scale", self.SPARSE
        self.cutoffs = [deviations] * first + [-math.inf] * (self.n_layer - first)
        if key in hp:
            self.cutoffs = hp.numbers(key, length=self.n_layer, finite=False)

    def embedding(self, inputs: Inputs) -> Tensor:
        x = super().embedding(inputs)
        n, count, tokens = self.n_embd, self.n_streams - 1, x.ne[1]
        copies = gg.repeat(gg.reshape(x, n, tokens, 1), n, tokens, count)
        others = gg.mul_mat(self.w("altup_proj.weight", n, n, count), copies)
        streams = gg.concat(gg.reshape(x, n, tokens, 1), as_strong(others, x), dim=2)
        return gg.reshape(gg.cont(gg.permute(streams, 0, 2, 1, 3)), n * self.n_streams, tokens)

    def hidden(self, x: Tensor) -> Tensor:
        n, count = self.n_embd, self.n_streams - 1
        streams = gg.cont(gg.permute(self.streams(x), 0, 2, 1, 3))  # [n_embd, T, n_streams]
        first, others = (
            gg.view(streams, n, streams.ne[1], each, nb=streams.nb[1:3], offset=at * streams.nb[2])
            for at, each in ((0, 1), (1, count))
        )
        others = as_strong(gg.mul_mat(self.w("altup_unembd_proj.weight", n, n, count), others), first)
        total = gg.reshape(first, *first.ne[:2])
        for number in range(count):
            total = total + gg.view(others, *others.ne[:2], nb=(others.nb[1],), offset=number * others.nb[2])
        return super().hidden(gg.scale(total, 1 / self.n_streams))

    def streams(self, x: Tensor) -> Tensor:
        """The streams of tokens, [n_embd, n_streams, T], from columns [n_embd n_streams, T]."""
        return gg.reshape(x, self.n_embd, self.n_streams, x.ne[1])

    def active_of(self, streams: Tensor) -> Tensor:
        """The stream that blocks compute, [n_embd, T]."""
        own = gg.view(streams, self.n_embd, streams.ne[2], nb=(streams.nb[2],), offset=self.active * streams.nb[1])
        return gg.cont(own)

    def modalities(self, x: Tensor, block: Block, of: str) -> Tensor:
        """What the router says of the active stream, from which factors of streams are computed: [n_streams, T].

        ``of``: for names of nodes, what these factors are for.
        """
        w = block.weights
        normed = block.named(f"altup_{of}_norm", self.norm(w, "altup_router_norm", x))
        scores = linear(w, "altup_router", gg.scale(normed, 1 / self.n_embd), self.n_streams)
        return gg.tanh(block.named(f"altup_{of}_router", scores))

    def predicted(self, streams: Tensor, block: Block) -> Tensor:
        """The streams after a block, predicted from those before it: [n_embd, n_streams, T]."""
        count = self.n_streams
        said = self.modalities(self.active_of(streams), block, "predict")
        factors = linear(block.weights, "altup_predict_coef", said, count * count)
        factors = gg.reshape(factors, count, count, streams.ne[2])
        return gg.mul_mat(gg.cont(gg.permute(streams, 1, 0, 2, 3)), factors) + streams

    def corrected(self, predicted: Tensor, x: Tensor, block: Block) -> Tensor:
        """The predicted streams, after the active one was computed as ``x`` [n_embd, T]: [n_embd, n_streams, T]."""
        count, tokens = self.n_streams, x.ne[1]
        factors = linear(block.weights, "altup_correct_coef", self.modalities(x, block, "correct"), count)
        news = gg.reshape(x - self.active_of(predicted), self.n_embd, 1, tokens)
        factors = gg.reshape(gg.scale(factors, 1.0, 1.0), 1, count, tokens)
        return gg.repeat(news, self.n_embd, count, tokens) * factors + predicted

    def block(self, x: Tensor, block: Block) -> Tensor:
        w, n = block.weights, self.n_embd
        predicted = self.predicted(self.streams(x), block)
        active = self.active_of(predicted)
        h = self.norm(w, "attn_norm", active)
        rank = w("laurel_l.weight", n, -1).ne[1]
        around = h + self.norm(w, "laurel_post_norm", linear(w, "laurel_r", linear(w, "laurel_l", h, rank), n))
        flat = gg.reshape(predicted, n * self.n_streams, predicted.ne[2])
        a, active, around, flat = block.outputs(self.attention(h, block), active, around, flat)
        x = active + self.norm(w, "post_attention_norm", a)
        x = block.named("ffn_inp", gg.scale(x + around, 0.5**0.5))
        y = block.named("ffn_out", self.feed_forward(self.norm(w, "ffn_norm", x), block))
        corrected = self.corrected(self.streams(flat), x + self.norm(w, "post_ffw_norm", y), block)
        added = self.of_nested(self.active_of(corrected) * w("altup_correct_scale.weight", n), block)
        first, others = (
            gg.view(corrected, n, each, corrected.ne[2], nb=corrected.nb[1:3], offset=at * corrected.nb[1])
            for at, each in ((0, 1), (1, self.n_streams - 1))
        )
        streams = gg.concat(first, others + gg.reshape(added, n, 1, added.ne[1]), dim=1)
        return gg.reshape(streams, n * self.n_streams, streams.ne[2])

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        w, n_ff, cutoff = block.weights, self.n_ff[block.number], self.cutoffs[block.number]
        if cutoff == -math.inf:
            return super().feed_forward(x, block)
        gate, up = linear(w, "ffn_gate", x, n_ff), linear(w, "ffn_up", x, n_ff)
        centred = gate - gg.mean(gate)
        gate = gg.relu(centred - gg.scale(gg.sqrt(gg.mean(gg.sqr(centred))), cutoff))
        return linear(w, "ffn_down", activated(w, self.gate(gate, up)), self.n_embd)


def as_strong(x: Tensor, like: Tensor) -> Tensor:
    """Columns with the mean squares of the columns of ``like`` [n, T]: [n, T, ...] for x [n, T, ...]."""
    own, wanted = (gg.mean(gg.sqr(each)) for each in (x, like))
    return x * gg.sqrt(wanted) / gg.sqrt(gg.clamp(own, LEAST_POWER, math.inf))
