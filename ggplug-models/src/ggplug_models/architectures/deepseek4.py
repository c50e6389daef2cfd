"""DeepSeek V4 (DeepSeek-AI, 2026): attention to compressed keys, and several streams of residuals."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

import ggplug as gg
from ggplug.backend import Device
from ggplug.ops.deepseek import MOST_ITERATIONS
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.layers.attention import split
from ggplug_models.layers.experts import Experts, Gating
from ggplug_models.layers.indexer import of_best
from ggplug_models.layers.linear import linear
from ggplug_models.layers.rope import Rope, frequency_base
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.metadata.values import REQUIRED
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block, Inputs
from ggplug_models.networks.transformer import Transformer
from ggplug_models.state.memory import KeysValues, Kind
from ggplug_models.weights.weights import Weights

STREAMS = 4
"""The number of streams that the op mixes."""

OVERLAPPING, APART = 4, 128
"""Numbers of positions that a compressed key stands for.  An indexer chooses among those of the first kind, which are
computed from as many positions before, too."""


@dataclass(frozen=True)
class Compressor:
    """Computes a key for each ``ratio`` adjacent positions: a weighted mean, rotated by the first of the positions.

    ``d``: elements of a key.  ``of``: with what the names of its weights begin.  ``recent``, ``keys``: the memory's
    blocks that hold what it computes of the last positions, and the keys.
    """

    d: int
    ratio: int
    of: str
    recent: int
    keys: int

    @property
    def before(self) -> int:
        """Number of positions before the first one that count, too, with elements of their own."""
        return self.ratio if self.ratio == OVERLAPPING else 0

    @property
    def width(self) -> int:
        """Number of elements that it computes of a position."""
        return 2 * self.d if self.before else self.d

    @property
    def kinds(self) -> tuple[Kind, Kind]:
        """What a session keeps: ``recent`` and ``keys``."""
        recent = KeysValues(self.width, self.width, self.width, self.before + self.ratio, gg.F32)
        return recent, KeysValues(self.d, 0, self.d, -self.ratio)

    def __call__(self, x: Tensor, block: Block, rope: Rope, eps: float) -> Tensor:
        """All keys, [d, span, 1, n_seq], after those that the step with the columns ``x`` [n, T] completes."""
        w, step, d = block.weights.part(f"{self.of}_compressor_"), block.step, self.d
        rows, begin, absent = step.completed(self.recent, self.keys, self.before)
        count, n_keys = rows.ne[:2]
        score = linear(w, "gate", x, self.width)
        score = score + gg.get_rows(w("ape.weight", self.width, self.ratio), step.places(self.ratio))
        held = step.stored(self.recent, linear(w, "kv", x, self.width), score)
        rows = gg.reshape(rows, count * n_keys)
        kv, score = (gg.get_rows(gg.reshape(each, d, each.size // d), rows) for each in held)
        kv, score = (gg.reshape(each, d, count, n_keys) for each in (kv, score))
        score = score + absent if self.before else score
        weights = gg.soft_max(gg.cont(gg.permute(score, 1, 0, 2, 3)))
        key = gg.sum_rows(gg.cont(gg.permute(kv, 1, 0, 2, 3)) * weights)
        key = gg.rms_norm(gg.reshape(key, d, 1, n_keys), eps=eps) * w("norm.weight", d)
        key = w.named("keys", replace(rope, first=d - rope.n_dims)(key, begin))
        (keys,) = step.stored(self.keys, gg.reshape(key, d, n_keys))
        return step.read(self.keys, keys, d, 1)


@architecture("deepseek4")
class DeepSeek4(Transformer, Decoder):
    """DeepSeek V4: a token attends to the last positions, and to keys of which each stands for several earlier ones; it
    has several streams of residuals, which each block mixes (arXiv:2512.24880); in the first blocks the token itself
    says which experts compute it.

    Between blocks, the streams of a token lie in one column: [n_embd STREAMS, T].  A session keeps what compressors
    need after what it keeps of all blocks.
    """

    rope_mode = RopeMode.NORMAL
    guesses = False
    needs = ("exp_probs_b.bias",)
    unread = ("exp_probs_b_vl.",)

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        count = len(self.windows)
        self.experts = Experts.needed(hp)
        if self.experts.gating is not Gating.SQRT_SOFTPLUS:
            raise hp.refused("expert_gating_func", "4 (root of softplus)")
        self.n_hashed = hp.integer("hash_layer_count", at_least=0)
        limits = hp.numbers_of_blocks("swiglu_clamp_exp", count, at_least=0)
        key = "swiglu_clamp_shexp"
        shared = hp.numbers_of_blocks(key, count, at_least=0) if key in hp else limits
        self.limits = list(zip(limits, shared, strict=True))
        self.n_head, self.d = self.heads[0].n_head, self.heads[0].d_k
        if any((each.n_head, each.n_head_kv, each.d_v) != (self.n_head, 1, self.d) for each in self.heads):
            raise hp.refused("attention.head_count_kv", "1, with keys and values of the same length in all blocks")
        self.n_groups = hp.integer("attention.output_group_count")
        if self.n_head % self.n_groups:
            raise hp.refused("attention.output_group_count", f"a divisor of attention.head_count ({self.n_head})")
        self.n_rank = hp.integer("attention.output_lora_rank")
        self.windows = [hp.integer("attention.sliding_window")] * count
        if hp.integer("hyper_connection.count") != STREAMS:
            raise hp.refused("hyper_connection.count", f"{STREAMS}")
        self.n_iter = hp.integer("hyper_connection.sinkhorn_iterations", at_most=MOST_ITERATIONS)
        self.hc_eps = hp.number("hyper_connection.epsilon", at_least=0)
        self.n_chosen = hp.integer("attention.indexer.top_k")
        self.n_index, self.d_index = (hp.integer(f"attention.indexer.{each}") for each in ("head_count", "key_length"))
        self._read_ratios(hp)
        self._read_rope(hp)

    def _read_ratios(self, hp: Hyperparameters) -> None:
        key = "attention.compress_ratios"
        ratios = np.asarray(hp.values.get(f"{hp.prefix}{key}"))
        if ratios.ndim != 1 or len(ratios) < self.n_layer or not {*ratios.tolist()} <= {0, OVERLAPPING, APART}:
            raise hp.refused(key, f"an array of 0, {OVERLAPPING} or {APART} for each of the {self.n_layer} blocks")
        self.compressors: list[tuple[Compressor, ...]] = []
        """Those of each block: none, that of its keys, or also that of its indexer's keys."""
        after = self.n_layer
        for ratio in map(int, ratios[: self.n_layer]):
            widths = {"attn": self.d, "indexer": self.d_index} if ratio == OVERLAPPING else {"attn": self.d}
            own = [Compressor(d, ratio, of, 0, 0) for of, d in widths.items() if ratio]
            self.compressors.append(
                tuple(replace(each, recent=after + 2 * i, keys=after + 2 * i + 1) for i, each in enumerate(own))
            )
            after += 2 * len(own)

    def _read_rope(self, hp: Hyperparameters) -> None:
        found = Rope.of(hp, self.rope_mode, self.d)
        if found.n_dims > self.d_index:
            raise hp.refused("attention.indexer.key_length", f"at least rope.dimension_count ({found.n_dims})")
        self.plain_rope = Rope(self.rope_mode, found.n_dims, base=found.base, first=self.d - found.n_dims)
        # The op's own factor of YaRN is taken back: keys are values, too.
        own = 1.0 + 0.1 * math.log(1 / found.scale) if found.extrapolation else 1.0
        base = frequency_base(hp, "attention.compress_rope_freq_base", REQUIRED)
        self.compressed_rope = replace(found, base=base, magnitude=1 / own, first=self.plain_rope.first)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        return (*super().kinds, *(kind for own in self.compressors for each in own for kind in each.kinds))

    def kind(self, number: int) -> Kind:
        return KeysValues(self.d, 0, self.d, self.windows[number])

    @cached_property
    def _block_of(self) -> tuple[int, ...]:
        """The block that each part of the memory belongs to."""
        return (
            *range(self.n_layer),
            *(n for n, own in enumerate(self.compressors) for each in own for _ in each.kinds),
        )

    def cache_on(self, number: int) -> Device | None:
        return super().cache_on(self._block_of[number])

    def device_of(self, number: int) -> Device:
        return super().device_of(self._block_of[number])

    def embedding(self, inputs: Inputs) -> Tensor:
        x = super().embedding(inputs)
        return gg.repeat(x, self.n_embd * STREAMS, x.ne[1])

    def hidden(self, x: Tensor) -> Tensor:
        w = self.w.part("output_hc_")
        gate = gg.sigmoid(self._mixes(x, w, STREAMS) * w("scale.weight", 1) + w("base.weight", STREAMS))
        return super().hidden(self._mean(x, gate))

    def _streams(self, x: Tensor) -> Tensor:
        """The streams of tokens, [n_embd, STREAMS, T], from columns [n_embd STREAMS, T]."""
        return gg.reshape(x, self.n_embd, STREAMS, x.ne[1])

    def _mixes(self, x: Tensor, w: Weights, n: int) -> Tensor:
        """What the factors of streams are computed from, [n, T], for columns ``x``."""
        flat = gg.rms_norm(x, eps=self.norm.eps)
        return w.named("mixes", gg.mul_mat(w("fn.weight", self.n_embd * STREAMS, n), flat))

    def _mean(self, x: Tensor, gate: Tensor) -> Tensor:
        """The sum of the streams of ``x``, [n_embd, T], with the factors ``gate`` [STREAMS, T] and a little more."""
        return gg.dsv4_hc_pre(self._streams(x), gg.scale(gate, 1.0, self.hc_eps))

    def _gathered(self, x: Tensor, block: Block, of: str) -> tuple[Tensor, Tensor, Tensor]:
        """What attention or the network reads, [n_embd, T], and how its result is added to the streams: by factors
        [STREAMS, T], after a mix of the streams [STREAMS**2, T]."""
        w, n = block.weights.part(f"hc_{of}_"), (2 + STREAMS) * STREAMS
        mixes, scale, base = self._mixes(x, w, n), w("scale.weight", 3), w("base.weight", n)
        tokens, size = x.ne[1], mixes.nb[0]
        pre, post = (
            gg.sigmoid(
                gg.view(mixes, STREAMS, tokens, nb=(mixes.nb[1],), offset=i * STREAMS * size)
                * gg.view(scale, 1, offset=i * size)
                + gg.view(base, STREAMS, offset=i * STREAMS * size)
            )
            for i in range(2)
        )
        mix = w.named("mix", gg.dsv4_hc_comb(mixes, scale, base, eps=self.hc_eps, n_iter=self.n_iter))
        return self._mean(x, pre), gg.scale(post, 2.0), gg.reshape(mix, STREAMS**2, tokens)

    def _added(self, y: Tensor, x: Tensor, post: Tensor, mix: Tensor) -> Tensor:
        """The streams after ``y`` [n_embd, T] was added to those of ``x``; see :meth:`_gathered`."""
        mix = gg.reshape(mix, STREAMS, STREAMS, y.ne[1])
        return gg.reshape(gg.dsv4_hc_post(y, self._streams(x), post, mix), *x.ne[:2])

    def block(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        y, post, mix = self._gathered(x, block, "attn")
        a = self.attention(self.norm(w, "attn_norm", y), block)
        a, x, post, mix = block.outputs(a, x, post, mix)
        x = block.named("ffn_inp", self._added(a, x, post, mix))
        y, post, mix = self._gathered(x, block, "ffn")
        y = block.named("ffn_out", self.feed_forward(self.norm(w, "ffn_norm", y), block))
        return self._added(y, x, post, mix)

    def attention(self, x: Tensor, block: Block) -> Tensor:
        w, d, n_head, tokens = block.weights, self.d, self.n_head, x.ne[1]
        compressors = self.compressors[block.number]
        rope = self.compressed_rope if compressors else self.plain_rope
        rank = w("attn_q_a.weight", self.n_embd, -1).ne[1]
        short = self.norm(w, "attn_q_a_norm", linear(w, "attn_q_a", x, rank))
        q = split(linear(w, "attn_q_b", short, n_head * d), n_head)
        q = rope(gg.rms_norm(q, eps=self.norm.eps), block.positions)
        k = self.norm(w, "attn_kv_a_norm", linear(w, "attn_kv", x, d))
        k = rope(gg.reshape(k, d, 1, tokens), block.positions)
        further = self.further(x, short, block) if compressors else None
        sinks = w("attn_sinks.weight", n_head)
        y = block.attend(q, k, None, d_v=d, scale=self.scale, sinks=sinks, further=further)
        y = rope.back(split(y, n_head), block.positions)
        width, n_rank = d * n_head // self.n_groups, self.n_rank
        out = gg.reshape(w("attn_output_a.weight", width, n_rank * self.n_groups), width, n_rank, self.n_groups)
        y = gg.mul_mat(out, gg.permute(gg.reshape(y, width, self.n_groups, tokens), 0, 2, 1, 3))
        y = gg.reshape(gg.cont(gg.permute(y, 0, 2, 1, 3)), n_rank * self.n_groups, tokens)
        return block.named("attn_out", linear(w, "attn_output_b", y, self.n_embd))

    def further(self, x: Tensor, short: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        """The compressed keys of a block, [d, span, 1, n_seq], and which of them each token sees.

        ``short``: what queries are computed from, [any, T].
        """
        rope, w = self.compressed_rope, block.weights
        keys, *of_index = (each(x, block, rope, self.norm.eps) for each in self.compressors[block.number])
        mask = block.step.mask(-self.compressors[block.number][0].ratio)
        for each in of_index:
            n, d = self.n_index, self.d_index
            q = split(linear(w, "indexer.attn_q_b", short, n * d), n)
            weights = linear(w, "indexer.proj", x, n)
            if keys.ne[1] > self.n_chosen:
                q = replace(rope, first=d - rope.n_dims)(q, block.positions)
                mask = of_best(q, each, weights, mask, self.n_chosen)
        return keys, mask

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        assert self.experts is not None
        w, experts = block.weights, self.experts
        numbers = None
        if block.number < self.n_hashed:
            table = w("ffn_gate_tid2eid.weight", experts.n_used, self.n_vocab)
            (numbers,) = block.outputs(gg.get_rows(table, block.inputs.tokens))
        own, shared = (
            partial(gg.swiglu_clamp, limit=limit) if limit else gg.swiglu for limit in self.limits[block.number]
        )
        return experts.chosen(w, x, own, x, numbers) + experts.shared(w, x, shared)
