"""Recurrent layers, whose state is passed from token to token: state space models, linear attention.

Results hold the layer's output for each token, followed by the final states.
"""

from __future__ import annotations

import numpy as np

from ggplug.errors import ParameterError
from ggplug.ops.base import Array, Cost, Indexes, Op, builder, misfit, mismatch, require
from ggplug.tensor import Spec, Tensor
from ggplug.types import F32, I32

__all__ = [
    "GatedDeltaNet",
    "GatedLinearAttn",
    "RwkvWkv6",
    "RwkvWkv7",
    "SsmConv",
    "SsmScan",
    "gated_delta_net",
    "gated_linear_attn",
    "rwkv_wkv6",
    "rwkv_wkv7",
    "ssm_conv",
    "ssm_scan",
]


def _require_f32(op: Op, *tensors: Tensor) -> None:
    if any(tensor.type is not F32 for tensor in tensors):
        mismatch(op, "takes f32", *tensors)


def _check_snapshots(op: Op, count: int) -> None:
    if not 1 <= count < 1 << 31:
        raise ParameterError(f"{op.name}: snapshots must be 1 or more, got {count}", op=op, got=count)


class SsmConv(Op):
    """y[c, t, s] = the sum over k of x[t + k, c, s] kernel[k, c]  (ggml_ssm_conv).

    x: F32 [T + K - 1, C, S].  kernel: F32 [K, C].  Rows of both are contiguous.  Result: F32 [C, T, S].
    """

    def result(self, x: Tensor, kernel: Tensor) -> Spec:
        _require_f32(self, x, kernel)
        if kernel.ne[2:] != (1, 1) or x.ne[3] != 1 or x.ne[1] != kernel.ne[1] or x.ne[0] < kernel.ne[0]:
            misfit(self, "kernel must be [K, C] and x [T + K - 1, C, S]", x, kernel)
        require(x.nb[0] == 4 == kernel.nb[0], self, "rows must be contiguous", x, kernel)
        return Spec(F32, (x.ne[1], x.ne[0] - kernel.ne[0] + 1, x.ne[2], 1), 3)

    def reference(self, x: Array, kernel: Array) -> Array:
        taps = kernel.shape[3]
        count = x.shape[3] - taps + 1
        y = sum((x[0, :, :, k : k + count] * kernel[0, 0, :, k, np.newaxis] for k in range(taps)), np.zeros(()))
        return np.broadcast_to(y, (x.shape[1], x.shape[2], count)).swapaxes(1, 2)[np.newaxis]

    def cost(self, node: Tensor) -> Cost:
        kernel = node.src[1]
        return Cost(2 * (0 if kernel is None else kernel.ne[0]) * node.size, super().cost(node).bytes)


