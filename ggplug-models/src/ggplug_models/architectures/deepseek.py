"""DeepSeek V2 and V3 (arXiv:2405.04434, arXiv:2412.19437), and families with their latent attention."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import ggplug as gg
from ggplug.backend import Device
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.architectures.llama import GrowingQueries
from ggplug_models.layers.attention import of_heads, part, split
from ggplug_models.layers.experts import Experts, Gating, gating_of
from ggplug_models.layers.feed_forward import plain, relu_squared
from ggplug_models.layers.indexer import of_best
from ggplug_models.layers.linear import linear
from ggplug_models.layers.norms import LayerNorm
from ggplug_models.layers.rope import Rope
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block, Inputs
from ggplug_models.networks.transformer import Transformer
from ggplug_models.state.memory import KeysValues, Kind

_SIGMOID_IF_UNSAID = ((47, 154880), (48, 154880))
"""The numbers of blocks and tokens of GLM 4.7 Flash, whose first files do not say how scores are made."""


@architecture("deepseek2")
class DeepSeek2(Transformer, Decoder):
    """Computes keys and values of all heads from one latent vector of each token, and one rotated part of the keys.

    If the file has separate matrices for keys and values (``attn_k_b``, ``attn_v_b``), the KV cache stores only the
    latent vector, and the matrices are applied to the queries and to the result of attention.  Older files have one
    matrix (``attn_kv_b``); then the KV cache stores the keys and values of all heads.
    """

    rope_mode = RopeMode.NORMAL
    normalized_experts = False
    grows: ClassVar[bool] = False
    """Whether queries may grow with the position."""

    stretches: ClassVar[bool] = True
    """Whether scores grow with the factor by which contexts are longer, of any scaling of RoPE."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        if hp.number("attention.temperature_scale", 0.0) and not self.grows:
            raise hp.refused(
                "attention.temperature_scale",
                "0; queries that grow with the position are not supported for this architecture",
            )
        if self.experts is not None and (self.n_layer, hp.integer("vocab_size", 0, at_least=0)) in _SIGMOID_IF_UNSAID:
            self.experts = replace(self.experts, gating=gating_of(hp, Gating.SIGMOID))
        self.n_head = self.heads[0].n_head
        self.latent = hp.integer("attention.kv_lora_rank")
        self.apart = "attention.key_length_mla" in hp
        of = "_mla" if self.apart else ""
        self.d_k, self.d_v = hp.integer(f"attention.key_length{of}"), hp.integer(f"attention.value_length{of}")
        multiplier = hp.number("rope.scaling.yarn_log_multiplier", 0.0)
        self.rope = Rope.of(hp, self.rope_mode, self.d_k, mscale=multiplier or 1.0)
        self.n_rot = self.rope.n_dims
        if self.d_k <= self.n_rot:
            raise hp.refused("rope.dimension_count", f"less than the length of keys ({self.d_k})")
        # Files hold a tenth of the paper's factor; logits grow with the square of the magnitude.
        stretched = math.log(1 / self.rope.scale)
        growth = self.rope.magnitude * (1 + 0.1 * stretched) * (1 + multiplier * stretched)
        self.scale = (growth**2 if self.stretches else 1) * self.d_k**-0.5

    def kind(self, number: int) -> Kind:
        if self.apart:
            keys = self.latent + self.n_rot
            return KeysValues(keys, 0, math.gcd(keys, self.latent))
        return KeysValues(self.n_head * self.d_k, self.n_head * self.d_v, min(self.d_k, self.d_v))

    def attention(self, x: Tensor, block: Block) -> Tensor:
        w, n_nope = block.weights, self.d_k - self.n_rot
        queries = x
        name = "attn_q"
        if "attn_q_a.weight" in w:
            short = w("attn_q_a.weight", self.n_embd, -1).ne[1]
            queries, name = self.norm(w, "attn_q_a_norm", linear(w, "attn_q_a", x, short)), "attn_q_b"
        q = split(linear(w, name, queries, self.n_head * self.d_k), self.n_head)
        mask = self.attended(x, queries, block)
        both = linear(w, "attn_kv_a_mqa", x, self.latent + self.n_rot)
        latent = self.norm(w, "attn_kv_a_norm", gg.view(both, self.latent, both.ne[1], nb=(both.nb[1],)))
        rotated = self.rotated(part(both, self.latent, self.n_rot, 1), block)
        q_rotated = self.rotated(of_heads(q, n_nope, self.n_rot), block)
        if self.apart:
            y = self._absorbed(block, of_heads(q, 0, n_nope), q_rotated, latent, rotated, mask)
        else:
            y = self._expanded(block, of_heads(q, 0, n_nope), q_rotated, latent, rotated, mask)
        return block.named("attn_out", linear(w, "attn_output", y, self.n_embd))

    def attended(self, x: Tensor, short: Tensor, block: Block) -> Tensor | None:
        """Hook for families whose tokens attend to some of the earlier positions; returns their mask.

        ``short``: what queries are computed from, [any, T].
        """
        return None

    def _absorbed(
        self, block: Block, q: Tensor, q_rotated: Tensor, latent: Tensor, rotated: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attention with one head of keys for all queries; the first elements of a key are its value."""
        w, n, tokens = block.weights, self.latent, latent.ne[1]
        into = w("attn_k_b.weight", q.ne[0], n, self.n_head)
        out = w("attn_v_b.weight", n, self.d_v, self.n_head)
        q = gg.permute(gg.mul_mat(into, gg.permute(q, 0, 2, 1, 3)), 0, 2, 1, 3)
        key = gg.concat(gg.reshape(latent, n, 1, tokens), rotated, dim=0)
        q = self.queries(gg.concat(q, q_rotated, dim=0), block)
        y = block.attend(q, key, None, scale=self.scale, d_v=n, mask=mask)
        y = gg.permute(gg.reshape(y, n, self.n_head, y.ne[1]), 0, 2, 1, 3)
        y = gg.cont(gg.permute(gg.mul_mat(out, y), 0, 2, 1, 3))
        return gg.reshape(y, self.d_v * self.n_head, y.ne[2])

    def _expanded(
        self, block: Block, q: Tensor, q_rotated: Tensor, latent: Tensor, rotated: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attention with keys and values for each head; the rotated part of the keys is the same for all heads."""
        n_nope, tokens = q.ne[0], latent.ne[1]
        kv = split(linear(block.weights, "attn_kv_b", latent, self.n_head * (n_nope + self.d_v)), self.n_head)
        rotated = gg.repeat(rotated, self.n_rot, self.n_head, tokens)
        key = gg.concat(of_heads(kv, 0, n_nope), rotated, dim=0)
        value = gg.cont(of_heads(kv, n_nope, self.d_v))
        q = self.queries(gg.concat(q, q_rotated, dim=0), block)
        return block.attend(q, key, value, scale=self.scale, mask=mask)


@architecture("glm-dsa")
class GlmDsa(DeepSeek2):
    """GLM 5 (arXiv:2602.15763): DeepSeek V3's block.

    In contexts of more than ``attention.indexer.top_k`` positions a token attends to as many, which an indexer chooses.
    Some blocks have none, and attend to those that the indexer before chose.  A session keeps the keys of indexers
    after what it keeps of all blocks.
    """

    unread = ("indexer.",)  # if no context is longer
    rope_mode_of_index: ClassVar[RopeMode] = RopeMode.NORMAL
    """As :attr:`rope_mode`, of indexers, which rotate the first elements."""
    norm_of_index = LayerNorm(1e-6)

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.experts = Experts.of(hp, gating=Gating.SIGMOID, normalized=False)
        self.n_chosen = hp.integer("attention.indexer.top_k")
        self.n_index, self.d_index = (hp.integer(f"attention.indexer.{each}") for each in ("head_count", "key_length"))
        assert self.rope is not None
        if self.rope.n_dims > self.d_index:
            raise hp.refused("attention.indexer.key_length", f"at least rope.dimension_count ({self.rope.n_dims})")
        self.indexes = self.indexes_of(hp)
        if not self.indexes[0]:
            raise hp.refused("attention.indexer.types", "true for the first block")

    def indexes_of(self, hp: Hyperparameters) -> list[bool]:
        """Whether each block has an indexer of its own."""
        found = hp.flags("attention.indexer.types", self.n_layer)
        if found is None:  # files of GLM 5.2 may lack it
            found = [self.n_ctx < 1 << 20 or number < 2 or number % 4 == 2 for number in range(self.n_layer)]
        return found

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        index = KeysValues(self.d_index, 0, self.d_index)
        return (*super().kinds, *(None,) * self.n_ahead, *(index if own else None for own in self.indexes))

    def cache_on(self, number: int) -> Device | None:
        return super().cache_on(number % (self.n_layer + self.n_ahead))

    def device_of(self, number: int) -> Device:
        return super().device_of(number % (self.n_layer + self.n_ahead))

    def attended(self, x: Tensor, short: Tensor, block: Block) -> Tensor | None:
        step, number = block.step, block.number
        if number >= self.n_layer or step.n_ctx <= self.n_chosen:
            return None
        if self.indexes[number]:
            step.shared["chosen"] = self._chosen(x, short, block)
        return step.shared["chosen"]

    def _chosen(self, x: Tensor, short: Tensor, block: Block) -> Tensor:
        """The mask of the positions that the indexer of a block chooses."""
        w, n, d = block.weights, self.n_index, self.d_index
        step, keys = block.step, self.n_layer + self.n_ahead + block.number
        assert self.rope is not None
        rope = replace(self.rope, mode=self.rope_mode_of_index)
        k = self.norm_of_index(w, "indexer.k_norm", linear(w, "indexer.attn_k", x, d))
        k = rope(gg.reshape(k, d, 1, k.ne[1]), block.positions)
        (held,) = step.stored(keys, gg.reshape(k, d, k.ne[2]))
        q = rope(split(linear(w, "indexer.attn_q_b", short, n * d), n), block.positions)
        weights = linear(w, "indexer.proj", x, n)
        k, mask = step.read(keys, held, d, 1), step.mask(0)
        return of_best(q, k, weights, mask, self.n_chosen) if k.ne[1] > self.n_chosen else mask


@architecture("deepseek32")
class DeepSeek32(GlmDsa):
    """DeepSeek V3.2 (arXiv:2512.02556): GLM 5 has its block; each block has an indexer of its own."""

    rope_mode_of_index = RopeMode.NEOX

    def indexes_of(self, hp: Hyperparameters) -> list[bool]:
        return [True] * self.n_layer


@architecture("mistral4")
class Mistral4(GrowingQueries, DeepSeek2):
    """Mistral Small 4 (2026): DeepSeek V2's block; queries may grow with the position."""

    grows = True


@architecture("plm")
class Plm(DeepSeek2):
    """PLM (arXiv:2503.12167): latent attention, and a network with squared ReLU and without a gate."""

    stretches = False

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        return plain(block.weights, x, self.n_ff[block.number], relu_squared)


@architecture("minicpm3")
class MiniCpm3(DeepSeek2):
    """MiniCPM 3 (OpenBMB, 2024): latent attention, with MiniCPM's factors on embeddings, residuals and logits."""

    rope_mode = RopeMode.NEOX
    stretches = False

    def embedding(self, inputs: Inputs) -> Tensor:
        return gg.scale(super().embedding(inputs), 12.0)

    def block(self, x: Tensor, block: Block) -> Tensor:
        w, factor = block.weights, 1.4 / math.sqrt(self.n_layer)
        a, x = block.outputs(self.attention(self.norm(w, "attn_norm", x), block), x)
        x = block.named("ffn_inp", x + a * factor)
        return x + block.named("ffn_out", self.feed_forward(self.norm(w, "ffn_norm", x), block)) * factor

    def scores(self, x: Tensor) -> Tensor:
        return super().scores(gg.scale(x, 256.0 / self.n_embd))
