"""Cases of special values: NaN, infinities, signed zeros, limits of types, ids out of range.

What the ops' references say of them is the answer on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ggplug.ops.attention import SoftMax
from ggplug.ops.base import Array, Op
from ggplug.ops.copy import Concat, Cont, Cpy, Dup, Repeat
from ggplug.ops.elementwise import Binary
from ggplug.ops.glu import Glu
from ggplug.ops.matrix import MulMat, MulMatId
from ggplug.ops.norms import RowNorm
from ggplug.ops.reduce import Argmax, Cumsum, Mean, Sum, SumRows
from ggplug.ops.rotary import Rotary
from ggplug.ops.rows import GetRows, SetRows
from ggplug.ops.sort import Argsort, TopK
from ggplug.ops.unary import Unary
from ggplug.sketches import parameters_of
from ggplug.types import BF16, F16, F32, F64, I8, I16, I32, I64, INTEGERS, KERNEL_FLOATS, Q8_0, Type
from ggplug_testing.cases.case import ENCODED, Case, Leafs, in_blocks, node
from ggplug_testing.comparison import Agreement

NAN, INF = float("nan"), float("inf")

NUMBERS = np.array([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.0, -3.0, 7.5, -7.5])
"""What is not finite, zeros of both signs, halves, and both sides of where piecewise functions change."""

EXACT = frozenset(
    {
        "abs", "sgn", "neg", "step", "sqr", "floor", "ceil", "round", "trunc", "scale", "relu", "leaky_relu", "clamp",
        "hardsigmoid", "hardswish", "add", "sub", "mul", "div", "reglu",
    }
)  # fmt: skip
"""Ops that give the formula's own zeros, with their signs, on every device."""

_LONG = 37
"""More than a vector register holds, and no multiple of it."""

_ROWS = np.array(
    [
        np.resize([1.0, -2.0, 0.5], _LONG),
        np.resize([1.0, -2.0, 0.5, 3.0, 0.25, NAN, 2.0], _LONG),
        np.resize([NAN], _LONG),
        np.resize([1.0, -2.0, INF, 3.0, 0.25], _LONG),
        np.resize([-INF, 1.0, -2.0, 0.5, 3.0], _LONG),
        np.resize([1.0, INF, -2.0, -INF, 2.0], _LONG),
        np.resize([-INF], _LONG),
        np.resize([NAN, -INF], _LONG),
        np.resize([-NAN, 3.0, INF, 3.0, NAN, -INF, 0.0, -0.0], _LONG),
        np.resize([-0.0, 0.0, -1.0], _LONG),
    ]
)
"""Rows with each kind of special value, alone and beside others."""

Make = Callable[[Leafs], Any]


def special_cases(op: type[Op]) -> Iterator[Case]:
    """The cases of an op of core; none of others."""
    agreement: Agreement = "signs" if op.name in EXACT else "values"

    def case(label: str, make: Make, agreement: Agreement = agreement) -> Case:
        return Case(op.name, f"special: {label}", make, agreement)

    for kind, generator in _GENERATORS.items():
        if issubclass(op, kind):
            yield from generator(op, case)


CaseOf = Callable[..., Case]
Generator = Callable[[type[Op], CaseOf], Iterator[Case]]


def _unary(op: type[Op], case: CaseOf) -> Iterator[Case]:
    for parameters in parameters_of(op):
        shown = "".join(f" {name}={value}" for name, value in parameters.items())
        for type in KERNEL_FLOATS:
            values = np.resize(NUMBERS, (4, _LONG))
            values[3] = _near_ties(type)[:_LONG]
            yield case(
                f"{type.name}, NaN, infinities, zeros, near ties of rounding{shown}",
                lambda leafs, t=type, p=parameters, v=values: node(op, leafs.array(t, v), **p),
            )


def _near_ties(type: Type) -> Array:
    """1, 1 and a step, 1 and two steps: sums, products and squares of these lie halfway between two numbers."""
    return 1 + np.arange(40) * {F16: 2.0**-10, BF16: 2.0**-7}.get(type, 2.0**-23)


def _pairs(numbers: Array) -> tuple[Array, Array]:
    """Each number with each."""
    a, b = np.meshgrid(numbers, numbers)
    return a.reshape(-1), b.reshape(-1)


