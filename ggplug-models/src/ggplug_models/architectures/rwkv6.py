"""RWKV-6 (arXiv:2404.05892): a state matrix for each head, which decays by factors that depend on the token."""

from __future__ import annotations

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.architectures.rwkv7 import Rwkv7
from ggplug_models.layers.linear import linear
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.weights.weights import Weights


@architecture("rwkv6")
class Rwkv6(Rwkv7):
    """RWKV-6: how much of the previous token is mixed in depends on the token; a gate on channel mixing.

    Files may say that the stream is halved after every so many blocks, which their weights take into account.
    """

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.halved = hp.integer("rescale_every_n_layers", 0, at_least=0)
        self.n_mix = hp.integer("time_mix_extra_dim")
        self.n_decay = hp.integer("time_decay_extra_dim")

    def block(self, x: Tensor, block: Block) -> Tensor:
        y = super().block(x, block)
        return gg.scale(y, 0.5) if self.halved and (block.number + 1) % self.halved == 0 else y

    def channel_mixing(self, x: Tensor, change: Tensor, w: Weights) -> Tensor:
        y = super().channel_mixing(x, change, w)
        rate = linear(
            w, "channel_mix_receptance", x + change * w("channel_mix_lerp_r.weight", self.n_embd), self.n_embd
        )
        return y * gg.sigmoid(rate)

    def time_mixing(self, x: Tensor, change: Tensor, matrices: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        w, n = block.weights, self.n_embd
        mixed = self.mixed(x, change, w)
        k, v, r = (
            linear(w, f"time_mix_{name}", mixed[at], n) for at, name in ((1, "key"), (2, "value"), (3, "receptance"))
        )
        gate = gg.silu(linear(w, "time_mix_gate", mixed[4], n))
        short = gg.tanh(gg.mul_mat(w("time_mix_decay_w1.weight", n, self.n_decay), mixed[0]))
        decay = gg.mul_mat(w("time_mix_decay_w2.weight", self.n_decay, n), short) + w("time_mix_decay.weight", n)
        decay = gg.exp(gg.neg(gg.exp(decay)))
        k, v, r, decay = (self.of_heads(each) for each in (k, v, r, decay))
        first = w("time_mix_first.weight", self.head, self.n_head)
        both = gg.rwkv_wkv6(k, v, r, first, decay, matrices)
        y, after = self.parts(both, matrices, x.ne[1])
        return linear(w, "time_mix_output", self.normed(y, w) * gate, n), after

    def mixed(self, x: Tensor, change: Tensor, w: Weights) -> list[Tensor]:
        """The token mixed with the previous one, for decay, key, value, receptance and gate."""
        n, tokens = self.n_embd, x.ne[1]
        start = x + change * w("time_mix_lerp_x.weight", n)
        short = gg.tanh(gg.mul_mat(w("time_mix_w1.weight", n, 5 * self.n_mix), start))
        short = gg.cont(gg.permute(gg.reshape(short, self.n_mix, 5, tokens), 0, 2, 1, 3))
        own = gg.mul_mat(w("time_mix_w2.weight", self.n_mix, n, 5), short)
        if "time_mix_lerp_fused.weight" in w:
            fused = w("time_mix_lerp_fused.weight", n, 1, 1, 5)
            lerps = [gg.view(fused, n, offset=i * fused.nb[3]) for i in range(5)]
        else:
            lerps = [w(f"time_mix_lerp_{name}.weight", n) for name in "wkvrg"]
        parts = [gg.view(own, n, tokens, nb=own.nb[1:2], offset=i * own.nb[2]) for i in range(5)]
        return [x + change * (part + lerp) for part, lerp in zip(parts, lerps, strict=True)]
