"""What ops answer where a reader may wonder: NaN, infinities, zeros of both signs, tensors without elements.

The references are what the conformance suite holds devices to, so here they are held to answers spelled out by hand.
"""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import ggplug.ops as ops
from ggplug import quants
from ggplug.errors import ShapeError
from ggplug.graph import Graph
from ggplug.ops import OPS, Op
from ggplug.tensor import Spec, Tensor, new_tensor
from ggplug.types import F32, NVFP4, Q4_0, Q8_0, Type
from ggplug_testing import cases_of, evaluate
from ggplug_testing.cases.sketched import empty_cases

NAN, INF = math.nan, math.inf


def t(*ne: int, type: str = "f32") -> Tensor:
    return new_tensor(type, ne)


def assert_same(got: Any, want: Any) -> None:
    """Equal, NaN in the same places, zeros of the same sign."""
    got, want = np.asarray(got, np.float64).reshape(-1), np.asarray(want, np.float64)
    np.testing.assert_array_equal(got, want)
    zeros = want == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


# -- special values --------------------------------------------------------------------------------

X = [NAN, -INF, INF, -0.0, 0.0, -0.3, 2.5]

UNARY: list[tuple[Op, list[float]]] = [
    (ops.Abs(), [NAN, INF, INF, 0, 0, 0.3, 2.5]),
    (ops.Neg(), [NAN, INF, -INF, 0.0, -0.0, 0.3, -2.5]),
    (ops.Sgn(), [0, -1, 1, 0, 0, -1, 1]),
    (ops.Step(), [0, 0, 1, 0, 0, 0, 1]),
    (ops.Relu(), [0, 0, INF, 0, 0, 0, 2.5]),
    (ops.LeakyRelu(0.5), [0, -INF, INF, 0, 0, -0.15, 2.5]),
    (ops.Clamp(-1.0, 2.0), [2, -1, 2, -0.0, 0, -0.3, 2]),
    (ops.Clamp(0.0, 2.0), [2, 0, 2, 0, 0, 0, 2]),
    (ops.Clamp(-1.0, 0.0), [0, -1, 0, 0, 0, -0.3, 0]),
    (ops.Hardsigmoid(), [0, 0, 1, 0.5, 0.5, 0.45, 5.5 / 6]),
    (ops.Hardswish(), [NAN, NAN, INF, -0.0, 0, -0.3 * 0.45, 2.5 * 5.5 / 6]),
    (ops.Floor(), [NAN, -INF, INF, -0.0, 0, -1, 2]),
    (ops.Ceil(), [NAN, -INF, INF, -0.0, 0, -0.0, 3]),
    (ops.Trunc(), [NAN, -INF, INF, -0.0, 0, -0.0, 2]),
    (ops.Round(), [NAN, -INF, INF, -0.0, 0, -0.0, 3]),
    (ops.Scale(2.0), [NAN, -INF, INF, 0, 0, -0.6, 5]),
    (ops.Scale(0.0, 1.0), [NAN, NAN, NAN, 1, 1, 1, 1]),
    (ops.Sqr(), [NAN, INF, INF, 0, 0, 0.09, 6.25]),
    (ops.Exp(), [NAN, 0, INF, 1, 1, math.exp(-0.3), math.exp(2.5)]),
    (ops.Expm1(), [NAN, -1, INF, -0.0, 0, math.expm1(-0.3), math.expm1(2.5)]),
    (ops.Log(), [NAN, NAN, INF, -INF, -INF, NAN, math.log(2.5)]),
    (ops.Sqrt(), [NAN, NAN, INF, -0.0, 0, NAN, math.sqrt(2.5)]),
    (ops.Elu(), [NAN, -1, INF, -0.0, 0, math.expm1(-0.3), 2.5]),
    (ops.Softplus(), [NAN, 0, INF, math.log(2), math.log(2), math.log1p(math.exp(-0.3)), math.log1p(math.exp(2.5))]),
]