def _binary(op: type[Op], case: CaseOf) -> Iterator[Case]:
    a, b = _pairs(NUMBERS)
    for type in KERNEL_FLOATS:
        yield case(
            f"{type.name}, NaN, infinities, zeros", lambda leafs, t=type: node(op, leafs.array(t, a), leafs.array(t, b))
        )
        near = np.tile(_near_ties(type), (4, 1))
        half = near[0, 1] / 2 - 0.5
        other = np.array([half, -half, 1.5, 3 * half])[:, np.newaxis]
        yield case(
            f"{type.name}, ties of rounding",
            lambda leafs, t=type, x=near, y=other: node(op, leafs.array(t, x), leafs.array(t, y)),
        )
    column = NUMBERS[:, np.newaxis]
    yield case("broadcast", lambda leafs: node(op, leafs.array(F32, a.reshape(15, 15)), leafs.array(F32, column)))


def _glu(op: type[Op], case: CaseOf) -> Iterator[Case]:
    # Beyond 3 an activation is so small that a gate without limit is multiplied with what rounding left.
    x, gate = _pairs(NUMBERS[np.isnan(NUMBERS) | np.isinf(NUMBERS) | (np.abs(NUMBERS) <= 3)])
    for parameters in parameters_of(op):
        shown = "".join(f" {name}={value}" for name, value in parameters.items())
        yield case(
            f"pairs{shown}", lambda leafs, p=parameters: node(op, leafs.array(F32, x), leafs.array(F32, gate), **p)
        )


def _rowwise(op: type[Op], case: CaseOf) -> Iterator[Case]:
    for type in KERNEL_FLOATS:
        yield case(f"rows of {type.name}", lambda leafs, t=type: node(op, leafs.array(t, _ROWS)))
    yield case("short rows", lambda leafs: node(op, leafs.array(F32, np.ascontiguousarray(_ROWS[:, :3]))))


_WIDE_ROWS = np.array(
    [
        np.resize([3e38, 1e38, -2.5e38], _LONG),
        np.resize([3.4e38, 3.3e38, 3.2e38, -3.4e38, -3.3e38, -3.2e38], _LONG),
        np.resize([3.4e38, 3.4e38, -3.4e38, 0.0, 1e30, 1.0], _LONG),
        np.resize([1e20, -3e19, 5e19], _LONG),
        np.resize([1e19, -3e18, 5e18, 1.0], _LONG),
        np.resize([1e-22, -3e-22, 2e-21], _LONG),
        np.resize([1e-30, -3e-30, 2e-30, 0.0], _LONG),
        np.resize([1e-36, -3e-37, 2e-36], _LONG),
    ]
)
"""Rows of numbers whose squares, sums or distances from the mean are beyond the range of float32."""


def _norm(op: type[Op], case: CaseOf) -> Iterator[Case]:
    yield from _rowwise(op, case)
    for eps in (0.0, 1e-24, 1e-12, 1e-6, 1e6, 1e30):

        def wide(leafs: Leafs, rows: Array, type: Type = F32, eps: float = eps) -> Any:
            return node(op, leafs.array(type, rows), eps=eps)

        yield case(f"wide rows of f32, eps {eps}", lambda leafs, w=wide: w(leafs, _WIDE_ROWS))
        yield case(f"wide rows of bf16, eps {eps}", lambda leafs, w=wide: w(leafs, _WIDE_ROWS, BF16))
        if eps < 1e-12:
            for i in range(len(_WIDE_ROWS)):
                yield case(f"wide row {i}, eps {eps}", lambda leafs, i=i, w=wide: w(leafs, _WIDE_ROWS[i : i + 1]))


def _sums(op: type[Op], case: CaseOf) -> Iterator[Case]:
    yield from _rowwise(op, case)
    for i in range(len(_WIDE_ROWS)):
        yield case(f"wide row {i}", lambda leafs, i=i: node(op, leafs.array(F32, _WIDE_ROWS[i : i + 1])))


