"""Qwen 3 Next (Qwen, 2025), Qwen 3.5 (Qwen, 2026): gated delta nets in most blocks, gated attention in others."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.architectures.mamba import StateSpace
from ggplug_models.architectures.qwen import Qwen3
from ggplug_models.layers.attention import gated_queries, split
from ggplug_models.layers.delta_net import delta_net, unit
from ggplug_models.layers.linear import linear
from ggplug_models.layers.sequences import by_time, heads
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.state.memory import Kind
from ggplug_models.weights.weights import Weights


@architecture("qwen35")
class Qwen35(Qwen3, StateSpace):
    """Qwen 3.5: three of four blocks are delta nets, whose heads of values are in the order of the op."""

    feed_forward_norm = "post_attention_norm"

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        every = hp.integer("full_attention_interval", 4)
        listed = hp.flags("attention.recurrent_layers", len(self.windows))
        self.recurrent = listed or [(number + 1) % every != 0 for number in range(self.n_layer)]
        self.n_value, self.n_key = self.dt_rank, hp.integer("ssm.group_count")
        if self.n_value % self.n_key:
            raise hp.refused("ssm.group_count", f"a divisor of {hp.prefix}ssm.time_step_rank ({self.n_value})")
        if self.n_inner != self.n_state * self.n_value:
            raise hp.refused("ssm.inner_size", f"{self.n_state * self.n_value}: keys and values are equally wide")
        self.n_conv = self.n_inner + 2 * self.n_key * self.n_state

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        pairs = zip(super().kinds, self.recurrent, strict=False)
        return tuple(self.state_kind if recurrent else kind for kind, recurrent in pairs)

    def attention(self, x: Tensor, block: Block) -> Tensor:
        if self.recurrent[block.number]:
            return block.named("linear_attn_out", self.mixer(x, block))
        w, of = block.weights, self.heads[block.number]
        q, gate = gated_queries(w, x, of)
        k, v = linear(w, "attn_k", x, of.k_width), linear(w, "attn_v", x, of.v_width)
        q, k = self.positioned(q, split(k, of.n_head_kv), block)
        y = block.attend(q, k, split(v, of.n_head_kv), scale=self.scale) * gate
        return block.named("attn_out", linear(w, "attn_output", y, self.n_embd))

    def mixer(self, x: Tensor, block: Block) -> Tensor:
        w, step, d, n, keys = block.weights, block.step, self.n_state, self.n_value, self.n_key * self.n_state
        n_seq, conv_state, state = step.shape.n_seq, *step.state(block.number)
        z = linear(w, "attn_gate", x, self.n_inner)
        beta, alpha = (by_time(each, n_seq) for each in self.rates(w, x))
        qkv, conv_state = self.convolved(by_time(linear(w, "attn_qkv", x, self.n_conv), n_seq), w, conv_state)
        q, k = (self.spread(unit(heads(qkv, first, d, self.n_key), self.norm.eps)) for first in (0, keys))
        decay = gg.softplus(alpha + w("ssm_dt.bias", n)) * w("ssm_a", n)
        decay, beta = (gg.reshape(each, 1, *each.ne[:3]) for each in (decay, gg.sigmoid(beta)))
        y, state = delta_net(q, k, heads(qkv, 2 * keys, d, n), decay, beta, state)
        step.remember(block.number, conv_state, state)
        y = self.norm(w, "ssm_norm", gg.reshape(y, d, n, step.n_tokens))
        y = gg.swiglu(z, gg.reshape(y, self.n_inner, step.n_tokens))
        return linear(w, "ssm_out", y, self.n_embd)

    def rates(self, w: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        """For each head of values the rate of the correction and that of the decay, before the activations: [n, T]."""
        return linear(w, "ssm_beta", x, self.n_value), linear(w, "ssm_alpha", x, self.n_value)

    def spread(self, x: Tensor) -> Tensor:
        """Queries or keys [d, n_key, t, n_seq] as the op combines them with values."""
        return x


@architecture("qwen35moe")
class Qwen35Moe(Qwen35):
    """Qwen 3.5 with experts, and a shared expert that is multiplied by a gate."""

    needs = ("ffn_gate_inp_shexp.weight",)

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        if self.experts is not None and not self.experts.n_ff_shared:
            self.experts = replace(self.experts, n_ff_shared=self.n_ff[0])


@architecture("qwen3next")
class Qwen3Next(Qwen35Moe):
    """Qwen 3 Next: heads of values lie next to each other that use the same key; so do the rates of these heads."""

    def rates(self, w: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
        together, tokens = self.n_value // self.n_key, x.ne[1]
        both = gg.reshape(linear(w, "ssm_ba", x, 2 * self.n_value), 2 * together, self.n_key, tokens)
        parts = (gg.view(both, together, *both.ne[1:3], nb=both.nb[1:3], offset=4 * i * together) for i in (0, 1))
        beta, alpha = (gg.reshape(gg.cont(each), self.n_value, tokens) for each in parts)
        return beta, alpha

    def spread(self, x: Tensor) -> Tensor:
        together = self.n_value // self.n_key
        if together == 1:
            return x
        d, n, count, n_seq = x.ne
        several = gg.repeat(gg.reshape(x, d, 1, n, count * n_seq), d, together, n, count * n_seq)
        return gg.reshape(several, d, together * n, count, n_seq)
