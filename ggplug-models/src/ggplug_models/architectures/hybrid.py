"""Models with attention in some blocks and a state space model in others: Granite 4 (IBM, 2025), Jamba
(arXiv:2403.19887), Nemotron-H (arXiv:2504.03624)."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.architectures.granite import Granite
from ggplug_models.architectures.mamba import Mamba, Mamba2, StateSpace
from ggplug_models.layers.experts import Experts, Gating
from ggplug_models.layers.feed_forward import gated, plain, relu_squared
from ggplug_models.layers.linear import linear
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.networks.transformer import Transformer
from ggplug_models.state.memory import Kind


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


@architecture("jamba")
class Jamba(_Hybrid, Mamba):
    """Jamba: Mamba 1 with norms of step size, B and C; no RoPE; experts, not renormalised, in some blocks."""

    rope_mode = None
    normalized_experts = False

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        if "ffn_gate_inp.weight" in block.weights:
            return super().feed_forward(x, block)
        return gated(block.weights, x, self.n_ff[block.number])


@architecture("nemotron_h")
class NemotronH(_Hybrid, Mamba2):
    """Nemotron-H: a block is attention without RoPE, Mamba 2, or a network with squared ReLU."""

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
        experts = Experts.of(hp, gating=Gating.SIGMOID, normalized=False)
        assert experts is not None
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
