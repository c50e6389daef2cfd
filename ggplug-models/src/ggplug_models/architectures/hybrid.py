"""Models with attention and state space models: Granite 4 (IBM, 2025), Jamba (arXiv:2403.19887), Nemotron-H
(arXiv:2504.03624), PLaMo 2 (arXiv:2509.04897), Falcon-H1 (arXiv:2507.22448)."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import ggplug as gg
from ggplug.backend import Device
from ggplug.tensor import Tensor
from ggplug_models.architectures.granite import Granite
from ggplug_models.architectures.mamba import Mamba, Mamba2, StateSpace
from ggplug_models.layers.experts import Experts, Gating
from ggplug_models.layers.feed_forward import gated, gated_together, plain, relu_squared
from ggplug_models.layers.linear import linear
from ggplug_models.layers.sequences import by_time, columns
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.networks.transformer import Transformer
from ggplug_models.state.memory import Kind
from ggplug_models.weights.weights import Weights


class _Hybrid(Transformer, StateSpace):
    """Blocks without key heads have a state space model in the place of attention."""

    all_attend = False

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(
            kind if each.n_head_kv else self.state_kind for kind, each in zip(super().kinds, self.heads, strict=False)
        )

    def attention(self, x: Tensor, block: Block) -> Tensor:
        if self.heads[block.number].n_head_kv:
            return super().attention(x, block)
        return block.named("mamba_out", self.mixer(x, block))


@architecture("granitehybrid")
class GraniteHybrid(_Hybrid, Granite, Mamba2):
    """Granite 4: Granite's block with Mamba 2."""

    needs = ("ssm_norm.weight",)


@architecture("jamba")
class Jamba(_Hybrid, Mamba):
    """Jamba: Mamba 1 with norms of step size, B and C; no RoPE; experts, not renormalised, in some blocks."""

    varies = ("ffn_gate_inp.weight",)
    needs = ("ssm_conv1d.bias", "ssm_dt.bias", "ssm_dt_norm.weight", "ssm_b_norm.weight", "ssm_c_norm.weight")
    rope_mode = None
    normalized_experts = False

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        if "ffn_gate_inp.weight" in block.weights:
            return super().feed_forward(x, block)
        return gated(block.weights, x, self.n_ff[block.number])


@architecture("nemotron_h")
class NemotronH(_Hybrid, Mamba2):
    """Nemotron-H: a block is attention without RoPE, Mamba 2, or a network with squared ReLU."""

    needs = ("ssm_norm.weight",)
    rope_mode = None

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(None if n_ff else kind for kind, n_ff in zip(super().kinds, self.n_ff, strict=False))

    def block(self, x: Tensor, block: Block) -> Tensor:
        h = self.norm(block.weights, "attn_norm", x)
        y = self.feed_forward(h, block) if self.n_ff[block.number] else self.attention(h, block)
        y, x = block.outputs(y, x)
        return x + y

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        return plain(block.weights, x, self.n_ff[block.number], relu_squared)


@architecture("nemotron_h_moe")
class NemotronHMoe(NemotronH):
    """Nemotron 3 (arXiv:2512.20856): experts in the place of networks, which may read fewer elements of a token.

    The blocks at the end that predict further tokens are not used.
    """

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        experts = Experts.needed(hp, gating=Gating.SIGMOID, normalized=False)
        self.experts = replace(experts, activation=relu_squared)
        self.n_short = hp.integer("moe_latent_size", 0, at_least=0)

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        w = block.weights
        assert self.experts is not None
        if not self.n_short:
            return self.experts(w, x)
        short = linear(w, "ffn_latent_down", x, self.n_short)
        y = linear(w, "ffn_latent_up", self.experts.chosen(w, short, gg.swiglu, x), self.n_embd)
        return y + self.experts.shared(w, x, gg.swiglu)


@architecture("plamo2")
class Plamo2(_Hybrid):
    """PLaMo 2: Mamba 1 whose channels lie in heads that share a step size; norms before and after attention or Mamba,
    and network; queries and keys are normalised, each head with its own weights."""

    needs = ("ssm_dt.bias",)

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        if self.n_inner % self.dt_rank:
            raise hp.refused("ssm.inner_size", f"a multiple of {hp.prefix}ssm.time_step_rank ({self.dt_rank})")

    def block(self, x: Tensor, block: Block) -> Tensor:
        return self.sandwich(x, block)

    def normed(self, q: Tensor, k: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
        return self.norm(w, "attn_q_norm", q, *q.ne[:2]), self.norm(w, "attn_k_norm", k, *k.ne[:2])

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        return gated_together(block.weights, x, self.n_ff[block.number])

    def mixer(self, x: Tensor, block: Block) -> Tensor:
        w, step, n, k, n_head = block.weights, block.step, self.n_inner, self.n_state, self.dt_rank
        d, short = n // n_head, max(64, self.n_embd // 16)
        n_seq, conv_state, state = step.shape.n_seq, *step.state(block.number)
        zx = gg.reshape(linear(w, "ssm_in", x, 2 * n), 2 * d, n_head, step.n_tokens)
        z, x = (gg.reshape(gg.cont(columns(zx, part * d, d)), n, step.n_tokens) for part in (0, 1))
        x, conv_state = self.convolved(by_time(x, n_seq), w, conv_state)
        found = linear(w, "ssm_x", x, 2 * k + short)
        b = self.norm(w, "ssm_b_norm", columns(found, 0, k))
        c = self.norm(w, "ssm_c_norm", columns(found, k, k))
        dt = linear(w, "ssm_dt", self.norm(w, "ssm_dt_norm", columns(found, 2 * k, short)), n_head)
        b, c = (gg.reshape(each, k, 1, *each.ne[1:3]) for each in (b, c))
        of_heads = gg.reshape(x, d, n_head, *x.ne[1:3])
        a, skip = (gg.reshape(w(name, n_head), 1, n_head) for name in ("ssm_a", "ssm_d"))
        y, state = self.scan(state, of_heads, dt, a, b, c, step)
        step.remember(block.number, conv_state, state)
        y = gg.swiglu(z, gg.reshape(y + of_heads * skip, n, step.n_tokens))
        return linear(w, "ssm_out", y, self.n_embd)


@architecture("falcon-h1")
class FalconH1(Transformer, Mamba2):
    """Falcon-H1: attention and Mamba 2 read the same norm, and both results are added.

    What a session keeps for Mamba 2 follows what it keeps for attention: the numbers go on after the last block.
    """

    needs = ()

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.scale = hp.number("attention.scale", 0.0, at_least=0) or self.scale

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        return (*super().kinds, *(self.state_kind,) * self.n_layer)

    def cache_on(self, number: int) -> Device | None:
        return super().cache_on(number % self.n_layer)

    def device_of(self, number: int) -> Device:
        return super().device_of(number % self.n_layer)

    def attention(self, x: Tensor, block: Block) -> Tensor:
        of_state = replace(block, number=block.number + self.n_layer)
        return super().attention(x, block) + block.named("mamba_out", self.mixer(x, of_state))
