"""LFM2 (arXiv:2511.23404): short convolutions in most blocks, attention in some."""

from __future__ import annotations

from functools import cached_property

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.architectures.qwen import Qwen3
from ggplug_models.layers.experts import Experts, Gating
from ggplug_models.layers.linear import linear
from ggplug_models.layers.sequences import by_time, columns, convolved
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.state.memory import Kind, State


@architecture("lfm2")
class Lfm2(Qwen3):
    """Blocks without key heads are convolutions; others have attention with normalised heads of queries and keys."""

    all_attend = False

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.taps = hp.integer("shortconv.l_cache", at_least=2)
        if hp.integer("attention.sliding_window", 0, at_least=0):
            self.slide(hp, 0)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        state = State(((self.taps - 1) * self.n_embd,))
        return tuple(kind if each.n_head_kv else state for kind, each in zip(super().kinds, self.heads, strict=False))

    def attention(self, x: Tensor, block: Block) -> Tensor:
        if self.heads[block.number].n_head_kv:
            return super().attention(x, block)
        w, n, step = block.weights, self.n_embd, block.step
        gates = by_time(linear(w, "shortconv.in_proj", x, 3 * n), step.shape.n_seq)
        before, behind, x = (columns(gates, i * n, n) for i in range(3))
        kernel = w("shortconv.conv.weight", self.taps, n)
        y, after = convolved(before * x, kernel, *step.state(block.number))
        step.remember(block.number, after)
        return linear(w, "shortconv.out_proj", gg.reshape(behind * y, n, step.n_tokens), n)

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(self.w, "token_embd_norm", x)  # the name of the last norm in files


@architecture("lfm2moe")
class Lfm2Moe(Lfm2):
    """LFM2 with experts with sigmoid scores, chosen by a bias; the first blocks have none."""

    needs = ("exp_probs_b.bias",)

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.experts = Experts.of(hp, gating=Gating.SIGMOID)
