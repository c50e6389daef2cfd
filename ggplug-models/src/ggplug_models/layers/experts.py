"""Mixtures of experts: a router chooses the feed-forward networks (experts) that compute each token."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.layers.feed_forward import Activation, Gate, activated, gated, plain
from ggplug_models.layers.linear import linear
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.weights.weights import Weights

LEAST_SUM = 2.0**-14
"""Lower limit of the sum that expert weights are divided by: the smallest normal number of F16."""


class Gating(enum.IntEnum):
    """How expert weights are computed from the router's scores (llama.cpp's ``expert_gating_func``)."""

    SOFTMAX = 1
    SIGMOID = 2
    SOFTMAX_OF_CHOSEN = 3
    SQRT_SOFTPLUS = 4


def gating_of(hp: Hyperparameters, default: Gating) -> Gating:
    """The gating that the file names; ``default`` if it names none.  Raises ModelError."""
    found = hp.integer("expert_gating_func", default, at_least=0) or default
    if found not in set(Gating):
        raise hp.refused(
            "expert_gating_func", "1 (softmax), 2 (sigmoid), 3 (softmax of the chosen ones) or 4 (root of softplus)"
        )
    return Gating(found)


@dataclass(frozen=True)
class Experts:
    """A router and its experts (arXiv:2101.03961).

    Each token is computed by ``n_used`` of ``n_expert`` experts of width ``n_ff``.  ``normalized``: whether the expert
    weights are divided by their sum; ``scale``: multiplies them after that.  ``n_groups``: experts are chosen from the
    best ``n_groups_used`` of this many groups only, whose score is the sum of their best ``n_of_group`` experts
    (arXiv:2412.19437; DeepSeek V2's is that of the best one).  ``n_ff_shared``: the width of a network that
    computes all tokens, whose result is added (arXiv:2401.06066).  ``n_dense``: the first blocks have no experts.
    ``activation``: of experts without a gate; None: all have one.  ``weighs_inputs``: whether the expert weights
    multiply what experts read, and not their results.  ``suffix``: with what the names of the experts' weights end.
    """

    n_expert: int
    n_used: int
    n_ff: int
    gating: Gating = Gating.SOFTMAX
    normalized: bool = True
    scale: float = 1.0
    n_groups: int = 1
    n_groups_used: int = 1
    n_of_group: int = 2
    n_ff_shared: int = 0
    n_dense: int = 0
    activation: Activation | None = None
    weighs_inputs: bool = False
    suffix: str = "_exps"

    @classmethod
    def of(
        cls,
        hp: Hyperparameters,
        *,
        n_ff: int | None = None,
        gating: Gating = Gating.SOFTMAX,
        normalized: bool = True,
    ) -> Experts | None:
        """The experts that the metadata describes; None if the model has none.

        ``n_ff``: the width of experts if the file does not say it.  ``gating``, ``normalized``: those of the family.
        Raises ModelError.
        """
        n_expert = hp.integer("expert_count", 0, at_least=0)
        if not n_expert:
            return None
        n_groups = hp.integer("expert_group_count", 0, at_least=0) or 1
        n_of_group = hp.integer("expert_group_best_count", 2)
        if n_expert % n_groups or (n_groups > 1 and n_expert // n_groups < n_of_group):
            wanted = f"a divisor of {hp.prefix}expert_count ({n_expert}), with {n_of_group} experts or more in a group"
            raise hp.refused("expert_group_count", wanted)
        n_groups_used = n_groups
        if n_groups > 1:
            n_groups_used = hp.integer("expert_group_used_count", n_groups, at_most=n_groups)
        most = n_groups_used * (n_expert // n_groups)
        width = hp.integer("expert_feed_forward_length", n_ff)
        if width is None:
            width = hp.integer("feed_forward_length")
        shared = hp.integer("expert_shared_count", 0, at_least=0) * width
        return cls(
            n_expert,
            hp.integer("expert_used_count", at_most=most),
            width,
            gating_of(hp, gating),
            hp.boolean("expert_weights_norm", normalized),
            scale=hp.number("expert_weights_scale", 1.0) or 1.0,
            n_groups=n_groups,
            n_groups_used=n_groups_used,
            n_of_group=n_of_group,
            n_ff_shared=hp.integer("expert_shared_feed_forward_length", shared, at_least=0),
            n_dense=hp.integer("leading_dense_block_count", 0, at_least=0),
        )

    @classmethod
    def needed(cls, hp: Hyperparameters, *, gating: Gating = Gating.SOFTMAX, normalized: bool = True) -> Experts:
        """As :meth:`of`, of a family whose models all have experts.  Raises ModelError if this one has none."""
        found = cls.of(hp, gating=gating, normalized=normalized)
        if found is None:
            raise hp.refused("expert_count", "an integer of at least 1")
        return found

    def __call__(self, weights: Weights, x: Tensor, gate: Gate = gg.swiglu, routed: Tensor | None = None) -> Tensor:
        """The weighted sum of the chosen experts' results: [n, T] for x [n, T].

        ``routed``: what the router reads, if not ``x``.
        """
        y = self.chosen(weights, x, gate, x if routed is None else routed)
        return y + self.shared(weights, x, gate) if self.n_ff_shared else y

    def chosen(self, weights: Weights, x: Tensor, gate: Gate, routed: Tensor, numbers: Tensor | None = None) -> Tensor:
        """The weighted sum of the results of the chosen experts, without the shared one: [n, T].

        ``numbers``: see :meth:`route`.
        """
        n, tokens = x.ne[0], x.ne[1]
        chosen, expert_weights = self.route(weights, routed, numbers)
        columns = gg.reshape(x, n, 1, tokens)
        if self.weighs_inputs:
            columns = gg.repeat(columns, n, self.n_used, tokens) * expert_weights
        of = self.suffix
        if f"ffn_gate_up{of}.weight" in weights:
            both = _linear(weights, f"ffn_gate_up{of}", columns, chosen, 2 * self.n_ff, self.n_expert)
            h = gate(*_halves(both))
        else:
            up = _linear(weights, f"ffn_up{of}", columns, chosen, self.n_ff, self.n_expert)
            if self.activation is None:
                h = gate(_linear(weights, f"ffn_gate{of}", columns, chosen, self.n_ff, self.n_expert), up)
            else:
                h = self.activation(up)
        y = _linear(weights, f"ffn_down{of}", activated(weights, h, "moe_"), chosen, n, self.n_expert)
        y = weights.named("ffn_moe_weighted", y if self.weighs_inputs else y * expert_weights)
        total = _of_expert(y, 0)
        for expert in range(1, self.n_used):
            total = total + _of_expert(y, expert)
        return weights.named("ffn_moe_out", gg.cont(total) if self.n_used == 1 else total)

    def shared(self, weights: Weights, x: Tensor, gate: Gate) -> Tensor:
        """The result of the shared expert, multiplied by a sigmoid if the file has weights for it: [n, T]."""
        if self.activation is None:
            y = gated(weights, x, self.n_ff_shared, gate, of="_shexp")
        else:
            y = plain(weights, x, self.n_ff_shared, self.activation, of="_shexp")
        if "ffn_gate_inp_shexp.weight" in weights:
            y = y * gg.sigmoid(linear(weights, "ffn_gate_inp_shexp", x, 1))
        return y

    def logits(self, weights: Weights, x: Tensor) -> Tensor:
        """The router's scores, before the softmax or sigmoid: [n_expert, T]."""
        return linear(weights, "ffn_gate_inp", x, self.n_expert)

    def route(self, weights: Weights, x: Tensor, numbers: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The chosen experts of each token, I32 [n_used, T], and their weights, F32 [1, n_used, T].

        ``numbers``: the experts if the router does not choose them, but only weighs them.
        """
        scores = weights.named("ffn_moe_logits", self.logits(weights, x))
        if self.gating is Gating.SOFTMAX:
            scores = weights.named("ffn_moe_probs", gg.soft_max(scores))
        elif self.gating is Gating.SIGMOID:
            scores = weights.named("ffn_moe_probs", gg.sigmoid(scores))
        elif self.gating is Gating.SQRT_SOFTPLUS:
            scores = weights.named("ffn_moe_probs", gg.sqrt(gg.softplus(scores)))
        chosen = self._best(weights, scores) if numbers is None else numbers
        return chosen, self.weighted(weights, scores, chosen)

    def weighted(self, weights: Weights, scores: Tensor, chosen: Tensor) -> Tensor:
        """The weights of the chosen experts, F32 [1, n_used, T], from scores [any, T]."""
        n_scores, tokens = scores.ne[:2]
        expert_weights = gg.get_rows(gg.reshape(scores, 1, n_scores, tokens), chosen)
        flat = gg.reshape(expert_weights, self.n_used, tokens)
        if self.gating is Gating.SOFTMAX_OF_CHOSEN:
            flat = gg.soft_max(flat)
        if self.normalized:
            flat = flat / gg.clamp(gg.sum_rows(flat), LEAST_SUM, math.inf)
        if self.scale != 1:
            flat = flat * self.scale
        return weights.named("ffn_moe_weights", gg.reshape(flat, 1, self.n_used, tokens))

    def _best(self, weights: Weights, scores: Tensor) -> Tensor:
        """The experts with the largest scores of each token, I32 [n_used, T]."""
        bias = weights.optional("exp_probs_b.bias", self.n_expert)
        if bias is None:  # Hunyuan's name
            bias = weights.optional("exp_probs_b", self.n_expert)
        ranks = scores if bias is None else scores + bias  # the bias counts for the choice, not for the weights
        if self.n_groups > 1:
            ranks = self._of_best_groups(ranks)
        return weights.named("ffn_moe_topk", gg.argsort_top_k(ranks, self.n_used))

    def _of_best_groups(self, ranks: Tensor) -> Tensor:
        """The ranks, but -inf outside of the groups whose best experts have the largest sums."""
        size, tokens = self.n_expert // self.n_groups, ranks.ne[1]
        groups = gg.reshape(ranks, size, self.n_groups, tokens)
        best = gg.argsort_top_k(groups, self.n_of_group)
        best = gg.get_rows(gg.reshape(groups, 1, size, self.n_groups, tokens), best)  # [1, n_of_group, n_groups, T]
        best = gg.reshape(best, self.n_of_group, self.n_groups, tokens)
        sums = gg.reshape(gg.sum_rows(best), self.n_groups, tokens)
        kept = gg.argsort_top_k(sums, self.n_groups_used)
        ranks = gg.set_rows(gg.fill(groups, -math.inf), gg.get_rows(groups, kept), kept)
        return gg.reshape(ranks, self.n_expert, tokens)


def _linear(weights: Weights, name: str, x: Tensor, chosen: Tensor, n_out: int, n_expert: int) -> Tensor:
    y = gg.mul_mat_id(weights(f"{name}.weight", x.ne[0], n_out, n_expert), x, chosen)
    scale = weights.optional(f"{name}.scale", n_expert)
    if scale is not None:
        y = y * gg.get_rows(gg.repeat(gg.reshape(scale, 1, n_expert), 1, n_expert, chosen.ne[1]), chosen)
    bias = weights.optional(f"{name}.bias", n_out, n_expert)
    called = f"ffn_moe_{name.removeprefix('ffn_').removesuffix('_exps')}"
    return weights.named(called, y if bias is None else gg.add_id(y, bias, chosen))


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the second half of [2n, U, T] along dimension 0, each [n, U, T]."""
    n = x.ne[0] // 2
    first, second = (gg.view(x, n, *x.ne[1:3], nb=x.nb[1:3], offset=half * n * x.nb[0]) for half in (0, 1))
    return gg.cont(first), gg.cont(second)


def _of_expert(y: Tensor, number: int) -> Tensor:
    """The results of the expert with this number among the chosen ones: a view [n, T] of [n, U, T]."""
    return gg.view(y, y.ne[0], y.ne[2], nb=(y.nb[2],), offset=number * y.nb[1])