def _sum(op: type[Op], case: CaseOf) -> Iterator[Case]:
    for i in range(1, len(_ROWS)):
        yield case(f"row {i}", lambda leafs, i=i: node(op, leafs.array(F32, _ROWS[i : i + 1])))
    for i in range(len(_WIDE_ROWS)):
        yield case(f"wide row {i}", lambda leafs, i=i: node(op, leafs.array(F32, _WIDE_ROWS[i : i + 1])))


def _argsort(op: type[Op], case: CaseOf) -> Iterator[Case]:
    def scattered(leafs: Leafs, count: int) -> Array:
        values = leafs.random.choice(np.array([NAN, -NAN, INF, -INF, 0.0, -0.0, *range(-5, 6)]), (4, count))
        values[0] = NAN
        return values

    for order in (0, 1):
        yield case(f"rows order {order}", lambda leafs, o=order: node(op, leafs.array(F32, _ROWS), order=o))
        for count in (70, 700):
            yield case(
                f"rows of {count} order {order}",
                lambda leafs, n=count, o=order: node(op, leafs.array(F32, scattered(leafs, n)), order=o),
            )


def _top_k(op: type[Op], case: CaseOf) -> Iterator[Case]:
    for k in (1, 5, _LONG):
        yield case(f"{k} of rows", lambda leafs, k=k: node(op, leafs.array(F32, _ROWS), k=k))


def _soft_max(op: type[Op], case: CaseOf) -> Iterator[Case]:
    finite = np.resize([0.5, -1.0, 2.0, 0.0], _ROWS.shape)
    sinks = np.array([0.5, -INF, INF, NAN])
    heads = np.stack([_ROWS] * len(sinks))
    yield case("mask", lambda leafs: node(op, leafs.array(F32, finite), leafs.array(F32, _ROWS)))
    yield case("sinks", lambda leafs: node(op, leafs.array(F32, heads), None, leafs.array(F32, sinks)))
    wide = np.resize([3e38, -3e38, 2e38, 1.0], _ROWS.shape)
    yield case("logits that differ by more than float32 holds", lambda leafs: node(op, leafs.array(F32, wide)))
    yield case("logits beyond float32", lambda leafs: node(op, leafs.array(F32, wide), scale=100.0))
    yield case("logits beyond float32 below", lambda leafs: node(op, leafs.array(F32, -np.abs(wide)), scale=100.0))
    yield case("scale 0", lambda leafs: node(op, leafs.array(F32, finite), scale=0.0))
    yield case("scale 0 of rows", lambda leafs: node(op, leafs.array(F32, _ROWS), scale=0.0))


def _rope(op: type[Op], case: CaseOf) -> Iterator[Case]:
    x = np.resize(NUMBERS, (4, 2, 32))
    for mode in (0, 2):
        yield case(
            f"mode {mode}",
            lambda leafs, m=mode: node(op, leafs.array(F32, x), leafs.array(I32, np.arange(1, 5)), n_dims=24, mode=m),
        )


# -- conversions -----------------------------------------------------------------------------------

_FLOAT_WORDS = np.array(
    [
        0x7FC00000, 0xFFC00000, 0x7FC12345, 0xFFD54321, 0x7FFFFFFF, 0x7F800001, 0xFF810000, 0x7F800000, 0xFF800000, 0,
        0x80000000,
    ],
    np.uint32,
)  # fmt: skip
"""NaNs of both signs with several payloads, also such that a narrower type has no place for; infinities, zeros."""

_HALF_WORDS = np.array(
    [0x7E00, 0xFE00, 0x7E01, 0xFFFF, 0x7C01, 0xFD00, 0x7C00, 0xFC00, 0, 0x8000, 1, 0x8001, 0x3FF, 0x7BFF],
    np.uint16,
)

_NARROWED = np.array(
    [
        # f16: its largest number, ties at it, subnormal numbers and ties below the smallest
        65504.0, 65519.996, 65520.0, -65520.0, 65536.0, 1e30, 2.0**-14, 2.0**-24, 2.0**-25, 1.0001 * 2.0**-25,
        -(2.0**-25), 3 * 2.0**-25, 1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11,
        # bf16: its largest number and what rounds to infinity, ties
        3.3895314e38, 3.3961776e38, 3.4028235e38, -3.4028235e38, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1e-38,
    ],
    np.float32,
)  # fmt: skip

