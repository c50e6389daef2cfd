"""The CPU device's kernels against the ops' float64 references, where generated cases do not reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("ggplug_cpu")

import ggplug as gg
from ggplug import ops, quants, types
from ggplug.memory import GraphAllocator
from ggplug.tensor import Tensor
from ggplug.values.arrays import decode, encode
from ggplug_cpu.device import CpuDevice
from ggplug_testing import evaluate, nmse

Array = npt.NDArray[np.float64]

SPECIAL = np.array([0.0, -0.0, 1e-42, -1e-30, 1e30, -1e30, math.inf, -math.inf, math.nan], np.float32)


@pytest.fixture(scope="module")
def device() -> Iterator[CpuDevice]:
    cpu = CpuDevice()
    yield cpu
    cpu.team.close()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20260)


def computed(device: CpuDevice, *outputs: Tensor) -> list[npt.NDArray[np.generic]]:
    """What the device makes of a graph."""
    graph = gg.Graph(*[output if output.op.writes else output.set_output() for output in outputs])  # type: ignore[union-attr]
    with GraphAllocator(device.buffer_type) as memory, device.init() as stream:
        stream.compute(graph, memory.allocate(graph))
        return [output.numpy() for output in outputs]


def expected(output: Tensor) -> Array:
    """What the op's reference makes of it, in the tensor's shape."""
    return evaluate(gg.Graph(output), {})[output].reshape(output.shape)


def stored(values: Array, kind: str) -> Array:
    """What a tensor of a type holds after an op has stored these numbers: halfway cases as ops round them."""
    tensor = gg.new_tensor(kind, values.shape[::-1])
    return decode(encode(values.astype(np.float32), tensor.type, stored=True), tensor).reshape(values.shape)


def check(device: CpuDevice, output: Tensor, tolerance: float) -> None:
    want = expected(output)
    (got,) = computed(device, output)
    assert nmse(np.asarray(got, np.float64), want) <= tolerance, output


# -- functions of one number ------------------------------------------------------------------------

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        name: getattr(ops, name)
        for name in (
            "abs",
            "sgn",
            "neg",
            "step",
            "sqr",
            "sqrt",
            "log",
            "exp",
            "expm1",
            "sin",
            "cos",
            "floor",
            "ceil",
            "round",
            "trunc",
            "tanh",
            "relu",
            "elu",
            "sigmoid",
            "softplus",
            "silu",
            "gelu",
            "gelu_erf",
            "gelu_quick",
            "hardsigmoid",
            "hardswish",
        )
    },
    "scale": lambda x: ops.scale(x, -1.5, 0.25),
    "clamp": lambda x: ops.clamp(x, -0.5, 2.0),
    "leaky_relu": lambda x: ops.leaky_relu(x, 0.1),
    "xielu": lambda x: ops.xielu(x, 0.3, 0.7, 0.5, -1e-6),
}

# Sums whose terms are larger than themselves, and the far tails of exponentials: exact to a last place of so much of x.
TERMS = {
    "gelu": 1e-2,
    "gelu_quick": 1e-3,
    "gelu_erf": 1.0,
    "xielu": 1.0,
    "scale": 1.0,
    "hardswish": 1.0,
    "hardsigmoid": 1.0,
}


@pytest.mark.parametrize("name", UNARY)
def test_a_function_is_exact_to_a_few_last_places_on_all_floats(name: str, device: CpuDevice) -> None:
    dense = np.linspace(-12, 12, 4001, dtype=np.float32)
    spread = np.geomspace(1e-6, 80, 500, dtype=np.float32)
    whole = np.arange(-8, 9, dtype=np.float32)  # some instructions know 1
    x = np.concatenate([dense, spread, -spread, whole])
    tensor = UNARY[name](gg.tensor(x))
    (got,), want = computed(device, tensor), expected(tensor)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    good = np.isfinite(want)
    size = np.maximum(np.abs(want[good]), TERMS.get(name, 0) * np.abs(x[good]))
    error = np.abs(np.asarray(got, np.float64)[good] - want[good]) / np.spacing(size.astype(np.float32))
    assert error.max() <= 8, x[good][error.argmax()]


@pytest.mark.parametrize("name", UNARY)
def test_a_function_treats_zeros_infinities_and_nan_as_its_reference(name: str, device: CpuDevice) -> None:
    if name == "scale":
        pytest.skip("nothing special about it")
    tensor = UNARY[name](gg.tensor(SPECIAL))
    (got,) = computed(device, tensor)
    want = expected(tensor).astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 1023, 1024, 1025, 4095, 4096, 4097, 70_000])
def test_lengths_around_vectors_blocks_and_pieces(size: int, device: CpuDevice, rng: np.random.Generator) -> None:
    x = rng.standard_normal(size, np.float32)
    half = gg.tensor(x, "f16")
    full, halved = computed(device, ops.neg(gg.tensor(x)), ops.neg(half))
    np.testing.assert_array_equal(full, -x)
    np.testing.assert_array_equal(halved, -x.astype(np.float16))


# -- functions of two numbers, and gated linear units ------------------------------------------------


@pytest.mark.parametrize(
    "types_of", ["f32 f32", "f16 f16", "bf16 bf16", "f16 f32", "bf16 f32", "f32 f16", "q8_0 f32", "q4_0 f32"]
)
def test_sources_of_all_types_are_added_in_f32(types_of: str, device: CpuDevice, rng: np.random.Generator) -> None:
    left, right = types_of.split()
    a, b = rng.standard_normal((3, 5, 96)), rng.standard_normal((3, 5, 96))
    node = ops.add(gg.tensor(a, left), gg.tensor(b, right))
    check(device, node, {"q8_0": 1e-4, "q4_0": 2e-2, "bf16": 1e-5, "f16": 1e-7}.get(left, 1e-14))


BROADCASTS = [
    ((4, 6, 8, 32), (4, 6, 8, 32)),
    ((4, 6, 8, 32), (32,)),
    ((4, 6, 8, 32), (8, 1)),
    ((4, 6, 8, 32), (1, 1, 1, 1)),
    ((4, 6, 8, 32), (2, 3, 4, 16)),
    ((4, 6, 8, 32), (1, 6, 1, 32)),
    ((4, 6, 8, 32), (4, 1, 1, 8)),
    ((8, 1), (2, 1)),
]


@pytest.mark.parametrize(("whole", "part"), BROADCASTS)
def test_the_second_source_repeats(whole: tuple[int, ...], part: tuple[int, ...], device: CpuDevice) -> None:
    rng = np.random.default_rng(7)
    a, b = gg.tensor(rng.standard_normal(whole, np.float32)), gg.tensor(rng.standard_normal(part, np.float32))
    for combine in (ops.sub, ops.div):
        check(device, combine(a, b), 1e-13)


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
@pytest.mark.parametrize("part", [(32,), (64,), (1,), (5, 1), (3, 1, 32), (16,), (48,), (3, 1, 24)])
def test_the_second_source_repeats_to_blocks(kind: str, part: tuple[int, ...], device: CpuDevice) -> None:
    rng = np.random.default_rng(8)
    a, b = gg.tensor(rng.standard_normal((3, 5, 192)), kind), gg.tensor(10 * rng.standard_normal(part, np.float32))
    check(device, ops.add(a, b), {"q8_0": 1e-4, "q4_0": 2e-2}[kind])


def test_sources_may_be_permuted_sliced_and_the_same(device: CpuDevice, rng: np.random.Generator) -> None:
    x = gg.tensor(rng.standard_normal((5, 7, 9, 12), np.float32))
    permuted = ops.permute(x, 2, 0, 1, 3)
    slice_ = ops.view(x, 6, 4, 3, nb=x.nb[1:3], offset=8 * x.nb[1] + 8)
    for a, b in ((permuted, permuted), (slice_, slice_), (ops.transpose(x), ops.transpose(x))):
        check(device, ops.mul(a, b), 1e-14)


@pytest.mark.parametrize("name", ["reglu", "geglu", "geglu_erf", "geglu_quick", "swiglu", "swiglu_clamp", "swiglu_oai"])
@pytest.mark.parametrize("elem", ["f32", "f16"])
def test_gated_linear_units_of_halves_and_of_two_sources(name: str, elem: str, device: CpuDevice) -> None:
    rng = np.random.default_rng(11)
    x, gate = gg.tensor(3 * rng.standard_normal((7, 70)), elem), gg.tensor(rng.standard_normal((7, 70)), elem)
    unit = getattr(ops, name)
    for node in (unit(x), unit(x, swapped=True), unit(x, gate), unit(ops.view(x, 40, 7, nb=x.nb[1:2], offset=x.nb[0]))):
        check(device, node, 1e-12 if elem == "f32" else 1e-6)


# -- rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalise", [ops.norm, ops.rms_norm, ops.l2_norm])
@pytest.mark.parametrize("n", [1, 3, 31, 32, 33, 384, 1000])
def test_rows_are_normalised_accurately_far_from_zero(
    normalise: Callable[..., Tensor], n: int, device: CpuDevice
) -> None:
    rng = np.random.default_rng(n)
    x = gg.tensor((rng.standard_normal((6, n)) + 100).astype(np.float32))
    check(device, normalise(x, eps=1e-5), 1e-9)


@pytest.mark.parametrize("first", [-1e30, -1e6, 1000.0, 1e18])
def test_a_first_number_far_from_all_others_leaves_the_variance_exact(first: float, device: CpuDevice) -> None:
    x = np.random.default_rng(5).standard_normal((3, 1000)).astype(np.float32)
    x[:, 0] = first
    (got,) = computed(device, y := ops.norm(gg.tensor(x), eps=1e-5))
    np.testing.assert_allclose(got, expected(y), rtol=1e-6, atol=1e-7)


def test_a_variance_far_smaller_than_the_mean_is_exact(device: CpuDevice) -> None:
    steps = np.random.default_rng(6).permutation(np.resize([-1, 1], 4000))
    x = (8192 + steps * 2.0**-10).astype(np.float32)
    (got,) = computed(device, ops.norm(gg.tensor(x), eps=0.0))
    np.testing.assert_allclose(got, steps, rtol=1e-6)


def test_rows_of_equal_numbers_have_no_variance(device: CpuDevice) -> None:
    (got,) = computed(device, ops.norm(gg.tensor(np.full((2, 1001), 12345.678, np.float32)), eps=1e-12))
    np.testing.assert_array_equal(got, 0)


@pytest.mark.parametrize("op", [ops.norm, ops.rms_norm, ops.l2_norm])
def test_rows_of_subnormal_numbers_are_normalised(op: Callable[..., Tensor], device: CpuDevice) -> None:
    x = gg.tensor(np.resize(np.array([1e-42, -4e-42, 9e-42], np.float32), (2, 37)))
    (got,) = computed(device, y := op(x, eps=0.0))
    np.testing.assert_allclose(got, expected(y), rtol=1e-6)


def test_rows_that_are_not_contiguous_are_normalised(device: CpuDevice, rng: np.random.Generator) -> None:
    x = ops.permute(gg.tensor(rng.standard_normal((3, 4, 5, 40), np.float32)), 1, 2, 0, 3)
    check(device, ops.norm(x), 1e-12)
    check(device, ops.rms_norm(gg.tensor(rng.standard_normal((4, 50)), "bf16")), 1e-5)


@pytest.mark.parametrize("mask_type", ["f32", "f16"])
def test_softmax_with_a_mask_that_hides_positions(mask_type: str, device: CpuDevice, rng: np.random.Generator) -> None:
    hidden = np.where(rng.random((2, 1, 40, 37)) < 0.4, -math.inf, 0.0)
    hidden[..., 0] = 0
    x = gg.tensor(10 * rng.standard_normal((2, 6, 33, 37)).astype(np.float32))
    sinks = gg.tensor(rng.standard_normal(6, np.float32))
    mask = gg.tensor(hidden, mask_type)
    for parameters in ({"scale": 0.3}, {"scale": 0.3, "max_bias": 8.0}):
        check(device, ops.soft_max(x, mask, **parameters), 1e-12)
        check(device, ops.soft_max(x, mask, sinks, **parameters), 1e-12)


def test_softmax_of_huge_logits_neither_overflows_nor_loses_the_sum(device: CpuDevice) -> None:
    x = np.full((2, 5000), 3e4, np.float32)
    x[1, 17] = 3e4 + 100
    (got,) = computed(device, ops.soft_max(gg.tensor(x)))
    np.testing.assert_allclose(got[0], 1 / 5000, rtol=1e-6)
    assert got[1, 17] == 1
    assert abs(float(got[0].sum(dtype=np.float64)) - 1) < 1e-6


@pytest.mark.parametrize("mode", [types.RopeMode.NORMAL, types.RopeMode.NEOX])
def test_rope_is_exact_at_the_end_of_a_long_context(mode: types.RopeMode, device: CpuDevice) -> None:
    rng = np.random.default_rng(3)
    x = gg.tensor(rng.standard_normal((4, 3, 72), np.float32))
    positions = gg.tensor(np.array([0, 1, 131_071, 1_000_003], np.int32))
    factors = gg.tensor((1 + rng.random(32)).astype(np.float32))
    yarn = {"freq_scale": 0.25, "ext_factor": 1.0, "n_ctx_orig": 4096, "attn_factor": 1.1}
    for node in (
        ops.rope(x, positions, 64, mode=int(mode)),
        ops.rope(x, positions, 64, factors, mode=int(mode), **yarn),
        ops.rope(x, positions, 40, mode=int(mode), n_offs=16),
    ):
        check(device, node, 1e-13)


@pytest.mark.parametrize("elem", ["f32", "f16", "bf16"])
def test_sums_are_as_good_as_f64(elem: str, device: CpuDevice, rng: np.random.Generator) -> None:
    x = gg.tensor(50 * rng.standard_normal((30, 2003)), elem)
    exact = x.numpy().astype(np.float64)
    total, rows, means = computed(device, ops.sum(x), ops.sum_rows(x), ops.mean(x))
    place = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}[elem]
    assert abs(float(total) - math.fsum(exact.ravel())) <= place * abs(math.fsum(exact.ravel()))
    sums = np.array([math.fsum(row) for row in exact])
    np.testing.assert_allclose(np.asarray(rows, np.float64).ravel(), sums, rtol=place)
    np.testing.assert_allclose(means.ravel(), sums / 2003, rtol=1e-6)


def test_the_first_of_the_largest_wins(device: CpuDevice) -> None:
    x = np.zeros((5, 100), np.float32)
    x[0, [31, 64, 99]] = 5
    x[1] = -math.inf
    x[2, 99] = 1
    x[3] = -np.arange(100)
    x[4, 16] = math.inf
    (got,) = computed(device, ops.argmax(gg.tensor(x)))
    assert got.tolist() == [31, 0, 99, 0, 16]


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 64, 1000, 4097])
def test_sorting_is_a_stable_permutation_in_both_orders(n: int, device: CpuDevice) -> None:
    rng = np.random.default_rng(n)
    x = rng.integers(-5, 5, (3, n)).astype(np.float32)
    x[0, rng.integers(n)] = math.inf
    x[1, rng.integers(n)] = -math.inf
    up, down = computed(device, ops.argsort(gg.tensor(x)), ops.argsort(gg.tensor(x), 1))
    np.testing.assert_array_equal(up, np.argsort(x, axis=-1, kind="stable"))
    np.testing.assert_array_equal(down, np.argsort(-x, axis=-1, kind="stable"))


# -- copies -----------------------------------------------------------------------------------------

PLAIN = ("f32", "f16", "bf16")


@pytest.mark.parametrize("source", PLAIN)
@pytest.mark.parametrize("target", [*PLAIN, "q8_0", "q4_0"])
def test_every_type_is_copied_into_every_other(source: str, target: str, device: CpuDevice) -> None:
    rng = np.random.default_rng(5)
    x = gg.tensor(rng.standard_normal((4, 3, 64)), source)
    permuted = ops.permute(x, 0, 2, 1, 3)
    node = ops.cpy(permuted, gg.tensor(np.zeros((3, 4, 64)), target))
    (got,) = computed(device, node)
    want = np.ascontiguousarray(x.numpy().astype(np.float32).transpose(1, 0, 2))
    kind = types.by_name(target)
    np.testing.assert_array_equal(got, quants.dequantize(quants.quantize(want, kind), kind).reshape(got.shape))


@pytest.mark.parametrize("source", ["q8_0", "q4_0"])
@pytest.mark.parametrize("target", [*PLAIN, "q8_0"])
def test_blocks_are_decoded_and_copied_as_they_are(source: str, target: str, device: CpuDevice) -> None:
    rng = np.random.default_rng(6)
    x = gg.tensor(rng.standard_normal((4, 3, 64)), source)
    (got,) = computed(device, ops.cpy(ops.permute(x, 0, 2, 1, 3), gg.tensor(np.zeros((3, 4, 64)), target)))
    want = stored(x.numpy().transpose(1, 0, 2), target)
    np.testing.assert_array_equal(got, want)


def test_numbers_become_integers_and_back(device: CpuDevice) -> None:
    x = np.array([[-2.7, -0.5, 0.0, 1.99, 1e6, 40.0]], np.float32)
    integers, floats = computed(device, ops.cast(gg.tensor(x), "i32"), ops.cast(gg.tensor(x.astype(np.int32)), "f32"))
    np.testing.assert_array_equal(integers, x.astype(np.int32))
    np.testing.assert_array_equal(floats, np.trunc(x))


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.int64])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 70), (16, 16), (17, 33), (8, 100), (64, 7), (40, 48)])
def test_transposed_matrices_of_all_sizes(dtype: type, rows: int, columns: int, device: CpuDevice) -> None:
    x = np.arange(3 * rows * columns).reshape(3, rows, columns).astype(dtype)
    (got,) = computed(device, ops.cont(ops.transpose(gg.tensor(x))))
    np.testing.assert_array_equal(got, x.transpose(0, 2, 1))
    target = gg.tensor(np.zeros_like(got))
    computed(device, ops.cpy(gg.tensor(x), ops.transpose(target)))
    np.testing.assert_array_equal(target.numpy(), x.transpose(0, 2, 1))


@pytest.mark.parametrize("axes", [(1, 2, 0, 3), (2, 1, 0, 3), (3, 0, 2, 1), (1, 0, 3, 2), (0, 3, 1, 2)])
def test_every_permutation_becomes_contiguous(
    axes: tuple[int, ...], device: CpuDevice, rng: np.random.Generator
) -> None:
    x = gg.tensor(rng.standard_normal((9, 10, 11, 17), np.float32))
    node = ops.cont(ops.permute(x, *axes))
    (got,) = computed(device, node)
    np.testing.assert_array_equal(got, expected(node))


def test_strided_tensors_of_different_shapes_are_matched_in_order(device: CpuDevice) -> None:
    x = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    source = ops.permute(gg.tensor(x), 0, 2, 1, 3)
    for kind in ("f32", "f16"):
        memory = gg.tensor(np.zeros((10, 6, 3)), kind)
        target = ops.view(memory, 2, 6, 10, nb=memory.nb[1:3], offset=memory.nb[0])
        node = ops.cpy(source, target)
        (got,) = computed(device, node)
        np.testing.assert_array_equal(got.reshape(-1), x.transpose(0, 2, 1, 3).reshape(-1))
        np.testing.assert_array_equal(memory.numpy()[..., 0], 0)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.float32])
def test_repeated_and_joined(dtype: type, device: CpuDevice) -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    a = gg.tensor(x)
    (wide,) = computed(device, ops.repeat(a, 8, 3, 4, 2))
    np.testing.assert_array_equal(wide, np.tile(x, (2, 2, 1, 2)))
    for dim in range(4):
        (joined,) = computed(device, ops.concat(a, ops.permute(a, 0, 1, 2, 3), dim))
        np.testing.assert_array_equal(joined, np.concatenate([x[None], x[None]], 3 - dim).reshape(joined.shape))


def test_the_same_source_twice_is_no_other_nodes_choice(device: CpuDevice, rng: np.random.Generator) -> None:
    x, y = (rng.standard_normal((3, 7)).astype(np.float32) for _ in range(2))
    a, b = gg.tensor(x), gg.tensor(y)
    for make, formula in ((ops.mul, np.multiply), (ops.add, np.add)):
        for first, second in (((a, a), (a, b)), ((a, b), (b, b))):
            got = computed(device, make(*first), make(*second))
            for sources, result in zip((first, second), got, strict=True):
                np.testing.assert_array_equal(result, formula(*(s.numpy() for s in sources)))


# -- rows by index ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*PLAIN, "q8_0", "q4_0", "i32"])
def test_rows_of_every_type_are_picked(kind: str, device: CpuDevice, rng: np.random.Generator) -> None:
    table = gg.tensor(rng.integers(-100, 100, (2, 40, 1088)), kind)
    ids = rng.integers(0, 40, (2, 9)).astype(np.int32)
    (got,) = computed(device, ops.get_rows(table, gg.tensor(ids)))
    want = table.numpy()[np.arange(2)[:, None], ids]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", [*PLAIN, "q8_0", "q4_0"])
@pytest.mark.parametrize(("source", "index"), [("f32", "i64"), ("f16", "i32"), ("bf16", "i64")])
def test_rows_of_every_type_are_written(kind: str, source: str, index: str, device: CpuDevice) -> None:
    rng = np.random.default_rng(8)
    cache = gg.tensor(rng.standard_normal((2, 12, 1088)), kind)
    before = cache.numpy()
    rows = gg.tensor(rng.standard_normal((2, 4, 1088)), source)
    ids = np.stack([rng.permutation(12)[:4] for _ in range(2)])
    node = ops.set_rows(cache, rows, gg.tensor(ids, index))
    (got,) = computed(device, node)
    want = before.copy()
    want[np.arange(2)[:, None], ids] = stored(rows.numpy(), kind)
    np.testing.assert_array_equal(got, want)


def test_blocks_are_repeated_and_joined_as_they_are(device: CpuDevice, rng: np.random.Generator) -> None:
    a = gg.tensor(rng.standard_normal((3, 2, 64)), "q4_0")
    b = gg.tensor(rng.standard_normal((3, 2, 32)), "q4_0")
    wide, joined, stacked = computed(device, ops.repeat(a, 64, 4, 3), ops.concat(a, b, 0), ops.concat(a, a, 2))
    np.testing.assert_array_equal(wide, np.tile(a.numpy(), (1, 2, 1)))
    np.testing.assert_array_equal(joined, np.concatenate([a.numpy(), b.numpy()], -1))
    np.testing.assert_array_equal(stacked, np.concatenate([a.numpy(), a.numpy()], 0))
    (longer,) = computed(device, ops.repeat(b, 96, 2, 3))
    np.testing.assert_array_equal(longer, np.tile(b.numpy(), (1, 1, 3)))


# -- windows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "width"), [(1, (1 << 24) + 3), (2048, 2048)])
def test_the_gradient_of_one_window_over_all_goes_to_its_maximum_or_to_all(
    height: int, width: int, device: CpuDevice
) -> None:
    """With as many steps as elements; as many for each element would take days."""
    x = np.zeros((1, 1, height, width), np.float32)
    x[..., -1, -2] = 1
    for kind in gg.PoolKind:
        grad, window = np.full((1, 1, 1, 1), 6, np.float32), (width, height, width, height)
        (found,) = computed(device, gg.pool_2d_back(gg.tensor(grad), gg.tensor(x), kind, *window))
        if kind is gg.PoolKind.MAX:
            assert found[..., -1, -2] == 6
            assert np.count_nonzero(found) == 1
        else:
            assert (found == np.float32(6) / np.float32(x.size)).all()