@pytest.mark.parametrize(("op", "want"), UNARY, ids=lambda value: repr(value) if isinstance(value, Op) else "")
def test_functions_of_special_numbers(op: Op, want: list[float]) -> None:
    got = op.reference(np.array(X))
    zeros = np.asarray(want) == 0
    np.testing.assert_allclose(got, want, rtol=1e-12)
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(np.asarray(want)[zeros]))


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_erf", "gelu_quick", "xielu"])
def test_activations_of_minus_infinity_are_nan(name: str) -> None:
    op = ops.Xielu(1.0, 1.0, 0.5, -1e-6) if name == "xielu" else OPS[name]()
    with np.errstate(all="ignore"):
        assert_same(op.reference(np.array([NAN, -INF, INF])), [NAN, NAN, INF])


def test_reglu_is_zero_below_zero_whatever_the_gate() -> None:
    x, gate = np.array([NAN, -1.0, 0.0, -0.0, 1.0, 1.0, INF, INF]), np.array([2.0, NAN, INF, -INF, NAN, -0.0, 2.0, 0.0])
    assert_same(ops.Reglu().reference(x, gate), [0, 0, 0, 0, NAN, -0.0, INF, NAN])


def test_swiglu_oai_keeps_nan_of_either_side() -> None:
    got = ops.SwigluOai(alpha=1.0, limit=2.0).reference(np.array([NAN, 1.0, -INF, INF]), np.array([1.0, NAN, 1.0, INF]))
    want = 2 / (1 + math.exp(-2)) * 3
    np.testing.assert_allclose(got, [NAN, NAN, NAN, want])


def test_swiglu_clamp_limits_both_sides_and_keeps_nan_of_either() -> None:
    x, gate = np.array([NAN, 1.0, -INF, 5.0, -5.0, 1.0]), np.array([1.0, NAN, 1.0, 9.0, -9.0, 0.5])
    silu = {x: x / (1 + math.exp(-x)) for x in (2.0, -5.0, 1.0)}
    want = [NAN, NAN, NAN, silu[2.0] * 2, silu[-5.0] * -2, silu[1.0] * 0.5]
    np.testing.assert_allclose(ops.SwigluClamp(limit=2.0).reference(x, gate), want)


ROWS = [
    # row, what becomes of it in sum, mean, argmax, argsort both ways
    ([NAN, 1.0, 2.0], NAN, NAN, 2, [1, 2, 0], [2, 1, 0]),
    ([NAN, NAN, NAN], NAN, NAN, 0, [0, 1, 2], [0, 1, 2]),
    ([NAN, -INF, -INF], NAN, NAN, 1, [1, 2, 0], [1, 2, 0]),
    ([1.0, INF, -INF], NAN, NAN, 1, [2, 0, 1], [1, 0, 2]),
    ([INF, 1.0, INF], INF, INF, 0, [1, 0, 2], [0, 2, 1]),
    ([-0.0, 0.0, -0.0], 0, 0, 0, [0, 1, 2], [0, 1, 2]),
]


@pytest.mark.parametrize(("row", "total", "mean", "highest", "up", "down"), ROWS)
def test_rows_of_special_numbers(
    row: list[float], total: float, mean: float, highest: int, up: list[int], down: list[int]
) -> None:
    x = np.array([[[row]]])
    with np.errstate(all="ignore"):
        assert np.array_equal(ops.SumRows().reference(x), [[[[total]]]], equal_nan=True)
        assert np.array_equal(ops.Sum().reference(x), [[[[total]]]], equal_nan=True)
        assert np.array_equal(ops.Mean().reference(x), [[[[mean]]]], equal_nan=True)
    assert ops.Argmax().reference(x).item() == highest
    assert ops.Argsort(0).reference(x).reshape(-1).tolist() == up
    assert ops.Argsort(1).reference(x).reshape(-1).tolist() == down


def test_norms_of_special_numbers() -> None:
    x = np.array([[NAN, 3.0, 4.0], [INF, 3.0, -4.0], [0.0, 0.0, 0.0]])
    assert_same(ops.Norm(0.0).reference(x), [NAN] * 9)
    assert_same(ops.RmsNorm(0.0).reference(x), [NAN, NAN, NAN, NAN, 0, -0.0, NAN, NAN, NAN])
    assert_same(ops.L2Norm(0.5).reference(x), [NAN, 6, 8, NAN, 0, -0.0, 0, 0, 0])


