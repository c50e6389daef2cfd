"""The vectors that kernels are written with, on every target this machine can compile for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("ggplug_cpu")

from cyclic_pairs import cyclic_pairs

from ggplug import quants, types
from ggplug_cpu import features, simd
from ggplug_cpu.compiler import Body, Kernel, kernel
from ggplug_cpu.context import real, store_word, word
from ggplug_cpu.instruction_sets import X86_64
from ggplug_cpu.ops.mul_mat.gemm import mul_mat_gemm
from ggplug_cpu.parts.quantize import dequantize_row, quantize_row
from ggplug_cpu.simd.tiles import STATE_BYTES
from ggplug_cpu.team import Team
from ggplug_cpu.types import BLOCKS, ENCODED

Array = npt.NDArray[Any]

_TARGETS = list(features.choices())
if features.has("avxvnni"):
    _TARGETS.append("avx2+avxvnni")


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    with Team(1) as team:
        yield team


@pytest.fixture(params=_TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    with features.forced(request.param):
        yield request.param


def address(array: Array) -> int:
    return int(array.ctypes.data)


def run(team: Team, function: Kernel, *words: int | float | Array) -> None:
    team.call(function, *(address(w) if isinstance(w, np.ndarray) else w for w in words))


def floats(n: int, seed: int) -> Array:
    """All kinds of f32: normal numbers, every exponent, and what is special."""
    rng = np.random.default_rng(seed)
    any_bits = rng.integers(0, 1 << 32, n, dtype=np.uint32).view(np.float32)
    any_bits[np.isnan(any_bits)] = np.nan  # NumPy warns where it meets a signalling one
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, 0.5, -0.5, 1.5, 2.5], np.float32)
    return np.concatenate([any_bits, rng.standard_normal(n).astype(np.float32) * 8, special])


# -- elementwise functions -------------------------------------------------------------------------------

_UNARY = (
    "sqrt",
    "absolute",
    "round_even",
    "round_away",
    "floor",
    "ceil",
    "truncate",
    "exp",
    "log",
    "tanh",
    "sigmoid",
    "erf",
)


@kernel
def unary(names: str) -> Body:
    """y[j] = f_j(x) for several functions; whole vectors, then the first lanes of one."""
    F, width = simd.vec("f32"), simd.width()
    load, load_first, store, store_first = simd.load(F), simd.load_first(F), simd.store, simd.store_first
    functions = [getattr(simd, name) for name in names.split()]
    f0, f1, f2, f3 = functions

    def body(ctx: int, params: int) -> None:
        n, x, y = word(params, 0), word(params, 1), word(params, 2)
        whole = n - n % width
        for i in range(0, whole, width):
            v = load(x + 4 * i)
            store(y + 4 * i, f0(v))
            store(y + 4 * (n + i), f1(v))
            store(y + 4 * (2 * n + i), f2(v))
            store(y + 4 * (3 * n + i), f3(v))
        v = load_first(x + 4 * whole, n - whole)
        store_first(y + 4 * whole, f0(v), n - whole)
        store_first(y + 4 * (n + whole), f1(v), n - whole)
        store_first(y + 4 * (2 * n + whole), f2(v), n - whole)
        store_first(y + 4 * (3 * n + whole), f3(v), n - whole)

    return body


def apply(team: Team, names: tuple[str, ...], x: Array) -> dict[str, Array]:
    out = np.full((4, x.size), np.nan, np.float32)
    run(team, unary(" ".join(names)), x.size, x, out)
    return dict(zip(names, out, strict=True))


def test_square_roots_and_roundings_are_exact(target: str, team: Team) -> None:
    x = floats(5000, 1)
    with np.errstate(all="ignore"):
        away = np.trunc(np.abs(x.astype(np.float64)) + 0.5) * np.sign(x)
        wanted = {
            "sqrt": np.sqrt(x),
            "absolute": np.abs(x),
            "round_even": np.rint(x),
            "round_away": np.where(np.abs(x) < 2**24, away, x),
            "floor": np.floor(x),
            "ceil": np.ceil(x),
            "truncate": np.trunc(x),
            "sigmoid": None,
        }
    names = tuple(wanted)
    got = apply(team, names[:4], x) | apply(team, names[4:], x)
    for name, exact in wanted.items():
        if exact is not None:
            np.testing.assert_array_equal(got[name], exact.astype(np.float32), err_msg=name)


@pytest.mark.parametrize("sign", [1, -1])
def test_halves_round_away_and_to_even_right_below_and_above(target: str, team: Team, sign: int) -> None:
    half = np.arange(50, dtype=np.float32) + np.float32(0.5)
    x = sign * np.concatenate([half, np.nextafter(half, np.float32(0)), np.nextafter(half, np.float32(99))])
    got = apply(team, ("sqrt", "absolute", "round_even", "round_away"), x)
    np.testing.assert_array_equal(got["round_even"], np.rint(x))
    np.testing.assert_array_equal(got["round_away"], [math.copysign(math.floor(abs(v) + 0.5), v) for v in x.tolist()])


def ulps(got: Array, exact: Array) -> Array:
    """The error in units of the last place of the exact result; equal specials have none."""
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = exact.astype(np.float32)
        error: Array = np.abs(got.astype(np.float64) - exact) / np.spacing(np.abs(rounded)).astype(np.float64)
    error[(got == rounded) | (np.isnan(got) & np.isnan(rounded))] = 0
    return error


def test_transcendental_functions_err_by_less_than_their_documented_ulps(target: str, team: Team) -> None:
    x = np.concatenate([floats(20000, 2), np.linspace(-110, 100, 30001, dtype=np.float32)])
    precise = x.astype(np.float64)
    with np.errstate(all="ignore"):
        wanted = {
            "exp": (np.exp(precise), 1.0),
            "log": (np.log(precise), 0.8),
            "tanh": (np.tanh(precise), 1.3),
            "erf": (np.array([math.erf(v) for v in precise.tolist()]), 1.3),
        }
    for name, value in apply(team, tuple(wanted), x).items():
        exact, allowed = wanted[name]
        error = ulps(value, exact)
        worst = int(np.nanargmax(error))
        assert not np.isnan(error).any(), name
        assert error[worst] <= allowed, (name, x[worst], value[worst], exact[worst])


def test_the_sigmoid_is_precise_down_to_the_smallest_normal_number(target: str, team: Team) -> None:
    x = np.linspace(-87, 100, 30001, dtype=np.float32)
    got = apply(team, ("sigmoid", "exp", "tanh", "erf"), x)["sigmoid"]
    assert ulps(got, 1 / (1 + np.exp(-x.astype(np.float64)))).max() <= 2.0
    extreme = np.array([np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(
        apply(team, ("sigmoid", "exp", "tanh", "erf"), extreme)["sigmoid"], np.array([1, 0, np.nan], np.float32)
    )


@kernel
def binary() -> Body:
    F, width = simd.vec("f32"), simd.width()
    load, I = simd.load(F), simd.vec("i32")
    as_int = simd.convert(I)
    fma, add, sub, mul, div = simd.fma, simd.add, simd.sub, simd.mul, simd.div
    less, equal, unequal, select = simd.less, simd.equal, simd.unequal, simd.select

    def body(ctx: int, params: int) -> None:
        n, x, y, out, s = word(params, 0), word(params, 1), word(params, 2), word(params, 3), real(params, 4)
        for i in range(0, n, width):
            a, b = load(x + 4 * i), load(y + 4 * i)
            at = out + 4 * i
            simd.store(at, a * b + a - b / a)
            simd.store(at + 4 * n, simd.maximum(a, b))
            simd.store(at + 8 * n, simd.minimum(a, b))
            simd.store(at + 12 * n, select(less(a, b), 1.0, b))
            simd.store(at + 16 * n, select(equal(a, b) | unequal(a, a), a, -2.0))
            simd.store(at + 20 * n, fma(a, s, 1.0))
            simd.store(at + 24 * n, div(sub(mul(add(a, 1), 2), 3), s))
            simd.store(at + 28 * n, simd.copysign(a, b))
            simd.store(at + 32 * n, -a)
            simd.store(at + 36 * n, as_int(a))

    return body


def test_operators_numbers_comparisons_and_masks(target: str, team: Team) -> None:
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal(64).astype(np.float32) for _ in range(2))
    y[::7] = x[::7]
    out = np.zeros((10, 64), np.float32)
    run(team, binary(), 64, x, y, out, 3.0)
    f = np.float32
    np.testing.assert_array_equal(out[0], x * y + x - y / x)
    np.testing.assert_array_equal(out[1], np.maximum(x, y))
    np.testing.assert_array_equal(out[2], np.minimum(x, y))
    np.testing.assert_array_equal(out[3], np.where(x < y, f(1), y))
    np.testing.assert_array_equal(out[4], np.where(x == y, x, f(-2)))
    np.testing.assert_allclose(out[5], x * f(3) + f(1), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(out[6], ((x + f(1)) * f(2) - f(3)) / f(3))
    np.testing.assert_array_equal(out[7], np.copysign(x, y))
    np.testing.assert_array_equal(out[8], -x)
    np.testing.assert_array_equal(out[9].view(np.int32), x.astype(np.int32))


def test_where_an_operand_is_nan_the_second_is_the_larger_and_the_smaller(target: str, team: Team) -> None:
    x, y = np.full(64, np.nan, np.float32), np.arange(64, dtype=np.float32)
    out = np.zeros((10, 64), np.float32)
    run(team, binary(), 64, x, y, out, 1.0)
    np.testing.assert_array_equal(out[1], y)
    np.testing.assert_array_equal(out[2], y)
    np.testing.assert_array_equal(out[3], y)
    assert np.isnan(out[4]).all()


@kernel
def integers() -> Body:
    I, width = simd.vec("i32"), simd.width("i32")
    load, splat, iota = simd.load(I), simd.splat(I), simd.iota(I)

    def body(ctx: int, params: int) -> None:
        n, x, y, out = word(params, 0), word(params, 1), word(params, 2), word(params, 3)
        for i in range(0, n, width):
            a, b = load(x + 4 * i), load(y + 4 * i)
            at = out + 4 * i
            simd.store(at, (a + b) * splat(3) - (a & b) + (a | b) + (a ^ b))
            simd.store(at + 4 * n, (a << splat(3)) + (a >> splat(2)) + simd.shift_right_unsigned(a, 5))
            simd.store(at + 8 * n, simd.maximum(a, b) + simd.minimum(a, 7) + simd.absolute(b) + ~a + -b)
            simd.store(at + 12 * n, iota())

    return body


def test_integers(target: str, team: Team) -> None:
    rng = np.random.default_rng(4)
    x, y = (rng.integers(-(2**20), 2**20, 64, dtype=np.int32) for _ in range(2))
    out = np.zeros((4, 64), np.int32)
    run(team, integers(), 64, x, y, out)
    np.testing.assert_array_equal(out[0], (x + y) * 3 - (x & y) + (x | y) + (x ^ y))
    np.testing.assert_array_equal(out[1], (x << 3) + (x >> 2) + (x.view(np.uint32) >> 5).view(np.int32))
    np.testing.assert_array_equal(out[2], np.maximum(x, y) + np.minimum(x, 7) + np.abs(y) + ~x + -y)
    with features.forced(target):
        np.testing.assert_array_equal(out[3], np.arange(64) % simd.width("i32"))


@kernel
def reductions() -> Body:
    F, width = simd.vec("f32"), simd.width()
    load, equal = simd.load(F), simd.equal

    def body(ctx: int, params: int) -> None:
        x, out = word(params, 0), word(params, 1)
        v = load(x)
        simd.store_f32(out, simd.hsum(v))
        simd.store_f32(out + 4, simd.hmax(v))
        simd.store_f32(out + 8, simd.hmin(v))
        simd.store_f32(out + 12, simd.lane(v, width - 1))
        simd.store_f32(out + 16, simd.hsum(simd.low_half(v)))
        simd.store_f32(out + 20, simd.hsum(simd.concat(v, v)))
        store_word(out + 24, int(simd.any_lane(equal(v, 2.0))))
        store_word(out + 32, int(simd.all_lanes(equal(v, v))))
        store_word(out + 40, int(simd.any_lane(equal(v, 99.0))))
        store_word(out + 48, int(simd.all_lanes(equal(v, 2.0))))

    return body


def test_reductions_and_lanes(target: str, team: Team) -> None:
    x, out = np.arange(1, 17, dtype=np.float32), np.zeros(14, np.float32)
    run(team, reductions(), x, out)
    n = simd.width()
    total = n * (n + 1) / 2
    half = n // 2
    assert out[:6].tolist() == [total, n, 1, n, half * (half + 1) / 2, 2 * total]
    assert out[6:].view(np.int64).tolist() == [1, 1, 0, 0]


# -- memory ----------------------------------------------------------------------------------------------


@kernel
def copy_first(elem: str) -> Body:
    T = simd.vec(elem)
    load_first, store_first = simd.load_first(T), simd.store_first

    def body(ctx: int, params: int) -> None:
        store_first(word(params, 1), load_first(word(params, 0), word(params, 2)), word(params, 3))

    return body


@pytest.mark.parametrize("elem", ["i8", "i16", "i32", "f32", "f64"])
def test_first_lanes_are_read_and_written_and_no_byte_beyond(target: str, team: Team, elem: str) -> None:
    import mmap

    width, size = simd.width(elem), simd.elem_bytes(elem)
    # the numbers end where the process's memory may: a page that is never touched follows in an anonymous mapping
    page = mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, page), np.uint8)
    memory[:] = np.arange(page) % 251 + 1
    for n in {0, 1, 2, width // 2 + 1, width - 1, width}:
        source = memory[page - n * size :]
        out = np.zeros(width * size + 16, np.uint8)
        team.call(copy_first(elem), address(memory) + page - n * size, address(out), n, width)
        assert out[: n * size].tolist() == source.tolist()
        assert not out[n * size :].any()
        full = np.full(width * size + 16, 255, np.uint8)
        team.call(copy_first(elem), address(memory), address(full), width, n)
        assert full[: n * size].tolist() == memory[: n * size].tolist()
        assert (full[n * size :] == 255).all()
    team.call(copy_first(elem), address(memory), address(out), -3, width + 5)
    assert not out[: width * size].any()


@kernel
def scalars() -> Body:
    def body(ctx: int, params: int) -> None:
        x, y = word(params, 0), word(params, 1)
        simd.store_i8(y, simd.load_i8(x) + 1)
        simd.store_i16(y + 2, simd.load_i16(x + 2) + 1)
        simd.store_i32(y + 4, simd.load_i32(x + 4) + 1)
        simd.store_i64(y + 8, simd.load_i64(x + 8) + 1)
        simd.store_f32(y + 16, simd.load_f32(x + 16) * 2)
        simd.store_f64(y + 24, simd.load_f64(x + 24) * 2)
        simd.store_f16(y + 32, simd.load_f16(x + 32) * 2)
        simd.store_bf16(y + 34, simd.load_bf16(x + 34) * 2)
        store_word(y + 40, simd.load_u8(x) + simd.load_u16(x + 2) + simd.load_u32(x + 4))
        simd.copy_bytes(y + 48, x, 16)
        simd.fill_bytes(y + 64, 7, 8)
        simd.prefetch(0)

    return body


def test_single_numbers(target: str, team: Team) -> None:
    layout = np.dtype(
        {
            "names": ["i8", "i16", "i32", "i64", "f32", "f64", "f16", "bf16"],
            "formats": ["i1", "i2", "i4", "i8", "f4", "f8", "f2", "u2"],
            "offsets": [0, 2, 4, 8, 16, 24, 32, 34],
            "itemsize": 80,
        }
    )
    x, y = np.zeros(1, layout), np.zeros(1, layout)
    x[0] = (-5, -300, -70000, 1 << 40, 1.25, 1e300, 3.5, 0x4020)
    run(team, scalars(), x, y)
    assert y[0].tolist() == (-4, -299, -69999, (1 << 40) + 1, 2.5, 2e300, 7.0, 0x40A0)
    raw = y.view(np.uint8)
    assert raw[40:48].view(np.int64)[0] == 251 + (65536 - 300) + (2**32 - 70000)
    assert raw[48:64].tolist() == x.view(np.uint8)[:16].tolist()
    assert raw[64:72].tolist() == [7] * 8


# -- halves ----------------------------------------------------------------------------------------------


@kernel
def widen(elem: str) -> Body:
    F, width = simd.vec("f32"), simd.width()
    load, load_first, read = simd.load_as_f32(elem, F), simd.load_first_as_f32(elem, F), simd.LOADS[elem]

    def body(ctx: int, params: int) -> None:
        n, x, y = word(params, 0), word(params, 1), word(params, 2)
        whole = n - n % width
        for i in range(0, whole, width):
            simd.store(y + 4 * i, load(x + 2 * i))
        simd.store_first(y + 4 * whole, load_first(x + 2 * whole, n - whole), n - whole)
        for i in range(n):
            simd.store_f32(y + 4 * (n + i), read(x + 2 * i))

    return body


@kernel
def narrow(elem: str) -> Body:
    F, width = simd.vec("f32"), simd.width()
    load, load_first = simd.load(F), simd.load_first(F)
    store, store_first, write = simd.store_as(elem), simd.store_first_as(elem), simd.STORES[elem]

    def body(ctx: int, params: int) -> None:
        n, x, y = word(params, 0), word(params, 1), word(params, 2)
        whole = n - n % width
        for i in range(0, whole, width):
            store(y + 2 * i, load(x + 4 * i))
        store_first(y + 2 * whole, load_first(x + 4 * whole, n - whole), n - whole)
        for i in range(n):
            write(y + 2 * (n + i), simd.load_f32(x + 4 * i))

    return body


def bf16_bits(x: Array) -> Array:
    """Nearest, ties to even; NaNs quiet."""
    bits = x.view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), bits >> 16 | 0x40, rounded).astype(np.uint16)


def f16_bits(x: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # AArch64's conversions report signalling NaNs
        plain = x.astype(np.float16).view(np.uint16)
    sign = (x.view(np.uint32) >> 16 & 0x8000).astype(np.uint16)
    return np.where(np.isnan(x), sign | 0x7E00, plain).astype(np.uint16)


_HALVES: dict[str, Callable[[Array], Array]] = {"f16": f16_bits, "bf16": bf16_bits}


@pytest.mark.parametrize("elem", ["f16", "bf16"])
def test_every_half_width_number_is_widened_exactly(target: str, team: Team, elem: str) -> None:
    bits = np.arange(65536 + 5, dtype=np.uint32).astype(np.uint16)
    out = np.zeros((2, bits.size), np.float32)
    run(team, widen(elem), bits.size, bits, out)
    with np.errstate(invalid="ignore"):  # AArch64's conversions report signalling NaNs
        widened = bits.view(np.float16).astype(np.float32)
    exact = widened if elem == "f16" else (bits.astype(np.uint32) << 16).view(np.float32)
    for got in out:
        np.testing.assert_array_equal(got, exact)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(exact))


@pytest.mark.parametrize("elem", ["f16", "bf16"])
def test_f32_is_narrowed_to_nearest_even_with_ggmls_nans(target: str, team: Team, elem: str) -> None:
    rng = np.random.default_rng(6)
    # around every f16: itself, the middle to the next, and adjacent to the middle
    grid = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (grid[:-1] + grid[1:]) / 2
    near = [grid, middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(9e9))]
    x = np.concatenate([*near, floats(20000, 7), np.array([65519.99, 65520, 7e4, 1e-8, 5.97e-8], np.float32)])
    x = np.concatenate([x, -x, (rng.integers(0, 1 << 23, 99) | 0x7F800000).astype(np.uint32).view(np.float32)])
    out = np.zeros((2, x.size), np.uint16)
    run(team, narrow(elem), x.size, x, out)
    for got in out:
        np.testing.assert_array_equal(got, _HALVES[elem](x))


# -- block types -----------------------------------------------------------------------------------------


@kernel
def numbers_of_blocks(name: str) -> Body:
    t = BLOCKS[name]
    copy = simd.values.emitted("void(i64, i64, i64)")(
        lambda out, block, part: simd.values.store(out, t.quants(block, part))
    )
    parts, block_bytes = t.parts, t.block_bytes

    def body(ctx: int, params: int) -> None:
        blocks, count, out = word(params, 0), word(params, 1), word(params, 2)
        for i in range(count):
            for part in range(parts):
                copy(out + (i * parts + part) * 32, blocks + i * block_bytes, part)

    return body


@pytest.mark.parametrize("name", BLOCKS)
def test_the_limits_of_a_block_type_are_its_smallest_and_largest_number(target: str, team: Team, name: str) -> None:
    t, count = BLOCKS[name], 400
    blocks = np.random.default_rng(11).integers(0, 256, (count, t.block_bytes), np.uint8)
    out = np.zeros((count, t.block_size), np.uint8)
    run(team, numbers_of_blocks(name), blocks, count, out)
    assert (out.min(), out.max()) == t.limits


# -- dot products ----------------------------------------------------------------------------------------


@kernel
def dots(width: int) -> Body:
    bytes_, shorts, ints, real_ = f"i8x{4 * width}", f"i16x{2 * width}", f"i32x{width}", f"f32x{width}"
    load_b, load_s, load_i, load_f = simd.load(bytes_), simd.load(shorts), simd.load(ints), simd.load(real_)

    def body(ctx: int, params: int) -> None:
        a, b, acc, facc, out = word(params, 0), word(params, 1), word(params, 2), word(params, 3), word(params, 4)
        step = 4 * width
        simd.store(out, simd.dot_u8i8(load_i(acc), load_b(a), load_b(b)))
        simd.store(out + step, simd.dot_i8(load_i(acc), load_b(a), load_b(b)))
        simd.store(out + 2 * step, simd.dot_i16(load_i(acc), load_s(a), load_s(b)))
        simd.store(out + 3 * step, simd.dot_bf16(load_f(facc), load_s(a), load_s(b)))

    return body


@pytest.mark.parametrize("width", [4, 8, 16])
def test_dot_products_of_integers_are_exact_at_their_extremes(target: str, team: Team, width: int) -> None:
    rng = np.random.default_rng(8)
    a = rng.integers(-128, 128, 4 * width).astype(np.int8)
    b = rng.integers(-128, 128, 4 * width).astype(np.int8)
    for x, y in ((a, b), (np.full_like(a, -1), np.full_like(b, -128)), (np.full_like(a, -128), np.full_like(b, -128))):
        acc = rng.integers(-(2**30), 2**30, width).astype(np.int32)
        out = np.zeros((4, width), np.int32)
        run(team, dots(width), x, y, acc, np.zeros(width, np.float32), out)
        wide = y.reshape(width, 4).astype(np.int64)
        np.testing.assert_array_equal(out[0], acc + (x.view(np.uint8).reshape(width, 4) * wide).sum(1))
        np.testing.assert_array_equal(out[1], acc + (x.reshape(width, 4) * wide).sum(1))
        pairs = x.view(np.int16).reshape(width, 2).astype(np.int64) * y.view(np.int16).reshape(width, 2)
        np.testing.assert_array_equal(out[2], (acc + pairs.sum(1)).astype(np.int32))


@pytest.mark.parametrize("width", [4, 8, 16])
def test_dot_products_of_bf16_add_in_f32(target: str, team: Team, width: int) -> None:
    rng = np.random.default_rng(9)
    x, y = (bf16_bits(rng.standard_normal(2 * width).astype(np.float32)) for _ in range(2))
    acc = rng.standard_normal(width).astype(np.float32)
    out = np.zeros((4, width), np.float32)
    run(team, dots(width), x, y, acc.view(np.int32), acc, out)
    wide = [(v.astype(np.uint32) << 16).view(np.float32).reshape(width, 2).astype(np.float64) for v in (x, y)]
    np.testing.assert_allclose(out[3], acc + (wide[0] * wide[1]).sum(1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", [4, 8, 16])
def test_dot_products_of_bf16_take_subnormal_numbers_as_zero_where_an_instruction_makes_them(
    target: str, team: Team, width: int
) -> None:
    # infinity and a large number by a subnormal one; a product that is subnormal; a subnormal sum
    subnormal, smallest, infinite, large, half = 0x0001, 0x0080, 0x7F80, 0x7149, 0x3F00
    pairs = [(infinite, subnormal), (large, subnormal), (smallest, half), (0, 0)]
    x, y = (np.zeros(2 * width, np.uint16) for _ in range(2))
    x[:8:2], y[:8:2] = zip(*pairs, strict=True)
    acc = np.zeros(width, np.float32)
    acc[3] = 1e-39
    out = np.zeros((4, width), np.float32)
    run(team, dots(width), x, y, acc.view(np.int32), acc, out)
    way = simd.dots.way("bf16", width)
    assert way is not None
    if way.is_instruction:
        np.testing.assert_array_equal(out[3, :4], [np.nan, 0, 0, 0])
    else:
        a, b = ((v[:8:2].astype(np.uint32) << 16).view(np.float32) for v in (x, y))
        np.testing.assert_array_equal(out[3, :4], a * b + acc[:4])


# -- tiles -----------------------------------------------------------------------------------------------


@kernel
def tiles() -> Body:
    load_1, load_2, load_3 = simd.tile_load(1), simd.tile_load(2), simd.tile_load(3)
    zero_0, zero_4, store_0, store_4 = simd.tile_zero(0), simd.tile_zero(4), simd.tile_store(0), simd.tile_store(4)
    dot_0, dot_4 = simd.tile_dot_bf16(0, 1, 2), simd.tile_dot_i8(4, 1, 2)

    def body(ctx: int, params: int) -> None:
        state, a, b, out = word(params, 0), word(params, 1), word(params, 2), word(params, 3)
        simd.tile_configure(state)
        load_1(state, a, 128)
        load_2(state, b, 64)
        zero_0(state)
        zero_4(state)
        dot_0(state)
        dot_0(state)
        dot_4(state)
        store_0(state, out, 64)
        store_4(state, out + 1024, 64)
        load_3(state, b, 64)
        simd.tile_release(state)

    return body


def test_tiles_add_products_of_16_rows_and_16_columns(team: Team) -> None:
    for name in ("native", "generic+amx-emulated", "avx2+amx-emulated", "native+amx-emulated"):
        if name.split("+")[0] not in features.choices():
            continue
        with features.forced(name):
            if not simd.has_tiles():
                continue
            rng = np.random.default_rng(10)
            a_wide, b = (bf16_bits(rng.standard_normal((16, n)).astype(np.float32)) for n in (64, 32))
            out = np.zeros((2, 16, 16), np.float32)
            run(team, tiles(), np.zeros(STATE_BYTES, np.uint8), a_wide, b, out)
            a = a_wide[:, :32]

            def number(bits: Array) -> Array:
                return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)

            # row k of b holds elements 2k and 2k + 1 of every column
            columns = number(b).reshape(16, 16, 2).transpose(0, 2, 1).reshape(32, 16)
            np.testing.assert_allclose(out[0], 2 * number(a) @ columns, rtol=1e-5, atol=1e-5)
            fours = b.view(np.int8).reshape(16, 16, 4).transpose(0, 2, 1).reshape(64, 16).astype(np.int64)
            exact = np.ascontiguousarray(a).view(np.int8).reshape(16, 64).astype(np.int64) @ fours
            np.testing.assert_array_equal(out[1].view(np.int32), exact)


@pytest.mark.skipif("avx2" not in features.choices(), reason="the instructions are x86's")
def test_for_a_cpu_with_amx_products_are_made_of_its_instructions() -> None:
    flags = (
        "sse2 sse4.1 avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512vnni avx512bf16 amx-tile amx-bf16 amx-int8"
    )
    with features.forced(features.cross_target(X86_64, "sapphirerapids", flags.split())):
        code = mul_mat_gemm("amx", "f32").assembly()
        for instruction in ("ldtilecfg", "tilezero", "tileloadd", "tdpbf16ps", "tilestored", "tilerelease"):
            assert instruction in code
        assert "tdpbssd" in tiles().assembly()


# -- rows of block types ---------------------------------------------------------------------------------


@kernel
def quantize(type_name: str) -> Body:
    row = quantize_row(type_name)

    def body(ctx: int, params: int) -> None:
        row(word(params, 0), word(params, 1), word(params, 2))

    return body


@kernel
def dequantize(type_name: str) -> Body:
    row = dequantize_row(type_name)

    def body(ctx: int, params: int) -> None:
        row(word(params, 0), word(params, 1), word(params, 2))

    return body


@pytest.mark.parametrize("type_name", BLOCKS)
def test_rows_of_blocks_are_read_as_ggml_reads_them(
    target: str, team: Team, shared: Path | None, data: Path, type_name: str
) -> None:
    with np.load((shared / "vectors" if shared else data) / "quantize.npz") as recorded:
        # of encoded numbers only the complete recording has what they decode to
        for name in ("randbytes", "bytes", "bytes_imatrix"):
            floats = f"{type_name}_{name.replace('bytes', 'float')}"
            if floats not in recorded:
                continue
            packed, exact = np.ascontiguousarray(recorded[f"{type_name}_{name}"]), recorded[floats]
            back = np.zeros(exact.shape, np.float32)
            run(team, dequantize(type_name), back, packed, back.size)
            np.testing.assert_array_equal(back, exact)
        assert f"{type_name}_randbytes" in recorded or type_name == "q8_1"  # which ggml has no decoder of


def rows_to_round(kind: types.Type) -> Array:
    """Normal numbers, ramps, constants, few different ones, tiny, huge, zeros of both signs, none that are numbers."""
    random = np.random.default_rng(kind.id)
    n = kind.block_size
    rows = random.standard_normal((40, n)).astype(np.float32)
    rows[1] = np.linspace(-1, 2, n)
    rows[2] = 0.75
    rows[3] = np.resize(np.array([0.5, -1.0, 2.0, 0.25], np.float32), n)
    rows[4], rows[5], rows[6] = 0.0, -0.0, rows[6] * np.float32(1e-44)
    rows[7] *= np.float32(1e-19)
    rows[8] = np.resize(np.array([3e38, -1e38, 9e6], np.float32), n)
    rows[9] *= np.float32(1e19)
    rows[10, ::2] = -0.0
    rows[10, 1::2] = 0.0
    rows[11] = np.abs(rows[11])
    rows[12] = -np.abs(rows[12]) - 1
    rows[13, 5], rows[14, n - 1], rows[15, 0] = np.nan, np.inf, -np.inf
    rows[16, : n // 2] = 0
    rows[17] = random.integers(-3, 4, n)
    rows[18] *= np.float32(1e-38)
    rows[19, 3] = np.float32(7e4)
    rows[20], rows[20, 0] = -0.0, 0.0
    return rows


@pytest.mark.parametrize(("type_name", "target"), cyclic_pairs(ENCODED, _TARGETS), indirect=["target"])
def test_rows_are_quantised_bit_for_bit_as_the_reference_does(target: str, team: Team, type_name: str) -> None:
    kind = types.by_name(type_name)
    x = rows_to_round(kind)
    wanted = quants.quantize(x, kind, stored=True)
    blocks = np.zeros_like(wanted)
    run(team, quantize(type_name), blocks, x, x.size)
    np.testing.assert_array_equal(blocks, wanted)