_WHOLE = np.array(
    [
        NAN, -NAN, INF, -INF, 2147483647.0, 2147483520.0, -2147483648.0, -2147483904.0, 1e20, -1e20, 0.9999, -0.9999,
        -0.0, 2.5, -2.5, 16777217.0, 3e9, -3e9, 4294967808.0, -8589935616.0,
    ],
    np.float32,
)  # fmt: skip
"""What becomes of floats in I32: NaN, limits and what lies beyond them, also what a cut to 32 bits takes for small."""


def _words(count: int = 8) -> Array:
    """Floats of all kinds as their bits, [rows, 32]; the first rows are finite."""
    finite = np.resize(_NARROWED, 64).view(np.uint32)
    return np.concatenate([finite, np.resize(_FLOAT_WORDS, 32 * (count - 2))]).reshape(count, 32)


def _integers(leafs: Leafs, type: Type) -> Any:
    """The limits of all types of integers, as far as this one has them, and what lies between two numbers of F32."""
    limits = [sign * 2**bits + delta for bits in (7, 15, 24, 31, 40) for sign in (1, -1) for delta in (-1, 0, 1)]
    own = np.iinfo(type.dtype)
    fitting = [number for number in (0, own.min, own.max, *limits) if own.min <= number <= own.max]
    return leafs.array(type, np.resize(np.array(fitting, type.dtype), (2, _LONG)))


def _whole_rows() -> Array:
    """Rows of what becomes of floats in I32."""
    return np.resize(_WHOLE, (3, _LONG))


def _blocks(type: Type) -> Array:
    """A block a row: finite, with a NaN, an infinity of each sign, both, everything, numbers that are too large."""
    rows = np.resize(np.array([0.5, -1.0, 2.0, 0.25], np.float32), (8, type.block_size))
    rows[1, 7] = NAN
    rows[2, 31] = -NAN
    rows[3, 0] = INF
    rows[4, 12] = -INF
    rows[5, [3, 20]] = -INF, INF
    rows[6, [5, 6]] = INF, NAN
    rows[7] = np.resize(np.array([3e38, -1e38, 9e6], np.float32), type.block_size)
    return np.concatenate([rows, _halves(type.block_size)])


def _halves(length: int) -> Array:
    """Rows whose largest number makes the step 1 in types of 8, 4 and 5 bits; the others lie between two steps."""
    rows = np.resize(np.arange(-6.5, 7), (3, length)).astype(np.float32)
    rows[0, 0] = 127
    rows[1, 0] = -8
    rows[2] = np.abs(rows[2])
    rows[2, :2] = 0, 15
    return rows


def _conversions(op: type[Op], case: CaseOf) -> Iterator[Case]:
    """``dup``, and ``cpy`` between the same types."""

    def converted(label: str, x: Make, type: Type, agreement: Agreement = "bits") -> Case:
        def make(leafs: Leafs) -> Any:
            source = x(leafs)
            if op is Dup:
                return node(op, source, type=type.name)
            return node(op, source, leafs.tensor(type, *source.ne[: source.rank]))

        return case(label, make, agreement)

    for target in (F16, BF16):
        yield converted(f"f32 to {target.name}", lambda leafs: leafs.bits(F32, _words()), target)
    yield converted("f16 to f32", lambda leafs: leafs.bits(F16, np.resize(_HALF_WORDS, (2, _LONG))), F32)
    yield converted("bf16 to f32", lambda leafs: leafs.bits(BF16, np.resize(_FLOAT_WORDS >> 16, (2, _LONG))), F32)
    for block in ENCODED:

        def blocks(leafs: Leafs, b: Type = block) -> Any:
            return leafs.array(b, _blocks(b))

        yield converted(f"f32 to {block.name}", lambda leafs, b=block: leafs.array(F32, _blocks(b)), block)  # type: ignore[misc]
        yield converted(f"{block.name} to f32", blocks, F32, "values")
    for source in KERNEL_FLOATS:
        yield converted(f"{source.name} to i32", lambda leafs, s=source: leafs.array(s, _whole_rows()), I32)  # type: ignore[misc]
    yield converted("q8_0 to i32", lambda leafs: leafs.array(Q8_0, _blocks(Q8_0)), I32)
    for source in INTEGERS:
        for other in (F32, *INTEGERS):
            if other is not source:
                yield converted(f"{source.name} to {other.name}", lambda leafs, s=source: _integers(leafs, s), other)  # type: ignore[misc]
    for target in (I8, I16, I64):
        yield converted(f"f32 to {target.name}", lambda leafs: leafs.array(F32, _whole_rows()), target)
    # Between two numbers, halfway between them, and beyond the largest f16; f32, by way of which, makes ties of some.
    near = [2**30 + 2**22 + 1, -(2**30) - 2**22 - 33, 2**30 + 3 * 2**22 - 1, 2**31 - 1, 2**24 + 2**16 + 1]
    whole = np.array([257, -259, 771, 2049, -2051, 4095, 65519, 65520, -70001, 2**24 - 1, 1, 0, *near], np.int32)
    for target in (F16, BF16):
        yield converted(f"i32 to {target.name}", lambda leafs: leafs.array(I32, np.resize(whole, (2, _LONG))), target)