def test_soft_max_of_special_logits() -> None:
    x = np.array([[NAN, 1.0], [INF, 1.0], [-INF, -INF], [-INF, 1.0]]).reshape(1, 1, 4, 2)
    with np.errstate(all="ignore"):
        assert_same(ops.SoftMax().reference(x), [NAN] * 6 + [0, 1])
        assert_same(ops.SoftMax(scale=0.0).reference(x[..., :1, 1:]), [1])
        for sink, rescued in ((0.0, 0.0), (-INF, NAN), (INF, NAN), (NAN, NAN)):
            got = ops.SoftMax().reference(x, None, np.array([sink]).reshape(1, 1, 1, 1))
            assert_same(got[0, 0, 2], [rescued, rescued])


@pytest.mark.parametrize(("kind", "number", "zero"), [(Q8_0, 127, 0), (Q4_0, -8, 0x88)])
def test_a_block_with_a_nan_or_an_infinity_reads_as_nan(kind: Type, number: int, zero: int) -> None:
    x = np.resize(np.array([1.0, -0.5], np.float32), (6, 32))
    x[1, 4], x[2, 30], x[3, 9], x[4, 0], x[5, 0] = NAN, -NAN, INF, -INF, 3e38
    x[4, 7] = INF
    blocks = quants.quantize(x, kind).reshape(-1).view(kind.dtype)
    assert blocks["d"].view(np.uint16)[1:3].tolist() == [0x7E00, 0x7E00]
    infinite = [INF, INF] if kind is Q8_0 else [-INF, INF]  # of Q4_0 the scale is the first largest by -8
    assert blocks["d"][3:5].tolist() == infinite
    assert (blocks["qs"][1:5] == zero).all()
    back = quants.dequantize(quants.quantize(x, kind), kind)
    assert np.isfinite(back[0]).all()
    assert np.isnan(back[1:5]).all()
    # too large for a scale in F16, but finite: as ggml, the largest number is infinite
    assert np.isinf(back[5, 0])


@pytest.mark.parametrize("kind", [kind for kind in quants.block_types() if quants.can_quantize(kind)], ids=repr)
@pytest.mark.parametrize("stored", [False, True])
def test_no_block_with_a_nan_or_an_infinity_reads_as_finite(kind: Type, stored: bool) -> None:
    x = np.resize(np.array([1.0, -0.5], np.float32), (6, kind.block_size))
    x[1, 4], x[2, -1], x[3, 9], x[4, 0] = NAN, -NAN, INF, -INF
    x[5] = 0
    back = quants.dequantize(quants.quantize(x, kind, stored=stored), kind)
    assert np.isfinite(back[[0, 5]]).all()
    if kind is NVFP4:  # has neither, so sixteen numbers are the largest there is
        assert (back[[1, 3, 4], :16] == 2688).all()
        assert (back[2, -16:] == 2688).all()
    else:
        assert not np.isfinite(back[1:5]).any()


def test_numbers_become_integers_towards_zero_and_within_their_range() -> None:
    x = np.array([NAN, -NAN, INF, -INF, 2.0**31, -(2.0**31) - 600, 2147483520.0, -0.9, 2.9, -2.9], np.float32)
    node = ops.cast(new_tensor("f32", x.size), "i32")
    leaf = node.src[0]
    assert leaf is not None
    got = evaluate(Graph(node), {leaf: x.view(np.uint8)})[node].reshape(-1)
    top, bottom = 2**31 - 1, -(2**31)
    assert got.tolist() == [0, 0, top, bottom, top, bottom, 2147483520, 0, 2, -2]


@pytest.mark.parametrize("name", [op.name for op in OPS.values() if op.indexes is not None])
def test_what_an_op_says_of_its_ids_is_true(name: str) -> None:
    indexes = OPS[name].indexes
    assert indexes is not None
    assert "ids" in OPS[name].sources[indexes.ids]
    assert any("ids out of range" in case.label for case in cases_of(OPS[name]))


# -- without elements ------------------------------------------------------------------------------

