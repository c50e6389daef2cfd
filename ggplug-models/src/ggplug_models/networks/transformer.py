"""Transformers: blocks of attention and a feed-forward network."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug.types import RopeMode
from ggplug_models.layers.attention import Heads, projections
from ggplug_models.layers.experts import Experts
from ggplug_models.layers.feed_forward import gated
from ggplug_models.layers.linear import linear
from ggplug_models.layers.rope import Rope
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.metadata.values import REQUIRED
from ggplug_models.networks.network import Block, Network
from ggplug_models.state.memory import KeysValues, Kind
from ggplug_models.weights.weights import Weights


class Transformer(Network):
    """Blocks of attention and a feed-forward network, each behind a norm and beside the residual stream.

    As they stand, the methods compute LLaMA's block (arXiv:2302.13971).  ``rope_mode``: which numbers of a head turn
    together, None: no rotation.  ``normalized_experts``: see :class:`~ggplug_models.layers.experts.Experts`.
    ``all_attend``: whether there are no blocks without heads of keys.
    """

    rope_mode: ClassVar[RopeMode | None] = RopeMode.NEOX
    normalized_experts: ClassVar[bool] = True
    all_attend: ClassVar[bool] = True

    def read(self, hp: Hyperparameters) -> None:
        """Heads, widths, experts and rotation; a family goes on with what it has of its own."""
        super().read(hp)
        self.heads = Heads.of(hp, self.n_layer, all_attend=self.all_attend)
        self.windows = [0] * self.n_layer
        """Of each block, how many positions it sees; 0: all."""
        self.scale = self.heads[0].d_k ** -0.5
        self.softcap = 0.0
        self.clamp = hp.number("attention.clamp_kqv", 0.0, at_least=0)
        self.experts = Experts.of(hp, normalized=self.normalized_experts)
        self.n_ff = hp.of_blocks("feed_forward_length", self.n_layer, REQUIRED if self.experts is None else 0)
        self.rope = None if self.rope_mode is None else Rope.of(hp, self.rope_mode, self.heads[0].d_k)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """Keys and values of each block, as far back as its window reaches."""
        return tuple(
            KeysValues(each.k_width, each.v_width, min(each.d_k, each.d_v), window)
            for each, window in zip(self.heads, self.windows, strict=True)
        )

    def slide(self, hp: Hyperparameters, every: int, *, default: int = 0, first: bool = False) -> None:
        """Gives blocks the file's window, but for one in ``every``, the last of them, or the ``first``.

        The file may say itself which blocks have one, or how many are counted together.  ``default``: the window if the
        file has none.  Raises ModelError.
        """
        window = hp.integer("attention.sliding_window", default, at_least=0)
        key = "attention.sliding_window_pattern"
        flags = hp.flags(key, self.n_layer)
        if flags is None:
            every = hp.integer(key, every, at_least=0)
            whole = 0 if first else every - 1
            flags = [not every or number % every != whole for number in range(self.n_layer)]
        self.windows = [window if flag else 0 for flag in flags]

    def block(self, x: Tensor, block: Block) -> Tensor:
        """x + attention, then that + the feed-forward network, each of the norm of what it is added to."""
        w = block.weights
        a, x = block.outputs(self.attention(self.norm(w, "attn_norm", x), block), x)
        x = x + a
        return x + self.feed_forward(self.norm(w, "ffn_norm", x), block)

    def attention(self, x: Tensor, block: Block) -> Tensor:
        """Heads of queries, keys and values, the first two rotated; what they mix goes through ``attn_output``."""
        w, heads = block.weights, self.heads[block.number]
        q, k, v = projections(w, x, heads, self.clamp)
        q, k = self.normed(q, k, w)
        q, k = self.rotated(q, block), self.rotated(k, block)
        q = self.queries(q, block)
        y = block.attend(q, k, v, scale=self.scale, softcap=self.softcap, sinks=self.sinks(w, heads))
        return linear(w, "attn_output", y, self.n_embd)

    def normed(self, q: Tensor, k: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
        """Queries and keys before they are rotated."""
        return q, k

    def rotated(self, x: Tensor, block: Block) -> Tensor:
        """Queries or keys, turned by their positions."""
        rope = self.rope_of(block)
        return x if rope is None else rope(x, block.positions, self.rope_factors(block))

    def queries(self, q: Tensor, block: Block) -> Tensor:
        """Queries after they are rotated."""
        return q

    def rope_of(self, block: Block) -> Rope | None:
        """How a block rotates; None: not at all."""
        return self.rope

    def is_long(self, n_ctx: int) -> bool:
        """Whether contexts of so many tokens are longer than those that the rotation was made for."""
        return self.rope is not None and n_ctx > self.rope.n_ctx_orig

    def rope_factors(self, block: Block) -> Tensor | None:
        """What the frequencies are divided by: llama 3's, or LongRoPE's for this context, where the file has them."""
        assert self.rope is not None
        count = self.rope.n_dims // 2
        if "rope_freqs.weight" in self.w:
            return self.w("rope_freqs.weight", count)
        of = "long" if self.is_long(block.inputs.n_ctx) else "short"
        return self.w.optional(f"rope_factors_{of}.weight", count)

    def gate(self, x: Tensor, up: Tensor) -> Tensor:
        """What the feed-forward network makes of its two products."""
        return gg.swiglu(x, up)

    def sinks(self, w: Weights, heads: Heads) -> Tensor | None:
        """A logit more for each head."""
        return None

    def feed_forward(self, x: Tensor, block: Block) -> Tensor:
        """A gated network, or experts where the model has them."""
        if self.experts is not None:
            return self.experts(block.weights, x, self.gate)
        return gated(block.weights, x, self.n_ff[block.number], self.gate)
