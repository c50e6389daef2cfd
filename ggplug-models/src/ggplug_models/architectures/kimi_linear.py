"""Kimi Linear (arXiv:2510.26692): delta nets with decays of elements in most blocks, latent attention in others."""

from __future__ import annotations

from functools import cached_property

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.architectures.deepseek import DeepSeek2
from ggplug_models.layers.delta_net import delta_net, unit
from ggplug_models.layers.linear import linear
from ggplug_models.layers.sequences import by_time, convolved
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.networks.transformer import Transformer
from ggplug_models.state.memory import Kind, State


@architecture("kimi-linear")
class KimiLinear(DeepSeek2):
    """Blocks without key heads are delta nets; attention rotates nothing; experts have sigmoid scores."""

    needs = ("exp_probs_b.bias",)
    all_attend = False
    normalized_experts = True
    stretches = False

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.taps = hp.integer("ssm.conv_kernel", at_least=2)
        self.d_delta = hp.integer("kda.head_dim")
        self.n_inner = self.d_delta * self.n_head

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        state = State((*[(self.taps - 1) * self.n_inner] * 3, self.d_delta * self.n_inner))
        return tuple(kind if each.n_head_kv else state for kind, each in zip(super().kinds, self.heads, strict=False))

    def rotated(self, x: Tensor, block: Block) -> Tensor:
        return x

    def attention(self, x: Tensor, block: Block) -> Tensor:
        if self.heads[block.number].n_head_kv:
            return super().attention(x, block)
        w, step, d, n, inner = block.weights, block.step, self.d_delta, self.n_head, self.n_inner
        *convolutions, state = step.state(block.number)
        parts, after = [], []
        for of, before in zip("qkv", convolutions, strict=True):
            kernel = gg.reshape(w(f"ssm_conv1d_{of}.weight", self.taps, 1, inner), self.taps, inner)
            y, new = convolved(by_time(linear(w, f"attn_{of}", x, inner), step.shape.n_seq), kernel, before)
            parts.append(gg.reshape(gg.silu(y), d, n, *y.ne[1:3]))
            after.append(new)
        q, k = (unit(each, self.norm.eps) for each in parts[:2])
        rate = linear(w, "ssm_f_b", linear(w, "ssm_f_a", x, d), inner) + w("ssm_dt.bias", inner)
        decay = gg.reshape(gg.softplus(rate), d, n, step.n_tokens) * w("ssm_a", 1, n)
        beta = gg.sigmoid(linear(w, "ssm_beta", x, n))
        decay, beta = gg.reshape(decay, d, n, *q.ne[2:4]), gg.reshape(beta, 1, n, *q.ne[2:4])
        y, state = delta_net(q, k, parts[2], decay, beta, state)
        step.remember(block.number, *after, state)
        gate = gg.sigmoid(linear(w, "ssm_g_b", linear(w, "ssm_g_a", x, d), inner))
        y = gg.reshape(self.norm(w, "ssm_norm", gg.reshape(y, d, n, step.n_tokens)), inner, step.n_tokens)
        return block.named("attn_out", linear(w, "attn_output", y * gate, self.n_embd))

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        return Transformer.feed_forward(self, x, block)