def _moves(op: type[Op], case: CaseOf) -> Iterator[Case]:
    """Bits of every kind, between equal types."""
    for type in (F32, F16, BF16, F64, I16):
        yield case(f"bits of {type.name}", lambda leafs, t=type: _moved(op, leafs, t), "bits")


def _moved(op: type[Op], leafs: Leafs, type: Type) -> Any:
    size = type.block_bytes
    words = leafs.random.integers(0, 256, (5, 21 * size), np.uint8).view(f"u{size}")
    # In F32 the first is a signalling NaN.
    words[:, 0] = 0x7F800001 >> 16 if size == 2 else 0x7F800001
    x = leafs.bits(type, words)
    if op is Cpy:
        return node(op, x, leafs.tensor(type, 21, 5))
    if op is Concat:
        return node(op, x, x, dim=1)
    return node(op, x, ne=(42, 5)) if op is Repeat else node(op, x)


# -- ids -------------------------------------------------------------------------------------------


def _ids(type: Type, limit: int, *, bad: bool) -> list[int]:
    """Ids in range, and others: just outside, far, and of 64 bits some whose lower half is in range."""
    if not bad:
        return [1, 0, 2]
    far = [2**32 + 1, -(2**32) + 1, 2**63 - 1] if type is I64 else [2**31 - 1, -(2**31)]
    return [1, limit, 0, -1, *far, 2]


def _get_rows(op: type[Op], case: CaseOf) -> Iterator[Case]:
    ids = np.array(_ids(I32, 4, bad=True))
    for type in (F32, F16, Q8_0, I32):
        yield case(
            f"ids out of range in {type.name}",
            lambda leafs, t=type: node(op, leafs.tensor(t, 64, 4), leafs.array(I32, ids)),
        )
    batched = np.resize(ids, (2, len(ids)))
    batched[0] = 3
    yield case(
        "ids out of range in the second batch",
        lambda leafs: node(op, leafs.tensor(F32, _LONG, 4, 2), leafs.array(I32, batched)),
    )
    for source, words in ((F16, _HALF_WORDS), (BF16, _FLOAT_WORDS >> 16)):
        yield case(
            f"bits of {source.name}",
            lambda leafs, s=source, w=words: node(
                op, leafs.bits(s, np.resize(w, (2, _LONG))), leafs.array(I32, np.array([1, 0, 1]))
            ),
            "bits",
        )


def _set_rows(op: type[Op], case: CaseOf) -> Iterator[Case]:
    for kind in (I64, I32):
        for type in (F32, F16, Q8_0):
            ids = np.array(_ids(kind, 5, bad=True))

            def written(leafs: Leafs, t: Type = type, k: Type = kind, i: Array = ids) -> Any:
                return node(op, leafs.tensor(t, 64, 5), leafs.tensor(F32, 64, len(i)), leafs.array(k, i))

            yield case(f"{kind.name} ids out of range into {type.name}", written)
    for type in (F16, BF16, *ENCODED):
        rows = _blocks(type) if type.is_quantized else _words().view(np.float32)

        def converted(leafs: Leafs, t: Type = type, r: Array = rows) -> Any:
            places = leafs.indices((len(r),), len(r) + 1, type=I64, distinct=True)
            return node(op, leafs.tensor(t, r.shape[1], len(r) + 1), leafs.array(F32, r), places)

        yield case(f"f32 into {type.name}", converted, "bits")
    for source in KERNEL_FLOATS:

        def cut(leafs: Leafs, s: Type = source) -> Any:
            places = leafs.indices((3,), 4, type=I64, distinct=True)
            return node(op, leafs.tensor(I32, _LONG, 4), leafs.array(s, _whole_rows()), places)

        yield case(f"{source.name} into i32", cut)


