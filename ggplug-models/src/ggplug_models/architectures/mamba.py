"""Mamba 1 and 2 (arXiv:2312.00752, arXiv:2405.21060): state space models whose matrices depend on the token.

In files, ``ssm_a`` is -exp(A_log).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import ClassVar

import numpy as np

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.layers.linear import linear
from ggplug_models.layers.sequences import by_time, columns, convolved, heads
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.model import architecture
from ggplug_models.networks.network import Block
from ggplug_models.state.memory import Kind, State
from ggplug_models.state.steps import Step
from ggplug_models.weights.weights import Weights


class StateSpace(Decoder):
    """Blocks of a norm, a mixer with a recurrent state, and a residual connection."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.taps = hp.integer("ssm.conv_kernel", at_least=2)
        self.n_inner = hp.integer("ssm.inner_size")
        self.n_state = hp.integer("ssm.state_size")
        self.dt_rank = hp.integer("ssm.time_step_rank")
        self.n_conv = self.n_inner

    @cached_property
    def state_kind(self) -> State:
        """The last columns before the convolution, and the states of the state space model."""
        return State(((self.taps - 1) * self.n_conv, self.n_state * self.n_inner))

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        return (self.state_kind,) * self.n_layer

    def block(self, x: Tensor, block: Block) -> Tensor:
        y = block.named("mamba_out", self.mixer(self.norm(block.weights, "attn_norm", x), block))
        y, x = block.outputs(y, x)
        return y + x

    def mixer(self, x: Tensor, block: Block) -> Tensor:
        """The output of the mixer, which is added to the residual: [n_embd, T] for x [n_embd, T]."""
        raise NotImplementedError

    def convolved(self, x: Tensor, w: Weights, state: Tensor) -> tuple[Tensor, Tensor]:
        """silu(convolution over time + bias, if any), and the new state of the convolution."""
        y, after = convolved(x, w("ssm_conv1d.weight", self.taps, self.n_conv), state)
        bias = w.optional("ssm_conv1d.bias", self.n_conv)
        return gg.silu(y if bias is None else y + bias), after

    def scan(self, state: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, step: Step) -> list[Tensor]:
        """The output of the state space model, [D, H, t, n_seq] like x, and its new state."""
        d, n_head, count, n_seq = x.ne
        which = step.input("states", gg.I32, (n_seq,), lambda _: np.arange(n_seq))
        both = gg.ssm_scan(gg.reshape(state, self.n_state, d, n_head, n_seq), x, dt, a, b, c, which)
        y = gg.reshape(gg.view(both, x.size), d, n_head, count, n_seq)
        return [
            y,
            gg.view(both, self.n_state * self.n_inner, n_seq, nb=(4 * self.n_state * self.n_inner,), offset=4 * x.size),
        ]


@architecture("mamba")
class Mamba(StateSpace):
    """Mamba 1: each channel has its own state; B, C and the step size are computed by one product."""

    needs: ClassVar[Collection[str]] = ("ssm_conv1d.bias", "ssm_dt.bias")

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.norms_parts = hp.boolean("ssm.dt_b_c_rms", False)

    def mixer(self, x: Tensor, block: Block) -> Tensor:
        w, step, n, k = block.weights, block.step, self.n_inner, self.n_state
        n_seq, conv_state, state = step.shape.n_seq, *step.state(block.number)
        xz = by_time(linear(w, "ssm_in", x, 2 * n), n_seq)
        x, conv_state = self.convolved(columns(xz, 0, n), w, conv_state)
        found = linear(w, "ssm_x", x, self.dt_rank + 2 * k)
        dt = self.part(w, "ssm_dt_norm", columns(found, 0, self.dt_rank))
        b = self.part(w, "ssm_b_norm", columns(found, self.dt_rank, k))
        c = self.part(w, "ssm_c_norm", columns(found, self.dt_rank + k, k))
        dt = linear(w, "ssm_dt", dt, n)
        b, c = (gg.reshape(each, k, 1, *each.ne[1:3]) for each in (b, c))
        of_heads = gg.reshape(x, 1, *x.ne[:3])
        y, state = self.scan(state, of_heads, dt, w("ssm_a", k, n), b, c, step)
        step.remember(block.number, conv_state, state)
        y = gg.reshape(y, *x.ne[:3]) + x * w("ssm_d", n)
        y = gg.swiglu(gg.cont(columns(xz, n, n)), y)
        return linear(w, "ssm_out", gg.reshape(y, n, step.n_tokens), self.n_embd)

    def part(self, w: Weights, norm: str, x: Tensor) -> Tensor:
        """The step size, B or C: normalised if the file says so, or has weights for it."""
        if f"{norm}.weight" in w:
            return self.norm(w, norm, x)
        return gg.rms_norm(x, eps=self.norm.eps) if self.norms_parts else gg.cont(x)


@architecture("mamba2")
class Mamba2(StateSpace):
    """Mamba 2: the channels of a head share a decay, groups of heads share B and C, which are convolved as well."""

    needs: ClassVar[Collection[str]] = ("ssm_conv1d.bias", "ssm_norm.weight")

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self.n_head = self.dt_rank
        self.n_group = hp.integer("ssm.group_count")
        if self.n_inner % self.n_head:
            raise hp.refused("ssm.inner_size", f"a multiple of {hp.prefix}ssm.time_step_rank ({self.n_head})")
        if self.n_head % self.n_group:
            raise hp.refused("ssm.group_count", f"a divisor of {hp.prefix}ssm.time_step_rank ({self.n_head})")
        self.n_conv = self.n_inner + 2 * self.n_group * self.n_state

    def mixer(self, x: Tensor, block: Block) -> Tensor:
        w, step, n, k, groups = block.weights, block.step, self.n_inner, self.n_state, self.n_group
        n_seq, conv_state, state = step.shape.n_seq, *step.state(block.number)
        found = by_time(linear(w, "ssm_in", x, n + self.n_conv + self.n_head), n_seq)
        dt = gg.cont(columns(found, n + self.n_conv, self.n_head)) + w("ssm_dt.bias", self.n_head)
        xbc, conv_state = self.convolved(columns(found, n, self.n_conv), w, conv_state)
        x = heads(xbc, 0, n // self.n_head, self.n_head)
        b, c = (heads(xbc, n + i * groups * k, k, groups) for i in (0, 1))
        y, state = self.scan(state, x, dt, w("ssm_a", 1, self.n_head), b, c, step)
        step.remember(block.number, conv_state, state)
        y = y + x * w("ssm_d", 1, self.n_head)
        z = gg.cont(columns(found, 0, n))
        y = gg.swiglu(z, gg.reshape(y, *z.ne[:3]))
        if "ssm_norm.weight" in w:
            y = self.norm(w, "ssm_norm", gg.reshape(y, n // groups, groups, step.n_tokens), n // groups, groups)
        return linear(w, "ssm_out", gg.reshape(y, n, step.n_tokens), self.n_embd)
