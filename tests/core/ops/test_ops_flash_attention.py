"""Attention as one op: what it takes, that it equals the ops it consists of, and which kernel computes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug import ops, types
from ggplug.errors import ParameterError, ShapeError, TypeMismatchError
from ggplug.tensor import Tensor, new_tensor

RANDOM = 20240817


def drawn(*shape: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng(RANDOM + len(shape) + shape[0]).standard_normal(shape)


def sources(**types_of: types.Type) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values: 3 queries of 4 heads, 5 keys of 2."""
    q = new_tensor(types_of.get("q", types.F32), (32, 3, 4, 2))
    k = new_tensor(types_of.get("k", types.F16), (32, 5, 2, 2))
    return q, k, new_tensor(types_of.get("v", types.F16), (64, 5, 2, 2))


def test_the_result_has_heads_beside_each_other() -> None:
    assert gg.flash_attn_ext(*sources(k=types.Q8_0)).ne == (64, 4, 3, 2)


def test_what_does_not_fit_is_said() -> None:
    q, k, v = sources()
    mask, sinks = new_tensor(types.F16, (5, 3)), new_tensor(types.F32, (4,))
    with pytest.raises(TypeMismatchError, match="q must be f32"):
        gg.flash_attn_ext(*sources(q=types.F16))
    with pytest.raises(TypeMismatchError, match="k and v must be f32, f16, bf16 or quantised"):
        gg.flash_attn_ext(*sources(k=types.I32))
    with pytest.raises(TypeMismatchError, match="the mask must be f16"):
        gg.flash_attn_ext(q, k, v, new_tensor(types.F32, (5, 3)))
    with pytest.raises(TypeMismatchError, match="the sinks must be f32"):
        gg.flash_attn_ext(q, k, v, sinks=new_tensor(types.F16, (4,)))
    for wrong in ((16, 5, 2, 2), (32, 6, 2, 2)):
        with pytest.raises(ShapeError, match=r"q must be \[dk, n, h, b\]"):
            gg.flash_attn_ext(q, new_tensor(types.F16, wrong), v)
    with pytest.raises(ShapeError, match="and q a multiple of it"):
        gg.flash_attn_ext(new_tensor(types.F32, (32, 3, 3, 2)), k, v)
    with pytest.raises(ShapeError, match="the same ne3"):
        gg.flash_attn_ext(new_tensor(types.F32, (32, 3, 4, 1)), k, v)
    with pytest.raises(ShapeError, match="rows of k must be contiguous"):
        gg.flash_attn_ext(q, gg.transpose(new_tensor(types.F16, (5, 32, 2, 2))), v)
    with pytest.raises(ShapeError, match="the mask's ne0 must be k's ne1"):
        gg.flash_attn_ext(q, k, v, new_tensor(types.F16, (5, 2)))
    with pytest.raises(ShapeError, match="multiples of the mask's"):
        gg.flash_attn_ext(q, k, v, new_tensor(types.F16, (5, 3, 3)))
    with pytest.raises(ShapeError, match="one sink for each head"):
        gg.flash_attn_ext(q, k, v, sinks=new_tensor(types.F32, (2,)))
    with pytest.raises(ParameterError, match="max_bias scales the mask"):
        gg.flash_attn_ext(q, k, v, max_bias=8.0)
    for name in ("max_bias", "logit_softcap"):
        with pytest.raises(ParameterError, match=f"{name} must be finite and not negative"):
            gg.flash_attn_ext(q, k, v, mask, **{name: -1.0})
    with pytest.raises(ParameterError, match="precision 3 is none of"):
        gg.flash_attn_ext(q, k, v, mask, precision=3)
    assert gg.flash_attn_ext(q, k, v, mask, 0.5, 8.0, 2.0, sinks=sinks).src == (q, k, v, mask, sinks)


