"""Functions that are made of ops, and ops that ggml's tests have no case for, against independent computations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug import quants
from ggplug.errors import ComputeError, GraphError, ParameterError, ShapeError, TypeMismatchError
from ggplug.ops import OPS
from ggplug.tensor import Tensor
from ggplug_testing import ReferenceDevice
from ggplug_testing.judging.oracle import evaluate
from ggplug_testing.running.runner import run_case

RANDOM = np.random.default_rng(13)


def computed(result: Tensor, *, of: Tensor | None = None) -> Any:
    """What the references compute, as an array of the tensor's shape."""
    shown = result if of is None else of
    return evaluate(gg.Graph(result), {})[shown].reshape(shown.shape)


def drawn(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def test_gated_streams_are_added_up_each_behind_its_sigmoid() -> None:
    x, gate = drawn(5, 3, 8), drawn(5, 3, 8)
    want = 0.25 * (x / (1 + np.exp(-gate))).sum(1)
    np.testing.assert_allclose(computed(gg.dsv4_hc_pre_gated(gg.tensor(x), gg.tensor(gate), 0.25)), want, rtol=1e-5)
    with pytest.raises(ShapeError, match="gate must have the extents of x"):
        gg.dsv4_hc_pre_gated(gg.tensor(x), gg.tensor(gate[:, :2]))


def test_add1_adds_one_number_to_all() -> None:
    x = drawn(3, 5)
    np.testing.assert_allclose(computed(gg.add1(gg.tensor(x), gg.tensor(2.5))), x + 2.5, rtol=1e-6)
    with pytest.raises(ShapeError, match="must be a scalar"):
        gg.add1(gg.tensor(x), gg.tensor([1.0, 2.0]))


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
def test_add_cast_rounds_once_to_the_type_that_is_asked_for(kind: str) -> None:
    x, y = drawn(2, 32), drawn(32)
    stored = gg.cast(gg.tensor(x), kind)
    total = gg.add_cast(stored, gg.tensor(y), gg.F32)
    assert total.type is gg.F32
    np.testing.assert_allclose(computed(total), computed(stored) + y.astype(np.float64), rtol=1e-6)
    narrow = gg.add_cast(gg.tensor(x), gg.tensor(y), "f16")
    np.testing.assert_array_equal(computed(narrow), (x + y).astype(np.float16))
    assert gg.add_cast(gg.tensor(x), gg.tensor(y), "f32", name="total").name == "total"


def test_diag_mask_zero_keeps_what_the_past_and_the_row_itself_may_see() -> None:
    x = drawn(2, 4, 6)
    expected = np.tril(x, k=2)
    np.testing.assert_array_equal(computed(gg.diag_mask_zero(gg.tensor(x), 2)), expected)
    hidden = computed(gg.diag_mask_inf(gg.tensor(x), 2))
    np.testing.assert_array_equal(np.where(np.isinf(hidden), 0, hidden), expected)
    assert (hidden[np.triu(np.ones((4, 6), bool), k=3)[np.newaxis].repeat(2, 0)] == -np.inf).all()


@pytest.mark.parametrize(("kind", "expected"), [(0, np.triu), (2, np.tril)])
def test_tri_is_numpys(kind: int, expected: Any) -> None:
    x = drawn(3, 5, 5)
    np.testing.assert_array_equal(computed(gg.tri(gg.tensor(x), kind)), expected(x))
    strict = expected(x, 1 if kind == 0 else -1)
    np.testing.assert_array_equal(computed(gg.tri(gg.tensor(x), kind + 1)), strict)


def test_set_copies_and_set_inplace_writes() -> None:
    x, part = drawn(4, 6), drawn(2, 3)
    expected = x.copy()
    expected[1:3, 2:5] = part
    a, b = gg.tensor(x), gg.tensor(part)
    offset = a.nb[1] + 2 * a.nb[0]
    np.testing.assert_array_equal(computed(gg.set(a, b, offset=offset)), expected)
    graph = gg.Graph(gg.set(a, b, offset=offset))
    np.testing.assert_array_equal(evaluate(graph, {})[a][0, 0], x)
    np.testing.assert_array_equal(computed(gg.set_inplace(a, b, offset=offset), of=a), expected)
    np.testing.assert_array_equal(computed(gg.set_2d(a, b, a.nb[1], offset=offset)), expected)
    np.testing.assert_array_equal(computed(gg.set_1d(a, gg.tensor(part[0]), offset=8))[0, 2:5], part[0])


def test_acc_adds_to_a_window_of_rows_that_are_apart() -> None:
    x, part = drawn(5, 4), drawn(2, 4)
    a, b = gg.tensor(x), gg.tensor(part)
    expected = x.astype(np.float64)
    expected[[1, 3]] += part
    every_second = {"nb": (2 * a.nb[1],), "offset": a.nb[1]}
    np.testing.assert_allclose(computed(gg.acc(a, b, **every_second)), expected, rtol=1e-6)
    np.testing.assert_allclose(computed(gg.acc_inplace(a, b, **every_second), of=a), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ({"offset": 80}, "are not inside of a's"),
        ({"nb": (4,)}, "elements of the window overlap"),
        ({"offset": 2}, "multiples of 4 bytes"),
    ],
)
def test_a_window_that_leaves_its_tensor_or_overlaps_is_refused(window: dict[str, Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        gg.set(gg.tensor(drawn(4, 6)), gg.tensor(drawn(2, 3)), **window)


def test_blocks_are_set_as_they_are() -> None:
    x, part = drawn(3, 64), drawn(1, 32)
    a, b = gg.cast(gg.tensor(x), "q8_0"), gg.cast(gg.tensor(part), "q8_0")
    written = computed(gg.set(a, b, offset=a.nb[1] + a.nb[0]))
    np.testing.assert_array_equal(written[1, 32:], computed(b)[0])
    np.testing.assert_array_equal(written[[0, 2]], computed(a)[[0, 2]])


@pytest.mark.parametrize("build", [gg.add, gg.mul])
def test_an_inplace_form_leaves_its_result_in_the_first_source(build: Any) -> None:
    x, y = drawn(2, 5), drawn(2, 5)
    a, b = gg.tensor(x), gg.tensor(y)
    result = getattr(gg, f"{build.__name__}_inplace")(a, b)
    assert result.root is a
    expected = x + y if build is gg.add else x * y
    np.testing.assert_allclose(computed(result, of=a), expected, rtol=1e-6)


def test_every_inplace_form_has_the_signature_and_the_op_of_its_builder() -> None:
    import inspect

    for name in [name for name in gg.ops.__all__ if name.endswith("_inplace") and hasattr(getattr(gg, name), "op")]:
        plain = getattr(gg, name.removesuffix("_inplace"))
        assert inspect.signature(getattr(gg, name)) == inspect.signature(plain)
        assert getattr(gg, name).op is plain.op


def test_pads_are_numpys() -> None:
    x = drawn(2, 3, 4)
    a = gg.tensor(x)
    np.testing.assert_array_equal(computed(gg.pad(a, 1, 2)), np.pad(x, ((0, 0), (0, 2), (0, 1))))
    around = np.pad(x, ((0, 0), (1, 0), (2, 1)))
    np.testing.assert_array_equal(computed(gg.pad_ext(a, 2, 1, 1, 0)), around)
    torus = np.pad(x, ((0, 0), (1, 0), (2, 1)), mode="wrap")
    np.testing.assert_array_equal(computed(gg.pad_ext(a, 2, 1, 1, 0, circular=True)), torus)
    np.testing.assert_array_equal(computed(gg.pad_circular(a, 3)), np.pad(x, ((0, 0), (0, 0), (0, 3)), mode="wrap"))
    np.testing.assert_array_equal(
        computed(gg.pad_reflect_1d(a, 2, 3)), np.pad(x, ((0, 0), (0, 0), (2, 3)), mode="reflect")
    )
    np.testing.assert_array_equal(computed(gg.roll(a, 1, -1)), np.roll(x, (1, -1), (2, 1)))


def test_the_largest_come_first_in_argsort_top_k_and_in_any_order_in_top_k() -> None:
    x = drawn(3, 10)
    best = np.sort(x, axis=-1)[:, ::-1][:, :4]
    ordered = gg.argsort_top_k(gg.tensor(x), 4)
    np.testing.assert_array_equal(np.take_along_axis(x, computed(ordered).astype(int), axis=-1), best)
    chosen = np.take_along_axis(x, computed(gg.top_k(gg.tensor(x), 4)).astype(int), axis=-1)
    np.testing.assert_array_equal(np.sort(chosen, axis=-1)[:, ::-1], best)
    with pytest.raises(ShapeError):
        gg.argsort_top_k(gg.tensor(x), 11)


def test_rope_back_turns_back_what_rope_turned() -> None:
    x, pos = gg.tensor(drawn(1, 3, 2, 32)), gg.tensor(np.arange(3, dtype=np.int32))
    np.testing.assert_allclose(computed(gg.rope_back(gg.rope(x, pos, 32), pos, 32)), computed(gg.cont(x)), atol=1e-6)
    moved = gg.rope_set_offset(gg.rope(x, pos, 16), 8)
    assert moved.op == gg.ops.Rope(16, n_offs=8)
    assert moved.src == (x, pos, None)
    with pytest.raises(TypeMismatchError, match="rope or rope_back"):
        gg.rope_set_offset(x, 8)


def test_rope_multi_is_rope_in_a_mode_with_several_axes() -> None:
    x, pos = gg.tensor(drawn(1, 3, 2, 32)), gg.tensor(np.arange(12, dtype=np.int32))
    made = gg.rope_multi(x, pos, 32, (4, 6, 6, 0), 8, freq_base=500.0)
    assert made.op == gg.ops.Rope(32, 8, freq_base=500.0, sections=(4, 6, 6, 0))
    assert gg.rope_multi_back(x, pos, 32, (4, 6, 6, 0), 8).op == gg.ops.RopeBack(32, 8, sections=(4, 6, 6, 0))
    with pytest.raises(ParameterError, match="one axis"):
        gg.rope_multi(x, pos, 32, (4, 6, 6, 0), 0)


def gradient(result: Any, x: Any, dy: Any, step: float = 1e-5) -> Any:
    """The gradient of sum(dy * result(x)) by central differences."""
    slope = np.zeros(x.shape)
    for at in np.ndindex(*x.shape):
        moved = np.zeros(x.shape)
        moved[at] = step
        slope[at] = ((result(x + moved) - result(x - moved)) * dy).sum() / (2 * step)
    return slope


@pytest.mark.parametrize("name", ["silu", "rms_norm", "soft_max"])
def test_gradients_are_slopes(name: str) -> None:
    x, dy = (RANDOM.standard_normal((1, 1, 2, 7)) for _ in range(2))
    forward, back = OPS[name](), OPS[f"{name}_back"]()
    second = forward.reference(x) if name == "soft_max" else x
    np.testing.assert_allclose(back.reference(dy, second), gradient(forward.reference, x, dy), atol=1e-8)


def test_the_gradient_of_the_cross_entropy_is_its_slope() -> None:
    x, labels = RANDOM.standard_normal((1, 1, 3, 5)), RANDOM.dirichlet(np.ones(5), (1, 1, 3))
    dy = np.full((1, 1, 1, 1), 0.7)
    slope = gradient(lambda v: gg.ops.CrossEntropyLoss().reference(v, labels), x, 0.7)
    np.testing.assert_allclose(gg.ops.CrossEntropyLossBack().reference(dy, x, labels), slope, atol=1e-8)


def test_gradients_of_repeat_and_get_rows_are_their_transposes() -> None:
    x, dy = RANDOM.standard_normal((1, 2, 3, 4)), RANDOM.standard_normal((1, 4, 3, 8))
    repeat, back = gg.ops.Repeat((8, 3, 4)), gg.ops.RepeatBack((4, 3, 2))
    assert np.isclose((repeat.reference(x) * dy).sum(), (x * back.reference(dy)).sum())
    a, ids, g = RANDOM.standard_normal((1, 1, 5, 6)), np.array([[[[1, 4, 1, 0]]]]), RANDOM.standard_normal((1, 1, 4, 6))
    picked = gg.ops.GetRows().reference(a, ids)
    assert np.isclose((picked * g).sum(), (a * gg.ops.GetRowsBack(5).reference(g, ids)).sum())


def test_a_step_of_adamw_writes_weights_and_both_moments() -> None:
    w, g, m, v = (drawn(2, 3) for _ in range(4))
    v = np.abs(v)
    tensors = [gg.tensor(each) for each in (w, g, m, v)]
    settings = gg.tensor(np.array([0.1, 0.9, 0.99, 1e-8, 0.01, 2.0, 3.0], np.float32))
    graph = gg.Graph(gg.opt_step_adamw(*tensors, settings))
    found = evaluate(graph, {})
    first, second = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
    expected = (1 - 0.001) * w - 0.1 * (first * 2) / (np.sqrt(second * 3) + 1e-8)
    for tensor, value in zip(tensors, (expected, g, first, second), strict=True):
        np.testing.assert_allclose(found[tensor][0, 0], value, rtol=1e-5, atol=1e-6)


def test_the_suite_looks_at_everything_that_an_op_writes() -> None:
    class Forgetful(ReferenceDevice):
        def match(self, group: Any) -> Any:
            kernel = super().match(group)

            def forgets(op: Any, dst: Any, *src: Any) -> None:
                kept = src[3].array().copy()
                kernel(op, dst, *src)
                src[3].array()[...] = kept

            return forgets

    device = Forgetful("forgetful")
    case = gg.testing.cases_of(OPS["opt_step_adamw"])[0]
    stream = device.init()
    found = run_case(device, stream, case)
    stream.free()
    assert found.verdict == "failed"
    assert "which it writes, too" in found.reason


def test_an_id_beyond_the_result_adds_nothing_and_is_an_error() -> None:
    device = ReferenceDevice()
    dy, ids = gg.tensor(drawn(3, 4)), gg.tensor(np.array([1, 7, 0], np.int32))
    node = gg.get_rows_back(dy, ids, 5)
    with device.init() as stream, pytest.raises(ComputeError, match="of the result; that row was left out") as raised:
        gg.Scheduler([stream]).compute(gg.Graph(node))
    assert (raised.value.got, raised.value.wanted) == (7, 5)


def test_quantised_rows_go_into_outer_products() -> None:
    a, b = drawn(3, 32), drawn(3, 2)
    stored = gg.cast(gg.tensor(a), "q8_0")
    wide = quants.dequantize(quants.quantize(a, gg.Q8_0, stored=True), gg.Q8_0).reshape(3, 32)
    np.testing.assert_allclose(computed(gg.out_prod(stored, gg.tensor(b))), b.T @ wide, rtol=1e-5, atol=1e-5)


def test_set_zero_leaves_what_lies_between_the_rows_of_a_view() -> None:
    x = gg.tensor(np.ones((3, 4), np.float32))
    gg.ops.view(x, 2, 3, nb=x.nb[1:], offset=4).set_zero()
    expected = np.ones((3, 4), np.float32)
    expected[:, 1:3] = 0
    np.testing.assert_array_equal(x.numpy(), expected)
    packed = gg.cast(gg.tensor(drawn(2, 32)), "q8_0")
    np.testing.assert_array_equal(gg.compute(packed).set_zero().numpy(), np.zeros((2, 32)))


def test_one_of_several_outputs_is_expanded() -> None:
    x = gg.tensor(drawn(4))
    several = [gg.sqr(x), gg.neg(x), gg.abs(x)]
    graph = gg.Graph()
    assert graph.expand_one_of(several, 1) is several[1]
    assert graph.nodes == [several[1]]
    with pytest.raises(GraphError, match="no output 3"):
        graph.expand_one_of(several, 3)