EMPTY: list[tuple[str, Any, tuple[int, ...]]] = [
    ("a product over nothing", lambda: ops.mul_mat(t(0, 5), t(0, 3)), (5, 3)),
    ("a product over nothing of blocks", lambda: ops.mul_mat(t(0, 5, type="q8_0"), t(0, 3)), (5, 3)),
    ("a product of no matrices", lambda: ops.mul_mat(t(4, 5, 0), t(4, 3, 0)), (5, 3, 0)),
    ("no experts and no tokens", lambda: ops.mul_mat_id(t(4, 5, 0), t(4, 2, 0), t(2, 0, type="i32")), (5, 2, 0)),
    ("no slots", lambda: ops.mul_mat_id(t(4, 5, 3), t(4, 0, 7), t(0, 7, type="i32")), (5, 0, 7)),
    ("a row added to no rows", lambda: ops.add(t(4, 0), t(4)), (4, 0)),
    ("nothing added to nothing", lambda: ops.add(t(4, 0), t(1, 0)), (4, 0)),
    ("nothing repeated", lambda: ops.repeat(t(4, 0), 8, 0), (8, 0)),
    ("masks of no heads", lambda: ops.soft_max(t(4, 3, 0), t(4, 3, 0)), (4, 3, 0)),
    ("rows of no columns", lambda: ops.soft_max(t(0, 3)), (0, 3)),
    ("rows into no batches", lambda: ops.set_rows(t(4, 3, 0), t(4, 2, 0), t(2, 0, type="i64")), (4, 3, 0)),
    ("nothing before something", lambda: ops.concat(t(0, 3), t(4, 3), 0), (4, 3)),
    ("reshaped", lambda: ops.reshape(t(0, 6), 0, 2, 3), (0, 2, 3)),
    ("reshaped, an extent inferred", lambda: ops.reshape(t(0, 6), 3, -1), (3, 0)),
    ("made contiguous", lambda: ops.cont(ops.transpose(t(4, 0))), (0, 4)),
    ("a view of nothing in something", lambda: ops.view(t(4, 5), 4, 0, offset=80), (4, 0)),
]


@pytest.mark.parametrize(("node", "ne"), [row[1:] for row in EMPTY], ids=[row[0] for row in EMPTY])
def test_shapes_without_elements_are_taken(node: Any, ne: tuple[int, ...]) -> None:
    made = node()
    assert made.ne[: made.rank] == ne


REFUSED: list[tuple[str, Any]] = [
    ("the largest of nothing", lambda: ops.argmax(t(0, 3))),
    ("something added to nothing", lambda: ops.add(t(4, 3), t(4, 0))),
    ("another extent", lambda: ops.add(t(4, 0), t(3, 0))),
    ("nothing repeated to something", lambda: ops.repeat(t(4, 0), 4, 3)),
    ("no matrix for three", lambda: ops.mul_mat(t(4, 5, 0), t(4, 5, 3))),
    ("no activations for three slots", lambda: ops.mul_mat_id(t(4, 5, 3), t(4, 0, 7), t(2, 7, type="i32"))),
    ("masks of no heads for three", lambda: ops.soft_max(t(4, 5, 3), t(4, 5, 0))),
    ("rotating nothing", lambda: ops.rope(t(0, 2, 3), t(3, type="i32"), 2)),
    ("frequencies of nothing", lambda: ops.rope(t(8, 2, 3), t(3, type="i32"), 8, t(4, 1, 0))),
    ("an extent that could be any", lambda: ops.reshape(t(0, 6), 0, -1)),
]