def test_sinks_and_precision_can_be_given_later() -> None:
    q, k, v = sources()
    sinks = new_tensor(types.F32, (4,))
    plain = gg.flash_attn_ext(q, k, v, None, 0.5, logit_softcap=3.0, name="y")
    sunk = gg.flash_attn_ext_add_sinks(plain, sinks)
    exact = gg.flash_attn_ext_set_prec(sunk, types.Precision.F32)
    assert (sunk.src[4], sunk.op, sunk.name) == (sinks, plain.op, "y")
    assert exact.src == sunk.src
    assert isinstance(exact.op, ops.FlashAttnExt)
    assert (exact.op.precision, exact.op.scale, exact.op.logit_softcap) == (10, 0.5, 3.0)
    assert gg.flash_attn_ext_add_sinks(sunk, None).src == plain.src
    for function, value in ((gg.flash_attn_ext_add_sinks, sinks), (gg.flash_attn_ext_set_prec, 10)):
        with pytest.raises(TypeMismatchError, match="must be a result of"):
            function(q, value)


def test_its_reference_is_that_of_the_ops_it_consists_of() -> None:
    q, k, v = drawn(2, 4, 3, 32), drawn(2, 2, 5, 32), drawn(2, 2, 5, 8)
    mask, sinks = np.where(drawn(1, 1, 3, 5) > 0.7, -np.inf, drawn(1, 1, 3, 5)), drawn(1, 1, 1, 4)
    mask[..., 0] = 0
    logits = ops.MulMat().reference(k, q)
    capped = 2 * ops.Tanh().reference(logits * 0.3 / 2)
    probabilities = ops.SoftMax(1.0, 8.0).reference(capped, mask, sinks)
    mixed = ops.MulMat().reference(np.ascontiguousarray(v.swapaxes(-1, -2)), probabilities)
    found = ops.FlashAttnExt(0.3, 8.0, 2.0).reference(q, k, v, mask, sinks)
    np.testing.assert_allclose(found, mixed.swapaxes(1, 2), rtol=1e-12)


def test_a_row_that_sees_no_key_is_zeros_and_hidden_keys_are_not_read() -> None:
    q, k, v = drawn(1, 1, 2, 4), drawn(1, 1, 3, 4), drawn(1, 1, 3, 4)
    k[0, 0, 1], v[0, 0, 1] = np.nan, np.inf
    mask = np.array([[-np.inf, -np.inf, -np.inf], [0, -np.inf, 0]]).reshape(1, 1, 2, 3)
    found = ops.FlashAttnExt(0.5).reference(q, k, v, mask)[0, :, 0]
    kept = ops.FlashAttnExt(0.5).reference(q[:, :, 1:], k[:, :, ::2], v[:, :, ::2])[0, 0, 0]
    np.testing.assert_array_equal(found[0], 0)
    np.testing.assert_allclose(found[1], kept, rtol=1e-12)


def loss(parameters: dict[str, float], d: Any, values: list[Any], mask: Any, hidden: Any) -> float:
    q, k, v, sinks = values
    shown = np.where(hidden, -np.inf, 0.0 if mask is None else mask)
    attended = ops.FlashAttnExt(**parameters).reference(q, k, v, shown, sinks)
    return float((attended * d).sum())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("parameters", [{"scale": 0.4}, {"scale": 0.7, "logit_softcap": 1.5}])
def test_its_gradient_is_that_of_numeric_differentiation(masked: bool, parameters: dict[str, float]) -> None:
    n, m = 3, 5
    values = [drawn(1, 4, n, 3), drawn(1, 2, m, 3), drawn(1, 2, m, 2), drawn(1, 1, 1, 4)]
    d, mask = drawn(1, n, 4, 2), drawn(1, 1, n, m)
    mask[0, 0, 1, 2] = -np.inf
    hidden = np.array([[masked and key > query + m - n for key in range(m)] for query in range(n)])
    op = ops.FlashAttnBack(**parameters, masked=masked)
    found = op.reference(*values[:3], d, mask, values[3])
    step, wanted = 1e-6, []
    for number, each in enumerate(values):
        for index in np.ndindex(each.shape):
            sides = []
            for side in (step, -step):
                moved = [value.copy() for value in values]
                moved[number][index] += side
                sides.append(loss(parameters, d, moved, mask, hidden))
            wanted.append((sides[0] - sides[1]) / (2 * step))
        wanted += [0.0] * (-each.size % 4)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-8)


