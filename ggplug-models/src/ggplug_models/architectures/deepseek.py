"""DeepSeek V2 and V3 (arXiv:2405.04434, arXiv:2412.19437): latent attention; routed and shared experts."""

from __future__ import annotations

import math

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.layers.attention import part, split
from ggplug_models.layers.linear import linear
from ggplug_models.layers.rope import Rope
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.networks.transformer import Transformer
from ggplug_models.state.memory import KeysValues, Kind


@architecture("deepseek2")
class DeepSeek2(Transformer, Decoder):
    """Computes keys and values of all heads from one latent vector of each token, and one rotated part of the keys.

    If the file has separate matrices for keys and values (``attn_k_b``, ``attn_v_b``), the KV cache stores only the
    latent vector, and the matrices are applied to the queries and to the result of attention.  Older files have one
    matrix (``attn_kv_b``); then the KV cache stores the keys and values of all heads.
    """

    rope_mode = RopeMode.NORMAL
    normalized_experts = False

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        if hp.number("attention.temperature_scale", 0.0):
            raise hp.refused(
                "attention.temperature_scale",
                "0; queries that grow with the position are not supported for this architecture",
            )
        self.n_head = self.heads[0].n_head
        self.latent = hp.integer("attention.kv_lora_rank")
        self.apart = "attention.key_length_mla" in hp
        of = "_mla" if self.apart else ""
        self.d_k, self.d_v = hp.integer(f"attention.key_length{of}"), hp.integer(f"attention.value_length{of}")
        multiplier = hp.number("rope.scaling.yarn_log_multiplier", 0.0)
        self.rope = Rope.of(hp, RopeMode.NORMAL, self.d_k, mscale=multiplier or 1.0)
        self.n_rot = self.rope.n_dims
        if self.d_k <= self.n_rot:
            raise hp.refused("rope.dimension_count", f"less than the length of keys ({self.d_k})")
        # Files hold a tenth of the paper's factor; logits grow with the square of the magnitude.
        stretched = math.log(1 / self.rope.scale)
        growth = self.rope.magnitude * (1 + 0.1 * stretched) * (1 + multiplier * stretched)
        self.scale = growth**2 * self.d_k**-0.5

    def kind(self, number: int) -> Kind:
        if self.apart:
            keys = self.latent + self.n_rot
            return KeysValues(keys, 0, math.gcd(keys, self.latent))
        return KeysValues(self.n_head * self.d_k, self.n_head * self.d_v, min(self.d_k, self.d_v))

    def attention(self, x: Tensor, block: Block) -> Tensor:
        w, n_nope = block.weights, self.d_k - self.n_rot
        assert self.rope is not None
        queries = x
        name = "attn_q"
        if "attn_q_a.weight" in w:
            short = w("attn_q_a.weight", self.n_embd, -1).ne[1]
            queries, name = self.norm(w, "attn_q_a_norm", linear(w, "attn_q_a", x, short)), "attn_q_b"
        q = split(linear(w, name, queries, self.n_head * self.d_k), self.n_head)
        both = linear(w, "attn_kv_a_mqa", x, self.latent + self.n_rot)
        latent = self.norm(w, "attn_kv_a_norm", gg.view(both, self.latent, both.ne[1], nb=(both.nb[1],)))
        rotated = self.rope(part(both, self.latent, self.n_rot, 1), block.positions)
        q_rotated = self.rope(_of_heads(q, n_nope, self.n_rot), block.positions)
        if self.apart:
            y = self._absorbed(block, _of_heads(q, 0, n_nope), q_rotated, latent, rotated)
        else:
            y = self._expanded(block, _of_heads(q, 0, n_nope), q_rotated, latent, rotated)
        return block.named("attn_out", linear(w, "attn_output", y, self.n_embd))

    def _absorbed(self, block: Block, q: Tensor, q_rotated: Tensor, latent: Tensor, rotated: Tensor) -> Tensor:
        """Attention with one head of keys for all queries; the first elements of a key are its value."""
        w, n, tokens = block.weights, self.latent, latent.ne[1]
        into = w("attn_k_b.weight", q.ne[0], n, self.n_head)
        out = w("attn_v_b.weight", n, self.d_v, self.n_head)
        q = gg.permute(gg.mul_mat(into, gg.permute(q, 0, 2, 1, 3)), 0, 2, 1, 3)
        key = gg.concat(gg.reshape(latent, n, 1, tokens), rotated, dim=0)
        y = block.attend(gg.concat(q, q_rotated, dim=0), key, None, scale=self.scale, d_v=n)
        y = gg.permute(gg.reshape(y, n, self.n_head, y.ne[1]), 0, 2, 1, 3)
        y = gg.cont(gg.permute(gg.mul_mat(out, y), 0, 2, 1, 3))
        return gg.reshape(y, self.d_v * self.n_head, y.ne[2])

    def _expanded(self, block: Block, q: Tensor, q_rotated: Tensor, latent: Tensor, rotated: Tensor) -> Tensor:
        """Attention with keys and values for each head; the rotated part of the keys is the same for all heads."""
        n_nope, tokens = q.ne[0], latent.ne[1]
        kv = split(linear(block.weights, "attn_kv_b", latent, self.n_head * (n_nope + self.d_v)), self.n_head)
        rotated = gg.repeat(rotated, self.n_rot, self.n_head, tokens)
        key = gg.concat(_of_heads(kv, 0, n_nope), rotated, dim=0)
        value = gg.cont(_of_heads(kv, n_nope, self.d_v))
        return block.attend(gg.concat(q, q_rotated, dim=0), key, value, scale=self.scale)


def _of_heads(x: Tensor, first: int, count: int) -> Tensor:
    """The elements from ``first`` on of each head: a view [count, n_head, T] of [d, n_head, T]."""
    return gg.view(x, count, *x.ne[1:3], nb=x.nb[1:3], offset=first * x.nb[0])