@pytest.mark.parametrize("node", [row[1] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_shapes_without_a_meaningful_answer_are_refused(node: Any) -> None:
    with pytest.raises(ShapeError):
        node()


def test_sums_of_nothing_are_zero_and_means_nan() -> None:
    x = np.zeros((1, 2, 3, 0))
    assert_same(ops.Sum().reference(x), [0])
    assert_same(ops.SumRows().reference(x), [0] * 6)
    assert_same(ops.Mean().reference(x), [NAN] * 6)
    assert_same(ops.MulMat().reference(x, np.zeros((1, 2, 2, 0))), [0] * 12)


def test_every_op_of_core_has_cases_without_elements() -> None:
    for name, cls in OPS.items():
        if cls.__module__.startswith("ggplug.ops.") and cls.sources:
            assert list(empty_cases(cls)), name


_COMPUTE_ALL = """
import numpy as np, sys
import ggplug as gg
from ggplug.ops import OPS
from ggplug.errors import ComputeError
from ggplug_testing import Leafs, evaluate
from ggplug_testing.cases.sketched import empty_cases
from ggplug_testing.judging.comparison import compare

device = gg.device(sys.argv[1])
scheduler = gg.Scheduler([device.init()])
for op in list(OPS.values())[:: int(sys.argv[2])]:
    for case in empty_cases(op):
        leafs = Leafs(case.seed)
        node = case.make(leafs).set_output()
        if not device.supports_op(node):
            continue
        graph = gg.Graph(node)
        want = evaluate(graph, leafs.values)[node]
        with gg.Context() as context:
            for leaf in leafs.values:
                context.add(leaf)
            gg.allocate(context, device)
            for leaf, raw in leafs.values.items():
                leaf.set_bytes(raw)
            try:
                scheduler.compute(graph)
            except ComputeError as error:
                assert error.got == 0 and error.wanted == 0, error
                continue
            if node.size:
                assert compare(node.numpy().reshape(want.shape), want, 1e-7), (str(case), node.numpy())

# rows of nothing, whose elements lie nowhere apart
for type in ("f32", "f16"):
    leaf = gg.new_tensor(type, (5, 0))
    with gg.Context() as context:
        context.add(leaf)
        gg.allocate(context, device)
        x = gg.transpose(gg.view(leaf, 5, 0, nb=(0,)))
        y = gg.sum_rows(x).set_output()
        scheduler.compute(gg.Graph(y))
        assert not y.numpy().any()
print("done")
"""


@pytest.mark.parametrize(
    ("device", "step"), [("CPU", 1), ("OpenCL0", 4), pytest.param("OpenCL0", 1, marks=pytest.mark.long)]
)
def test_ops_on_nothing_compute_where_nothing_has_an_address(device: str, step: int) -> None:
    """Computed as programs do, without memory around empty tensors that a kernel could read unpunished."""
    pytest.importorskip("ggplug_cpu" if device == "CPU" else "ggplug_opencl")
    done = subprocess.run(
        [sys.executable, "-c", _COMPUTE_ALL, device, str(step)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]


# -- strides ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ne", "nb", "contiguous", "rows_apart", "transposed", "permuted"),
    [
        # contiguous without elements: its rows, or its matrices, take no bytes
        ((0, 5, 1, 1), (4, 0, 0, 0), True, True, True, True),
        ((5, 0, 1, 1), (4, 20, 0, 0), True, True, False, True),
        # the strides of extents of one do not matter for being contiguous
        ((1, 5, 1, 1), (64, 4, 96, 8), True, True, True, True),
        ((5, 1, 3, 1), (4, 1000, 20, 60), True, False, False, True),
        # but rows may lie apart only if what is above follows them
        ((5, 1, 3, 1), (4, 100, 100, 300), False, True, False, False),
        ((5, 2, 3, 1), (4, 100, 200, 600), False, True, False, False),
        # transposed, and permuted, without elements
        ((0, 5, 1, 1), (20, 4, 0, 0), False, False, True, True),
        ((4, 0, 3, 2), (4, 48, 16, 0), False, False, False, True),
    ],
)
def test_strides_are_judged_as_ggml_judges_them(
    ne: Any, nb: Any, contiguous: bool, rows_apart: bool, transposed: bool, permuted: bool
) -> None:
    x = Tensor(Spec(F32, ne, 4, nb))
    assert (x.is_contiguous(), x.is_contiguous_from(1)) == (contiguous, rows_apart)
    assert (x.is_transposed(), x.is_permuted()) == (transposed, permuted)


def test_a_product_over_nothing_is_computed_though_its_weights_count_as_transposed() -> None:
    weights = t(0, 5)
    assert weights.is_transposed()
    assert ops.mul_mat(weights, t(0, 3)).ne == (5, 3, 1, 1)
    with pytest.raises(ShapeError, match="must not be transposed"):
        ops.mul_mat(ops.transpose(t(5, 4)), t(4, 3))
