"""RWKV-7 (arXiv:2503.14456): a state matrix for each head, which every token updates by a delta rule."""

from __future__ import annotations

from functools import cached_property

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.layers.attention import split
from ggplug_models.layers.linear import linear
from ggplug_models.layers.norms import LayerNorm
from ggplug_models.layers.sequences import by_time, shifted
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block, Inputs
from ggplug_models.state.memory import Kind, State
from ggplug_models.weights.weights import Weights

DECAY = -0.606531
"""-exp(-1/2): the decay of a step is at least exp of this."""


@architecture("rwkv7")
class Rwkv7(Decoder):
    """Blocks of time mixing and channel mixing, which both combine a token with the previous one."""

    needs = ("token_embd_norm.bias", "attn_norm.bias", "attn_norm_2.bias", "output_norm.bias")
    unread = ("time_mix_v",)  # of the first block, which has no block before it
    norm_kind = LayerNorm

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.head = hp.integer("wkv.head_size")
        self.n_ff = hp.integer("feed_forward_length")
        if self.n_embd % self.head:
            raise hp.refused("embedding_length", f"a multiple of {hp.prefix}wkv.head_size ({self.head})")
        self.n_head = self.n_embd // self.head

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The previous token for each of the two mixings, and the state matrices of the heads."""
        return (State((self.n_embd, self.n_embd, self.n_embd * self.head)),) * self.n_layer

    def embedding(self, inputs: Inputs) -> Tensor:
        return self.norm(self.w, "token_embd_norm", super().embedding(inputs))

    def block(self, x: Tensor, block: Block) -> Tensor:
        w, n, step = block.weights, self.n_embd, block.step
        time, channel, matrices = step.state(block.number)
        h = self.norm(w, "attn_norm", x)
        before, time = shifted(by_time(h, step.shape.n_seq), time)
        y, matrices = self.time_mixing(h, gg.reshape(before, n, step.n_tokens) - h, matrices, block)
        x = block.named("ffn_inp", x + y)
        h = self.norm(w, "attn_norm_2", x)
        before, channel = shifted(by_time(h, step.shape.n_seq), channel)
        step.remember(block.number, time, channel, matrices)
        h, change, x = block.outputs(h, gg.reshape(before, n, step.n_tokens) - h, x)
        return x + self.channel_mixing(h, change, w)

    def channel_mixing(self, x: Tensor, change: Tensor, w: Weights) -> Tensor:
        """The output of channel mixing, for tokens and their changes from the previous ones: [n_embd, T]."""
        key = linear(w, "channel_mix_key", x + change * w("channel_mix_lerp_k.weight", self.n_embd), self.n_ff)
        return linear(w, "channel_mix_value", gg.sqr(gg.relu(key)), self.n_embd)

    def time_mixing(self, x: Tensor, change: Tensor, matrices: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        """The output of time mixing, [n_embd, T], and the new state matrices."""
        w, n, tokens = block.weights, self.n_embd, x.ne[1]
        gated = "time_mix_g1.weight" in w
        parts = 6 if gated else 5
        lerp = w("time_mix_lerp_fused.weight", n, 1, 1, parts)
        mixed = [x + change * gg.view(lerp, n, offset=i * lerp.nb[3]) for i in range(parts)]
        r = linear(w, "time_mix_receptance", mixed[0], n)
        decay = _short(w, "w", mixed[1], n, gg.tanh) + w("time_mix_w0.weight", n)
        decay = gg.exp(gg.scale(gg.sigmoid(decay), DECAY))
        k = linear(w, "time_mix_key", mixed[2], n)
        v = linear(w, "time_mix_value", mixed[3], n)
        first = block.step.shared.setdefault("value of the first block", v)
        if first is not v:
            v = v + (first - v) * gg.sigmoid(_short(w, "v", mixed[3], n) + w("time_mix_v0.weight", n))
        rate = gg.sigmoid(_short(w, "a", mixed[4], n) + w("time_mix_a0.weight", n))
        removed = gg.l2_norm(self.of_heads(k * w("time_mix_k_k.weight", n)), eps=1e-12)
        scaled = k * w("time_mix_k_a.weight", n)
        k = k + (rate * scaled - scaled)
        r, decay, k, v, rate = (self.of_heads(each) for each in (r, decay, k, v, rate))
        both = gg.rwkv_wkv7(r, decay, k, v, gg.neg(removed), removed * rate, matrices)
        y, after = self.parts(both, matrices, tokens)
        y = self.normed(y, w)
        bonus = gg.sum_rows(k * r * gg.reshape(w("time_mix_r_k.weight", n), self.head, self.n_head))
        y = y + gg.reshape(v * bonus, n, tokens)
        if gated:
            y = y * _short(w, "g", mixed[5], n, gg.sigmoid)
        return linear(w, "time_mix_output", y, n), after

    def of_heads(self, x: Tensor) -> Tensor:
        """Columns, split into heads."""
        return split(x, self.n_head)

    def parts(self, both: Tensor, matrices: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """The results of the op, [head, n_head, T], and the new state matrices."""
        n = self.n_embd
        after = gg.view(both, matrices.ne[0], matrices.ne[1], nb=(4 * matrices.ne[0],), offset=4 * n * tokens)
        return gg.reshape(gg.view(both, n * tokens), self.head, self.n_head, tokens), after

    def normed(self, y: Tensor, w: Weights) -> Tensor:
        """Heads, each normalised, as columns [n_embd, T]."""
        flat = gg.reshape(gg.norm(y, eps=64e-5), self.n_embd, y.ne[2])
        return flat * w("time_mix_ln.weight", self.n_embd) + w("time_mix_ln.bias", self.n_embd)


def _short(w: Weights, name: str, x: Tensor, n: int, between: object = None) -> Tensor:
    """A low-rank product: ``time_mix_NAME1``, an activation ``between``, and ``time_mix_NAME2``."""
    h = gg.mul_mat(w(f"time_mix_{name}1.weight", n, -1), x)
    if callable(between):
        h = between(h)
    return gg.mul_mat(w(f"time_mix_{name}2.weight", h.ne[0], n), h)
