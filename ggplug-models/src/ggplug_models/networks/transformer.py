"""Transformers: blocks of attention and a feed-forward network."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.layers.attention import Heads, projections
from ggplug_models.layers.experts import Experts
from ggplug_models.layers.feed_forward import gated
from ggplug_models.layers.linear import linear
from ggplug_models.layers.rope import Rope, frequency_base
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.metadata.values import REQUIRED
from ggplug_models.networks.network import Block, Network
from ggplug_models.state.memory import KeysValues, Kind
from ggplug_models.weights.weights import Weights


class Transformer(Network):
    """Blocks of attention and a feed-forward network, with norms and residual connections.

    The methods compute LLaMA's block (arXiv:2302.13971); families override what differs.
    """

    rope_mode: ClassVar[RopeMode | None] = RopeMode.NEOX
    """Which elements of a head are rotated as a pair; None: no rotation."""
    normalized_experts: ClassVar[bool] = True
    """Whether the weights of the chosen experts are divided by their sum, where the file does not say it."""
    guesses: ClassVar[bool] = True
    """Whether blocks after the last one guess further tokens as :class:`.NextBlock` computes it."""
    all_attend: ClassVar[bool] = True
    """Whether all blocks have attention."""
    feed_forward_norm: ClassVar[str] = "ffn_norm"
    """The name of the norm before the feed-forward network."""

    n_ahead: int
    """Number of blocks after the last one that guess further tokens (:mod:`.heads`)."""
    windows: list[int]
    """The sliding window of each block, in positions; 0: full attention.  As other lists, with those after the last."""

    def read(self, hp: Hyperparameters) -> None:
        """Reads the numbers of heads, the widths, and the parameters of experts and RoPE; families read more."""
        super().read(hp)
        count = self.n_layer
        self.n_ahead = hp.integer("nextn_predict_layers", 0, at_least=0, at_most=count - 1)
        self.n_layer -= self.n_ahead
        self.heads = Heads.of(hp, count, all_attend=self.all_attend)
        self.windows = [0] * count
        self.scale = self.heads[0].d_k ** -0.5
        self.softcap = self.max_bias = 0.0
        self.clamp = hp.number("attention.clamp_kqv", 0.0, at_least=0)
        self.experts = Experts.of(hp, normalized=self.normalized_experts)
        width = REQUIRED if self.experts is None else 0
        self.n_ff = hp.of_blocks("feed_forward_length", count, width, at_least=int(self.all_attend))
        self.rope = None if self.rope_mode is None else Rope.of(hp, self.rope_mode, self.heads[0].d_k)
        self.local_rope: Rope | None = None
        """The rotation of blocks with a window, if it differs."""

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(map(self.kind, range(self.n_layer)))

    def kind(self, number: int) -> Kind:
        """The keys and values of a block, within its window."""
        each = self.heads[number]
        return KeysValues(each.k_width, each.v_width, min(each.d_k, each.d_v), self.windows[number])

    def slide(self, hp: Hyperparameters, every: int, *, default: int = 0, first: bool = False) -> None:
        """Sets the sliding window of the file for all blocks, except for the last one of every ``every``.

        ``first``: the first one is excepted, not the last.  The file may list the blocks with a window, or have another
        ``every``.  ``default``: the window if the file has none.  Raises ModelError.
        """
        window = hp.integer("attention.sliding_window", default, at_least=0)
        key = "attention.sliding_window_pattern"
        flags = hp.flags(key, len(self.windows))
        if flags is None:
            every = hp.integer(key, every, at_least=0)
            whole = 0 if first else every - 1
            flags = [not every or number % every != whole for number in range(len(self.windows))]
        self.windows = [window if flag else 0 for flag in flags]

    def slide_with_rope(self, hp: Hyperparameters, every: int, local: Rope | None = None, **how: Any) -> None:
        """As :meth:`slide`; blocks with a window have the base that the file has for them, by default ``local``'s."""
        self.slide(hp, every, **how)
        local = local or self.rope
        assert local is not None
        self.local_rope = replace(local, base=frequency_base(hp, "rope.freq_base_swa", local.base))

    def block(self, x: Tensor, block: Block) -> Tensor:
        """Adds attention, then the feed-forward network to ``x``; each reads the norm of what it is added to."""
        w = block.weights
        a, x = block.outputs(self.attention(self.norm(w, "attn_norm", x), block), x)
        x = block.named("ffn_inp", x + a)
        return x + block.named("ffn_out", self.feed_forward(self.norm(w, self.feed_forward_norm, x), block))

    def sandwich(self, x: Tensor, block: Block) -> Tensor:
        """The block of families with norms before and after attention and the feed-forward network."""
        w = block.weights
        a, x = block.outputs(self.attention(self.norm(w, "attn_norm", x), block), x)
        x = block.named("ffn_inp", x + self.norm(w, "post_attention_norm", a))
        y = block.named("ffn_out", self.feed_forward(self.norm(w, "ffn_norm", x), block))
        return x + self.norm(w, "post_ffw_norm", y)

    def attention(self, x: Tensor, block: Block) -> Tensor:
        """Attention of ``x`` [n_embd, T], with rotated queries and keys, multiplied by ``attn_output``: [n_embd, T]."""
        w, heads = block.weights, self.heads[block.number]
        q, k, v = projections(w, x, heads, self.clamp)
        q, k = self.positioned(q, k, block)
        q = self.queries(q, block)
        how = {"softcap": self.softcap, "sinks": self.sinks(w, heads), "max_bias": self.max_bias}
        y = self.joined_heads(block.attend(q, k, v, scale=self.scale, **how), block, x)
        return block.named("attn_out", linear(w, "attn_output", y, self.n_embd))

    def joined_heads(self, y: Tensor, block: Block, x: Tensor) -> Tensor:
        """Hook for families that change the results ``y`` [d_v n_head, T] of attention of ``x``; returns them."""
        return y

    def positioned(self, q: Tensor, k: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        """Queries and keys, normalised and rotated."""
        q, k = self.normed(q, k, block.weights)
        return self.rotated(q, block), self.rotated(k, block)

    def normed(self, q: Tensor, k: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
        """Hook for families that normalise queries and keys before the rotation; returns them."""
        return q, k

    def rotated(self, x: Tensor, block: Block) -> Tensor:
        """Queries or keys, rotated by their positions."""
        rope = self.rope_of(block)
        return x if rope is None else rope(x, block.positions, self.rope_factors(block))

    def queries(self, q: Tensor, block: Block) -> Tensor:
        """Hook for families that change queries after the rotation; returns them."""
        return q

    def rope_of(self, block: Block) -> Rope | None:
        """The rotation of a block; None: no rotation."""
        return self.local_rope if self.local_rope is not None and self.windows[block.number] else self.rope

    def is_long(self, n_ctx: int) -> bool:
        """Whether ``n_ctx`` is longer than the context that RoPE was trained for."""
        return self.rope is not None and n_ctx > self.rope.n_ctx_orig

    def rope_factors(self, block: Block) -> Tensor | None:
        """The divisors of the frequencies if the file has any: llama 3's, or LongRoPE's for this context length."""
        assert self.rope is not None
        count = self.rope.n_dims // 2
        if "rope_freqs.weight" in self.w:
            return self.w("rope_freqs.weight", count)
        names = [f"rope_factors_{of}.weight" for of in ("short", "long")]
        if not any(name in self.w for name in names):
            return None
        short, long = (self.w(name, count) for name in names)
        return long if self.is_long(block.inputs.n_ctx) else short

    def gate(self, x: Tensor, up: Tensor) -> Tensor:
        """The gate of the feed-forward network: activation(x) * up."""
        return gg.swiglu(x, up)

    def sinks(self, w: Weights, heads: Heads) -> Tensor | None:
        """The attention sinks of a block: an additional logit for each head; None: none."""
        return None

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        """A gated network, or experts if the block has them."""
        if self.experts is not None and block.number >= self.experts.n_dense:
            return self.experts(block.weights, x, self.gate)
        return gated(block.weights, x, self.n_ff[block.number], self.gate)