def test_the_parts_of_a_gradient_are_views_with_the_extents_of_the_sources() -> None:
    q, k, v = new_tensor(types.F32, (3, 1, 3)), new_tensor(types.F32, (3, 5, 1)), new_tensor(types.F32, (2, 5, 1))
    back = gg.flash_attn_back(q, k, v, new_tensor(types.F32, (2, 3, 1)), sinks=new_tensor(types.F32, (3,)))
    parts = gg.flash_attn_back_parts(back)
    assert [part.ne for part in parts] == [(3, 1, 3, 1), (3, 5, 1, 1), (2, 5, 1, 1), (3, 1, 1, 1)]
    assert [part.view_offset for part in parts] == [0, 48, 112, 160]
    assert (back.ne, back.op.scale) == ((44, 1, 1, 1), 3**-0.5)
    with pytest.raises(TypeMismatchError, match="must be a result of"):
        gg.flash_attn_back_parts(q)
    with pytest.raises(ShapeError, match=r"d must be \[dv, h, n, b\]"):
        gg.flash_attn_back(q, k, v, new_tensor(types.F32, (2, 1, 3)))
    with pytest.raises(TypeMismatchError, match="k and v must be f32, f16 or bf16"):
        gg.flash_attn_back(q, new_tensor(types.Q8_0, (32, 5, 1)), v, back)


@pytest.fixture
def cpu() -> Any:
    pytest.importorskip("ggplug_cpu")
    return gg.device("CPU")


def kernels(device: Any, queries: int, keys: int, heads: int = 2) -> str:
    q, k = new_tensor(types.F32, (64, queries, heads)), new_tensor(types.F16, (64, keys, heads))
    found = device.chosen(gg.backend.Group((gg.flash_attn_ext(q, k, k),)))
    return str(found.name).replace("[f16,f16]", "")


def test_the_cpu_streams_keys_for_few_queries_and_tiles_them_for_many(cpu: Any) -> None:
    assert kernels(cpu, 1, 64) == "flash_attention_few"
    assert kernels(cpu, 200, 64) == "flash_attention_tiles"


@pytest.mark.parametrize("heads", [2, 64])
def test_the_cpu_cuts_long_keys_into_parts_whatever_else_it_computes(cpu: Any, heads: int) -> None:
    assert kernels(cpu, 1, 1024, heads) == "flash_attention_few"
    assert kernels(cpu, 1, 1025, heads) == "flash_attention_few + merge"
    assert kernels(cpu, 200, 2048, heads) == "flash_attention_tiles"
    assert kernels(cpu, 200, 2049, heads) == "flash_attention_tiles + merge"


def test_results_do_not_depend_on_the_number_of_threads(cpu: Any) -> None:
    for queries in (1, 40):
        q, k = gg.tensor(drawn(2, queries, 32).astype(np.float32)), gg.tensor(drawn(2, 1100, 32).astype(np.float32))
        graph = gg.Graph(gg.flash_attn_ext(q, k, k, scale=0.2))
        found = []
        for threads in (1, 2, 3):
            with cpu.init(n_threads=threads) as stream, gg.Scheduler([stream]) as scheduler:
                scheduler.compute(graph)
                found.append(graph.nodes[-1].numpy())
        assert np.array_equal(found[0], found[1])
        assert np.array_equal(found[0], found[2])


@pytest.mark.parametrize("numbers", [64, 80, 36])
def test_heads_that_share_keys_have_each_what_it_has_alone(cpu: Any, numbers: int) -> None:
    heads, keys = 7, 300
    q = drawn(heads, 1, numbers).astype(np.float32)
    k, v = drawn(1, keys, numbers).astype(np.float16), drawn(1, keys, numbers).astype(np.float16)
    hidden = np.arange(keys) % 3 == 1
    k[0, hidden], v[0, hidden] = np.nan, np.inf
    mask = np.where(hidden, -np.inf, 0).astype(np.float16).reshape(1, keys)

    def attended(some: Any) -> Any:
        y = gg.flash_attn_ext(*map(gg.tensor, (some, k, v, mask)), scale=0.1)
        gg.compute(y, backends=[cpu])
        return y.numpy()

    together = attended(q)
    wanted = ops.FlashAttnExt(0.1).reference(*(each[np.newaxis] for each in (q, k, v)), mask[np.newaxis, np.newaxis])
    np.testing.assert_allclose(together.reshape(heads, -1), wanted.reshape(heads, -1), rtol=1e-3, atol=1e-4)
    for count in (1, 2, 3, 4):
        assert np.array_equal(attended(q[:count]).reshape(count, -1), together.reshape(heads, -1)[:count])
