"""Gradients of a transformer layer, a convolution net and an SSM layer agree with those of PyTorch's autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from installed import device_or_skip
from oracles import layers as recorded

import ggplug as gg

Parameters = Mapping[str, gg.Tensor]


def one_of_each(chosen: list[int], count: int) -> gg.Tensor:
    """Labels with probability 1 for the chosen classes."""
    return gg.tensor(np.eye(count, dtype=np.float32)[chosen])


def soft_max_attention(q: gg.Tensor, k: gg.Tensor, v: gg.Tensor, scale: float) -> gg.Tensor:
    """[d, h, n] from q, k and v [d, h, n], each query over itself and those before."""
    q, k, v = (gg.permute(each, 0, 2, 1) for each in (q, k, v))
    logits = gg.diag_mask_inf(gg.mul_mat(k, q), 0)
    mixed = gg.mul_mat(gg.cont(gg.transpose(v)), gg.soft_max(logits, scale=scale))
    return gg.permute(mixed, 0, 2, 1)


def flash_attention(q: gg.Tensor, k: gg.Tensor, v: gg.Tensor, scale: float) -> gg.Tensor:
    """The same by one op."""
    q, k, v = (gg.permute(each, 0, 2, 1) for each in (q, k, v))
    hidden = np.triu(np.full((recorded.TOKENS, recorded.TOKENS), -np.inf, np.float16), 1)
    return gg.flash_attn_ext(q, k, v, gg.tensor(hidden), scale)


Attention = Callable[[gg.Tensor, gg.Tensor, gg.Tensor, float], gg.Tensor]


def transformer(p: Parameters, attention: Attention) -> gg.Tensor:
    tokens, width, heads = recorded.TOKENS, recorded.WIDTH, recorded.HEADS
    size, positions = width // heads, gg.tensor(np.arange(tokens, dtype=np.int32))
    x = gg.get_rows(p["embeddings"], gg.tensor(np.array(recorded.IDS, np.int32)))
    h = gg.mul(gg.rms_norm(x, 1e-5), p["attention_norm"])
    q, k, v = (gg.reshape(gg.mul_mat(p[name], h), size, heads, tokens) for name in ("wq", "wk", "wv"))
    q, k = (gg.rope(each, positions, size) for each in (q, k))
    attended = gg.cont(attention(q, k, v, size**-0.5), width, tokens)
    x = gg.add(x, gg.mul_mat(p["wo"], attended))
    h = gg.mul(gg.rms_norm(x, 1e-5), p["ffn_norm"])
    x = gg.add(x, gg.mul_mat(p["down"], gg.swiglu(gg.mul_mat(p["gate"], h), gg.mul_mat(p["up"], h))))
    return gg.cross_entropy_loss(gg.mul_mat(p["output"], x), one_of_each(recorded.LABELS, recorded.VOCABULARY))


def convolution(p: Parameters) -> gg.Tensor:
    def of_channels(x: gg.Tensor) -> gg.Tensor:
        return gg.reshape(x, 1, 1, x.ne[0])

    x = gg.group_norm(gg.conv_2d_direct(p["first"], p["images"], p0=1, p1=1), 2, 1e-5)
    x = gg.add(gg.mul(x, of_channels(p["norm_weight"])), of_channels(p["norm_bias"]))
    x = gg.pool_2d(gg.gelu_erf(x), gg.ops.PoolKind.MAX, 2, 2, 2, 2)
    x = gg.conv_2d_direct(p["second"], x, s0=2, s1=2, p0=1, p1=1)
    x = gg.relu(gg.add(x, of_channels(p["second_bias"])))
    means = gg.mean(gg.reshape(x, x.ne[0] * x.ne[1], x.ne[2], x.ne[3]))
    logits = gg.mul_mat(p["output"], gg.reshape(means, x.ne[2], x.ne[3]))
    return gg.cross_entropy_loss(logits, one_of_each(recorded.CLASSES, p["output"].ne[1]))


def ssm(p: Parameters) -> gg.Tensor:
    steps, inner, state, taps = recorded.STEPS, recorded.INNER, recorded.STATE, recorded.TAPS
    both = gg.mul_mat(p["in"], p["x"])
    x, gate = (gg.view(both, inner, steps, nb=(both.nb[1],), offset=4 * inner * half) for half in (0, 1))
    before = gg.pad_ext(gg.cont(gg.transpose(x)), lp0=taps - 1)
    x = gg.silu(gg.add(gg.reshape(gg.ssm_conv(before, p["conv"]), inner, steps), p["conv_bias"]))
    b, c = (gg.reshape(gg.mul_mat(p[name], x), state, 1, steps, 1) for name in ("to_b", "to_c"))
    dt = gg.add(gg.mul_mat(p["to_dt"], x), p["dt_bias"])
    # A head for each channel, of one dimension.
    a = gg.neg(gg.exp(p["a_log"]))
    first = gg.tensor(np.zeros((1, inner, 1, state), np.float32))
    ids = gg.tensor(np.zeros(1, np.int32))
    found = gg.ssm_scan(first, gg.reshape(x, 1, inner, steps, 1), gg.reshape(dt, inner, steps, 1), a, b, c, ids)
    y = gg.view(found, inner, steps, nb=(4 * inner,))
    y = gg.mul(gg.add(y, gg.mul(x, p["d"])), gg.silu(gate))
    out = gg.mul_mat(p["out"], y)
    return gg.scale(gg.sum(gg.sqr(out)), 1 / (inner * steps))


@pytest.mark.parametrize(
    ("name", "loss_of"),
    [
        pytest.param("transformer", lambda p: transformer(p, soft_max_attention), id="transformer, softmax"),
        pytest.param("transformer", lambda p: transformer(p, flash_attention), id="transformer, attention as one op"),
        pytest.param("convolution", convolution, id="convolution"),
        pytest.param("ssm", ssm, id="ssm"),
    ],
)
@pytest.mark.parametrize("device", ["CPU", "OpenCL0"])
def test_gradients_agree_with_pytorch(name: str, loss_of: Callable[[Parameters], gg.Tensor], device: str) -> None:
    parameters = {each: gg.tensor(values) for each, values in recorded.numbers(name).items()}
    loss = loss_of(parameters)
    backward = gg.Graph(loss.set_output()).backward(loss, parameters.values())
    with np.load(recorded.RECORDED) as wanted, gg.Scheduler([device_or_skip(device)]) as scheduler:
        scheduler.compute(backward)
        assert loss.item() == pytest.approx(float(wanted[f"{name}.loss"]), rel=1e-5)
        for each, tensor in parameters.items():
            gradient = wanted[f"{name}.{each}"]
            found = backward.gradients[tensor].numpy()
            np.testing.assert_allclose(found, gradient, rtol=1e-5, atol=1e-5 * np.abs(gradient).max(), err_msg=each)