class SsmScan(Op):
    """h[:, d, t] = e**(dt A) h[:, d, t-1] + dt B x[d, t], y[d, t] = C . h[:, d, t], dt = softplus(dt)  (ggml_ssm_scan).

    s: F32 [n, D, H, R], initial states, contiguous.  ids: I32 [S], the number of each sequence's initial state.  x: F32
    [D, H, T, S].  dt: F32 [H, T, S], contiguous.  a: F32 [1, H] or [n, H], contiguous.  b and c: F32 [n, G, T, S], H a
    multiple of G: consecutive heads share a group.  Rows of x, b and c are contiguous, and so are the heads or groups
    of a token. Result: F32, a vector: y [D, H, T, S], followed by states [n, D, H, S, ``snapshots``], those after the
    last token first.  Snapshots before the first token are 0.  With several snapshots ``a`` is [1, H].
    A sequence whose id is out of range begins with a state of 0, and a ComputeError is raised.
    """

    indexes = Indexes(ids=6, of=0, dim=3)
    snapshots: int = 1

    def validate(self) -> None:
        _check_snapshots(self, self.snapshots)

    def result(self, s: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, ids: Tensor) -> Spec:
        sources = (s, x, dt, a, b, c, ids)
        if any(tensor.type is not F32 for tensor in sources[:6]) or ids.type is not I32:
            mismatch(self, "takes f32, and ids of i32", *sources)
        size, dim, heads = s.ne[:3]
        tokens, sequences = x.ne[2:]
        if x.ne[:2] != (dim, heads) or dt.ne != (heads, tokens, sequences, 1) or ids.ne != (sequences, 1, 1, 1):
            misfit(self, "for s [n, D, H, R] x must be [D, H, T, S], dt [H, T, S] and ids [S]", *sources)
        if a.ne not in ((1, heads, 1, 1), (size, heads, 1, 1)) or (self.snapshots > 1 and a.ne[0] != 1):
            misfit(self, "a must be [1, H], or [n, H] with one snapshot", *sources)
        if b.ne != c.ne or b.ne != (size, b.ne[1], tokens, sequences) or not b.ne[1] or heads % b.ne[1]:
            misfit(self, "b and c must be [n, G, T, S] with H a multiple of G", *sources)
        if not all(t.is_contiguous() for t in (s, dt, a)) or ids.nb[0] != 4:
            misfit(self, "s, dt, a and ids must be contiguous", *sources)
        if any(t.nb[0] != 4 or (t.ne[1] > 1 and t.nb[1] != 4 * t.ne[0]) for t in (x, b, c)):
            misfit(self, "in x, b and c the heads of a token must be contiguous", *sources)
        return Spec(F32, (x.size + self.snapshots * size * dim * heads * sequences, 1, 1, 1), 1)

    def reference(self, s: Array, x: Array, dt: Array, a: Array, b: Array, c: Array, ids: Array) -> Array:
        sequences, tokens, heads, _ = x.shape
        chosen = ids.reshape(-1)
        inside = (chosen >= 0) & (chosen < s.shape[0])
        h = np.zeros((sequences, *s.shape[1:]))
        h[inside] = s[chosen[inside]]
        y = np.zeros(x.shape)
        kept = np.zeros((self.snapshots, *h.shape))
        step = np.logaddexp(0, dt[0])
        groups = np.arange(heads) // (heads // b.shape[2])
        for t in range(tokens):
            now = step[:, t, :, np.newaxis, np.newaxis]  # [S, H, 1, 1]
            into = b[:, t][:, groups, np.newaxis] * x[:, t, :, :, np.newaxis] * now
            h = h * np.exp(now * a[0, 0][:, np.newaxis]) + into
            y[:, t] = (h * c[:, t][:, groups, np.newaxis]).sum(axis=-1)
            if tokens - 1 - t < self.snapshots:
                kept[tokens - 1 - t] = h
        return np.concatenate([y.reshape(-1), kept.reshape(-1)])[np.newaxis, np.newaxis, np.newaxis]

    def cost(self, node: Tensor) -> Cost:
        s, x = node.src[0], node.src[1]
        return Cost(0 if s is None or x is None else 6 * s.ne[0] * x.size, super().cost(node).bytes)


class _Matrices(Op, abstract=True):
    """Base of ops in which the state of a head is a matrix of S by S numbers.

    Sources are F32 and contiguous: [S, H, T] except the state, [S S H, N] for N sequences with equal numbers of tokens.
    Result: F32 [S H, T + S N]: the outputs, followed by the states.
    """

    def _result(self, like: Tensor, state: Tensor, *others: Tensor, per_head: Tensor | None = None) -> Spec:
        sources = tuple(t for t in (like, *others, per_head, state) if t is not None)
        _require_f32(self, *sources)
        if not all(t.is_contiguous() for t in sources):
            misfit(self, "all sources must be contiguous", *sources)
        size, heads, tokens = like.ne[:3]
        if like.ne[3] != 1 or any(t.ne != like.ne for t in others):
            misfit(self, "all sources but the state must have the same extents, [S, H, T]", *sources)
        if per_head is not None and per_head.size != size * heads:
            misfit(self, f"{self.sources[3]} must hold S H = {size * heads} numbers", *sources)
        sequences = state.ne[1]
        if not sequences or tokens % sequences or state.size != size * size * heads * sequences:
            misfit(self, "the state must be [S S H, N], and T a multiple of N", *sources)
        return Spec(F32, (size * heads, tokens + size * sequences, 1, 1), 2)

    def cost(self, node: Tensor) -> Cost:
        x = node.src[0]
        return Cost(0 if x is None else 6 * x.ne[0] * x.size, super().cost(node).bytes)