# -- products --------------------------------------------------------------------------------------

def _activations(leafs: Leafs, k: int, n: int) -> Array:
    """Random rows, of which some hold a NaN, an infinity, or both infinities."""
    rows = leafs.random.standard_normal((n, k))
    rows[0, k // 3] = NAN
    rows[1 % n, 0] = INF
    rows[2 % n, k - 1] = -INF
    rows[3 % n, [1, 2]] = INF, -INF
    return rows


def _weights(leafs: Leafs, k: int, m: int) -> Array:
    """Random rows of numbers that are not near zero, the last with an infinity."""
    rows: Array = leafs.random.uniform(0.5, 1.5, (m, k)) * leafs.random.choice([-1.0, 1.0], (m, k))
    rows[m - 1, k // 2] = INF
    return rows


def _mul_mat(op: type[Op], case: CaseOf) -> Iterator[Case]:
    for type in (F32, F16, BF16, *ENCODED):
        k = in_blocks(64, type)
        for n in (1, 5, 34):
            agreement: Agreement = "not finite" if type.is_quantized else "values"

            def product(leafs: Leafs, t: Type = type, n: int = n, k: int = k) -> Any:
                weights = leafs.array(t, _weights(leafs, k, 7))
                return node(op, weights, leafs.array(F32, _activations(leafs, k, n)))

            yield case(f"{type.name} by {n} columns", product, agreement)


def _mul_mat_id(op: type[Op], case: CaseOf) -> Iterator[Case]:
    for type in (F32, BF16, Q8_0):
        for tokens in (8, 80):
            agreement: Agreement = "not finite" if type.is_quantized else "values"

            def routed(leafs: Leafs, t: Type = type, n: int = tokens) -> Any:
                experts = leafs.array(t, np.stack([_weights(leafs, 64, 5) for _ in range(3)]))
                b = leafs.array(F32, _activations(leafs, 64, n)[:, np.newaxis])
                return node(op, experts, b, leafs.indices((2, n), 3, distinct=True))

            yield case(f"{type.name} by {tokens} tokens", routed, agreement)

        def outside(leafs: Leafs, t: Type = type) -> Any:
            ids = leafs.random.integers(0, 3, (9, 2))
            ids[2, 1], ids[4] = 3, [-1, 2**31 - 1]
            return node(op, leafs.tensor(t, 64, 5, 3), leafs.tensor(F32, 64, 1, 9), leafs.array(I32, ids))

        yield case(f"ids out of range in {type.name}", outside, "values")


_GENERATORS: dict[type[Op], Generator] = {
    Unary: _unary,
    Binary: _binary,
    Glu: _glu,
    RowNorm: _norm,
    SumRows: _sums,
    Mean: _sums,
    Sum: _sum,
    Argmax: _rowwise,
    Argsort: _argsort,
    Cumsum: _rowwise,
    TopK: _top_k,
    SoftMax: lambda op, case: _chained(_rowwise(op, case), _soft_max(op, case)),
    Rotary: _rope,
    Dup: lambda op, case: _chained(_moves(op, case), _conversions(op, case)),
    Cpy: lambda op, case: _chained(_moves(op, case), _conversions(op, case)),
    Cont: _moves,
    Concat: _moves,
    Repeat: _moves,
    GetRows: _get_rows,
    SetRows: _set_rows,
    MulMat: _mul_mat,
    MulMatId: _mul_mat_id,
}


def _chained(*cases: Iterator[Case]) -> Iterator[Case]:
    for each in cases:
        yield from each