def _by_sequence(state: Array, *sources: Array) -> tuple[Array, list[Array]]:
    """The states [N, H, S, S], and sources as [N, T / N, H, S]."""
    sequences, (_, tokens, heads, size) = state.shape[2], sources[0].shape
    split = [x.reshape(sequences, tokens // sequences, heads, size) for x in sources]
    return state.reshape(sequences, heads, size, size), split


def _joined(answers: list[Array], state: Array) -> Array:
    width = state.shape[1] * state.shape[2]
    y = np.stack(answers, axis=1).reshape(-1, width) if answers else np.zeros((0, width))
    return np.concatenate([y, state.reshape(-1, width)])[np.newaxis, np.newaxis]


class RwkvWkv6(_Matrices):
    """y_j = r_i (s_ij + tf_i k_i v_j), then s_ij = td_i s_ij + k_i v_j, for each token; sums over i  (ggml_rwkv_wkv6).

    k, v, r, td: F32 [S, H, T], contiguous.  tf: F32 [S, H].  state: F32 [S S H, N], T a multiple of N; j is the
    fastest index.  Result: F32 [S H, T + S N]: y, followed by the states.
    """

    name = "rwkv_wkv6"

    def result(self, k: Tensor, v: Tensor, r: Tensor, tf: Tensor, td: Tensor, state: Tensor) -> Spec:
        return self._result(k, state, v, r, td, per_head=tf)

    def reference(self, k: Array, v: Array, r: Array, tf: Array, td: Array, state: Array) -> Array:
        s, (k, v, r, td) = _by_sequence(state, k, v, r, td)
        first = tf.reshape(1, *k.shape[2:])
        y = []
        for t in range(k.shape[1]):
            kv = k[:, t, :, :, np.newaxis] * v[:, t, :, np.newaxis]
            y.append(((s + first[..., np.newaxis] * kv) * r[:, t, :, :, np.newaxis]).sum(axis=2))
            s = s * td[:, t, :, :, np.newaxis] + kv
        return _joined(y, s)


class RwkvWkv7(_Matrices):
    """s_ij = w_j s_ij + v_i k_j + b_j sum_l(a_l s_il), then y_i = sum_j(r_j s_ij), for each token  (ggml_rwkv_wkv7).

    r, w, k, v, a, b: F32 [S, H, T], contiguous.  state: F32 [S S H, N], T a multiple of N; j is the fastest index.
    Result: F32 [S H, T + S N]: y, followed by the states.
    """

    name = "rwkv_wkv7"

    def result(self, r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor) -> Spec:
        return self._result(r, state, w, k, v, a, b)

    def reference(self, r: Array, w: Array, k: Array, v: Array, a: Array, b: Array, state: Array) -> Array:
        s, (r, w, k, v, a, b) = _by_sequence(state, r, w, k, v, a, b)
        y = []
        for t in range(k.shape[1]):
            along = (s * a[:, t, :, np.newaxis]).sum(axis=-1, keepdims=True)
            s = s * w[:, t, :, np.newaxis] + v[:, t, :, :, np.newaxis] * k[:, t, :, np.newaxis]
            s = s + along * b[:, t, :, np.newaxis]
            y.append((s * r[:, t, :, np.newaxis]).sum(axis=-1))
        return _joined(y, s)


class GatedLinearAttn(_Matrices):
    """s_ij = g_i s_ij + k_i v_j, then y_j = scale sum_i(q_i s_ij), for each token  (ggml_gated_linear_attn).

    k, v, q, g: F32 [S, H, T], contiguous.  state: F32 [S S H, N], T a multiple of N; j is the fastest index.
    Result: F32 [S H, T + S N]: y, followed by the states.
    """

    scale: float

    def result(self, k: Tensor, v: Tensor, q: Tensor, g: Tensor, state: Tensor) -> Spec:
        return self._result(k, state, v, q, g)

    def reference(self, k: Array, v: Array, q: Array, g: Array, state: Array) -> Array:
        s, (k, v, q, g) = _by_sequence(state, k, v, q, g)
        y = []
        for t in range(k.shape[1]):
            s = s * g[:, t, :, :, np.newaxis] + k[:, t, :, :, np.newaxis] * v[:, t, :, np.newaxis]
            y.append((s * q[:, t, :, :, np.newaxis]).sum(axis=2) * self.scale)
        return _joined(y, s)


class GatedDeltaNet(Op):
    """s = e**g s, s_ij += beta k_j (v_i - sum_l(s_il k_l)), y_i = sum_j(s_ij q_j) / sqrt(S)  (ggml_gated_delta_net).

    q and k: F32 [S, H', T, N'], H a multiple of H' and N of N': head h uses head h mod H' of q and k, and each sequence
    of q and k is used for N / N' consecutive ones.  v: F32 [S, H, T, N].  Rows of these are contiguous.  g: F32 [1, H,
    T, N] or [S, H, T, N], beta: F32 [1, H, T, N], state: F32 [S, S, H, N], all three contiguous; j is the fastest
    index. Result: F32 [S H, T N + S N ``snapshots``]: y [S, H, T, N], followed by states [S, S, H, N, ``snapshots``],
    those after the last token first.  Snapshots before the first token are 0.
    """

    snapshots: int = 1

    def validate(self) -> None:
        _check_snapshots(self, self.snapshots)

    def result(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Spec:
        sources = (q, k, v, g, beta, state)
        _require_f32(self, *sources)
        size, heads, tokens, sequences = v.ne
        for each in (q, k):
            if each.ne[0] != size or each.ne[2] != tokens or not each.ne[1] or not each.ne[3]:
                misfit(self, "q and k must be [S, H', T, N'] for v [S, H, T, N]", *sources)
            if heads % each.ne[1] or sequences % each.ne[3]:
                misfit(self, "H and N of v must be multiples of those of q and k", *sources)
        if beta.ne != (1, *v.ne[1:]) or g.ne[0] not in (1, size) or g.ne[1:] != v.ne[1:]:
            misfit(self, "beta must be [1, H, T, N], g [1, H, T, N] or [S, H, T, N]", *sources)
        if state.ne != (size, size, heads, sequences):
            misfit(self, "the state must be [S, S, H, N]", *sources)
        if any(t.nb[0] != 4 for t in (q, k, v)) or not all(t.is_contiguous() for t in (g, beta, state)):
            misfit(self, "rows of q, k and v must be contiguous, and all of g, beta and state", *sources)
        rows = tokens * sequences + self.snapshots * size * sequences
        return Spec(F32, (size * heads, rows, 1, 1), 2)

    def reference(self, q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array) -> Array:
        sequences, tokens, heads, size = v.shape
        q, k = (np.tile(x, (1, 1, heads // x.shape[2], 1)) for x in (q, k))
        q, k = (np.repeat(x, sequences // x.shape[0], axis=0) for x in (q, k))
        y = np.zeros(v.shape)
        s, kept = state, np.zeros((self.snapshots, *state.shape))
        for t in range(tokens):
            s = s * np.exp(g[:, t, :, np.newaxis])
            error = v[:, t] - (s * k[:, t, :, np.newaxis]).sum(axis=-1)
            s = s + (error * beta[:, t])[..., np.newaxis] * k[:, t, :, np.newaxis]
            y[:, t] = (s * q[:, t, :, np.newaxis]).sum(axis=-1) / np.sqrt(size)
            if tokens - 1 - t < self.snapshots:
                kept[tokens - 1 - t] = s
        width = size * heads
        return np.concatenate([y.reshape(-1, width), kept.reshape(-1, width)])[np.newaxis, np.newaxis]

    def cost(self, node: Tensor) -> Cost:
        v = node.src[2]
        return Cost(0 if v is None else 8 * v.ne[0] * v.size, super().cost(node).bytes)


ssm_conv = builder(SsmConv)
ssm_scan = builder(SsmScan)
rwkv_wkv6 = builder(RwkvWkv6)
rwkv_wkv7 = builder(RwkvWkv7)
gated_linear_attn = builder(GatedLinearAttn)
gated_delta_net = builder(GatedDeltaNet)
