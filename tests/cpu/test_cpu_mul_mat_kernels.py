"""Matrix products on the CPU device: every path, on both sides of every threshold, against float64 NumPy."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("ggplug_cpu")

import ggplug as gg
from ggplug import types
from ggplug.backend import Decline
from ggplug.quants import put_scales
from ggplug.tensor import Tensor, new_tensor
from ggplug.values.arrays import decode, encode
from ggplug_cpu import features
from ggplug_cpu.choosing.entries import FAULTS, POSITION, Entries
from ggplug_cpu.compiler import Kernel
from ggplug_cpu.detect import host_features
from ggplug_cpu.ops.mul_mat.kinds import DOT_COLUMNS
from ggplug_cpu.ops.mul_mat.layout import base_of, int8_kind
from ggplug_cpu.ops.mul_mat.products import mul_mat, mul_mat_id
from ggplug_cpu.parameters import Ref
from ggplug_cpu.parts.faults import Fault
from ggplug_cpu.tape import WORKSPACE, Entry, Tape
from ggplug_cpu.team import Team
from ggplug_cpu.types import BLOCKS, ENCODED

Array = npt.NDArray[Any]

# Targets whose kernels' logic differs.  GGPLUG_TEST_TARGETS=all runs the whole file for each; without it every test
# runs for this machine's own target and a few for the others.
_EVERYWHERE = os.environ.get("GGPLUG_TEST_TARGETS") == "all"
_OTHERS: list[str] = [name for name in ("generic", "avx2", "avx512") if name in features.choices()]
if features.has("avx512f"):
    _OTHERS.append("native+amx-emulated")
if features.has("avxvnni"):
    _OTHERS.append("avx2+avxvnni")
if "avx512bf16" in features.target().slow:
    _OTHERS.append("avx512+avx512bf16")
_OTHERS += [f"generic+{name}" for name in ("dotprod", "i8mm") if features.has(name)]

#: NMSE allowed against float64 on the decoded weights; block types are compared with ggml's algorithm instead.
_ALLOWED = {"f32": 1e-11, "f16": 1e-6, "bf16": 6e-6}

_POSITION = 77


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[int, Team]]:
    made = {n: Team(n) for n in (1, 2)}
    yield made
    for team in made.values():
        team.close()


@pytest.fixture(params=["native", *_OTHERS] if _EVERYWHERE else ["native"])
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    with features.forced(request.param):
        yield request.param


@pytest.fixture(params=_OTHERS)
def other_target(request: pytest.FixtureRequest) -> Iterator[str]:
    with features.forced(request.param):
        yield request.param


@dataclass
class Operand:
    """A tensor, or a view of one, and the bytes of its root."""

    tensor: Tensor
    raw: npt.NDArray[np.uint8]

    @property
    def address(self) -> int:
        return int(self.raw.ctypes.data) + self.tensor.view_offset

    @property
    def values(self) -> Array:
        """float64, NumPy's order."""
        return decode(self.raw[self.tensor.view_offset :], self.tensor).astype(np.float64)

    def view(self, tensor: Tensor) -> Operand:
        return Operand(tensor, self.raw)


def operand(type_name: str, *ne: int, seed: int, scale: float = 1.0) -> Operand:
    """Normal numbers, rounded to a type; ``ne`` innermost first."""
    tensor = new_tensor(type_name, ne)
    if type_name in BLOCKS and type_name not in ENCODED:  # any bits, but for the scales
        raw = np.random.default_rng(seed).integers(0, 256, tensor.nbytes, np.uint8)
        put_scales(raw, tensor.type, 0.03 * scale)
        return Operand(tensor, raw)
    numbers = np.random.default_rng(seed).standard_normal(tensor.ne[::-1]).astype(np.float32) * np.float32(scale)
    return Operand(tensor, encode(numbers, tensor.type).reshape(-1).copy())


def entries_of(node: Tensor) -> Entries:
    chosen = mul_mat(node) if isinstance(node.op, gg.ops.MulMat) else mul_mat_id(node)
    assert not isinstance(chosen, Decline), chosen.reason
    return chosen


def compute(team: Team, node: Tensor, *sources: Operand) -> tuple[Array, list[int]]:
    """The result, and the record of faults.  Every byte around the result must stay as it is."""
    chosen = entries_of(node)
    guard = 64
    result = np.full(node.size + 2 * guard, np.nan, np.float32)
    faults = np.zeros(Fault.bytes // 8, np.int64)
    bases = [result.ctypes.data + 4 * guard, *(s.address for s in sources), faults.ctypes.data]

    def placed(word: Any) -> Any:
        if not isinstance(word, Ref) or word.slot == WORKSPACE:
            return word
        if word.slot == POSITION:
            return _POSITION
        return Ref(len(bases) - 1 if word.slot == FAULTS else word.slot, word.offset)

    entries = [Entry(e.kernel, [placed(w) for w in e.words], e.tasks, e.barrier_before) for e in chosen.entries]
    tape = Tape(entries, len(bases), chosen.workspace_bytes, chosen.scratch_bytes)
    team.run(tape.bind(bases))
    assert np.isnan(result[:guard]).all()
    assert np.isnan(result[-guard:]).all()
    return result[guard:-guard].reshape(node.ne[::-1]), faults.tolist()


def product(a: Array, b: Array) -> Array:
    """float64, with a's matrices repeated for b's."""
    a = np.repeat(np.repeat(a, b.shape[0] // a.shape[0], 0), b.shape[1] // a.shape[1], 1)
    out: Array = b @ a.swapaxes(-1, -2)
    return out


def nmse(got: Array, wanted: Array) -> float:
    return float(((got.astype(np.float64) - wanted) ** 2).sum() / (wanted**2).sum())


def rounded_to_q8_0(b: Array) -> Array:
    """What ggml multiplies block types with: int8 and an f16 scale for every 32 activations."""
    groups = b.astype(np.float32).reshape(-1, 32)
    scale = np.abs(groups).max(1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore"):
        inverse = np.where(scale > 0, 1 / scale, 0)
    quants = np.rint(groups * inverse)
    rounded: Array = quants.astype(np.float64) * scale.astype(np.float16).astype(np.float64)
    return rounded.reshape(b.shape)


def check(got: Array, a: Operand, b: Operand) -> None:
    wanted = product(a.values, b.values)
    name = a.tensor.type.name
    if name in _ALLOWED:
        assert nmse(got, wanted) <= _ALLOWED[name]
    elif b.tensor.type.is_quantized:
        assert nmse(got, wanted) <= 1e-11  # nothing is rounded but sums
    else:
        assert nmse(got, wanted) <= 2 * nmse(product(a.values, rounded_to_q8_0(b.values)), wanted)


def kernels(node: Tensor) -> str:
    """The kernels of a node, and those that they call by address."""
    entries = entries_of(node).entries
    return " ".join(each.name for entry in entries for each in (entry.kernel, *entry.words) if isinstance(each, Kernel))


PAIRS = [
    ("f32", "f32"),
    ("f16", "f32"),
    ("f16", "f16"),
    ("bf16", "f32"),
    ("bf16", "bf16"),
    ("q8_0", "f32"),
    ("q8_0", "q8_0"),
    ("q4_0", "f32"),
    ("q4_0", "q8_0"),
]
#: A type for each way in which a part of a block is scaled: by the block's scale, with a minimum, with a minimum in
#: groups of a super-block, in groups of 16; and each other way in which numbers are unpacked.
SCALED = ["q4_1", "q5_K", "q6_K"]
UNPACKED = ["iq4_nl", "iq2_xxs", "mxfp4"]
PAIRS += [(name, "f32") for name in SCALED]
EVERY_PAIR = [
    *PAIRS,
    *((name, "f32") for name in UNPACKED),
    *(("q4_1", name) for name in ("q8_0", "q8_1")),
    *(("q6_K", name) for name in ("q8_0", "q8_K")),
]


def in_blocks(weights: str, K: int) -> int:
    """The next length that is a whole number of blocks."""
    size = types.by_name(weights).block_size
    return -(-K // size) * size


def expected_kind(weights: str, activations: str) -> str:
    """What the documentation promises for this target."""
    tiles = features.has("amx-emulated") or (features.has("amx-bf16") and features.has("amx-int8"))
    if weights in BLOCKS:
        if tiles and activations not in BLOCKS:
            return "amx"
        has_instruction = any(map(features.has, ("avx512vnni", "avxvnni", "i8mm", "dotprod")))
        in_pairs = features.has("ssse3") and BLOCKS[weights].magnitude <= 64
        signed_in_pairs = features.has("ssse3") and not features.has("avx512bw") and activations not in BLOCKS
        return int8_kind(BLOCKS[weights]) if has_instruction or in_pairs or signed_in_pairs else "f32"
    if weights == "bf16":
        fast = features.target().flags - features.target().slow
        return "amx" if tiles else "bf16" if fast & {"avx512bf16", "bf16"} else "f32"
    return "f32"


# (K, M, N); K is rounded up to whole blocks.  Odd sizes, more than one panel, more than one step along K.
SHAPES = [
    (1, 1, 1),
    (3, 17, 3),
    (7, 5, 17),
    (31, 50, 1),
    (129, 4, 2),
    (515, 35, 6),
    (32, 100, 100),
    (544, 40, 13),
    (1056, 65, 30),
    (2080, 19, 33),
]


@pytest.mark.parametrize(("weights", "activations"), EVERY_PAIR)
def test_products_are_as_exact_as_promised_whatever_their_shape(
    target: str, teams: dict[int, Team], weights: str, activations: str
) -> None:
    for K, M, N in SHAPES:
        K = in_blocks(weights, K)
        a, b = operand(weights, K, M, seed=K), operand(activations, K, N, seed=N)
        got, _ = compute(teams[2], gg.mul_mat(a.tensor, b.tensor), a, b)
        check(got, a, b)


@pytest.mark.parametrize(("weights", "activations"), PAIRS)
def test_the_number_of_columns_decides_which_kernel_runs_and_both_are_exact(
    target: str, teams: dict[int, Team], weights: str, activations: str
) -> None:
    kind = expected_kind(weights, activations)
    K, most = in_blocks(weights, 160), DOT_COLUMNS[base_of(kind)]
    a = operand(weights, K, 70, seed=5)
    for N in (1, 2, most - 1, most, most + 1, 64):
        b = operand(activations, K, N, seed=N)
        node = gg.mul_mat(a.tensor, b.tensor)
        got, _ = compute(teams[2], node, a, b)
        check(got, a, b)
        wanted = f"mul_mat_dot[{weights}" if most >= N else f"pack_panels[{kind},{weights},"
        assert wanted in kernels(node)


def test_other_targets_compute_the_same_products(other_target: str, teams: dict[int, Team]) -> None:
    for weights, activations in (("f32", "f32"), ("bf16", "f32"), ("q4_0", "f32"), *((name, "f32") for name in SCALED)):
        kind = expected_kind(weights, activations)
        K = in_blocks(weights, 1056)
        a = operand(weights, K, 37, seed=5)
        for N in (1, DOT_COLUMNS[base_of(kind)], 41):
            b = operand(activations, K, N, seed=N)
            node = gg.mul_mat(a.tensor, b.tensor)
            got, _ = compute(teams[2], node, a, b)
            check(got, a, b)
            assert (f"mul_mat_gemm[{kind}," if N == 41 else "mul_mat_dot[") in kernels(node)


@pytest.mark.parametrize(("weights", "activations"), PAIRS)
@pytest.mark.parametrize("N", [1, 5, 40])
def test_results_do_not_depend_on_the_number_of_threads(
    target: str, teams: dict[int, Team], weights: str, activations: str, N: int
) -> None:
    K = in_blocks(weights, 1056)
    a, b = operand(weights, K, 200, seed=1), operand(activations, K, N, seed=2)
    one, two = (compute(teams[n], gg.mul_mat(a.tensor, b.tensor), a, b)[0] for n in (1, 2))
    assert one.tobytes() == two.tobytes()


def test_products_of_many_columns_take_subnormal_bf16_as_zero_where_the_processor_multiplies_bf16(
    target: str, teams: dict[int, Team]
) -> None:
    a, b = operand("bf16", 64, 5, seed=1), operand("f32", 64, 40, seed=2)
    a.raw.view(np.uint16)[:] = 1  # the smallest number there is
    b.raw.view(np.float32).reshape(40, 64)[:, 7] = np.inf
    few = b.view(gg.view(b.tensor, 64, 1))
    got, _ = compute(teams[1], gg.mul_mat(a.tensor, few.tensor), a, few)
    np.testing.assert_array_equal(got, np.inf)
    got, _ = compute(teams[1], gg.mul_mat(a.tensor, b.tensor), a, b)
    flushed = expected_kind("bf16", "f32") in ("bf16", "amx") and not features.has("amx-emulated")
    np.testing.assert_array_equal(got, np.nan if flushed else np.inf)


@pytest.mark.parametrize("weights", ["f32", "q8_0", *SCALED])
def test_a_dot_product_does_not_depend_on_how_many_columns_there_are(
    target: str, teams: dict[int, Team], weights: str
) -> None:
    K = in_blocks(weights, 96)
    a, b = operand(weights, K, 21, seed=1), operand("f32", K, 4, seed=2)
    together, _ = compute(teams[1], gg.mul_mat(a.tensor, b.tensor), a, b)
    for column in range(4):
        view = b.view(gg.view(b.tensor, K, 1, offset=column * b.tensor.nb[1]))
        single, _ = compute(teams[1], gg.mul_mat(a.tensor, view.tensor), a, view)
        assert single.tobytes() == together[0, 0, column].tobytes()


@pytest.mark.skipif("avx512vbmi" not in host_features(), reason="the processor permutes no bytes")
@pytest.mark.parametrize("weights", [name for name, type in BLOCKS.items() if type.at_once is not None])
def test_blocks_that_are_read_at_once_have_the_numbers_that_are_read_part_by_part(
    teams: dict[int, Team], weights: str
) -> None:
    K = in_blocks(weights, 600)
    a, b = operand(weights, K, 5, seed=1), operand("f32", K, 1, seed=2)
    results = []
    for specification in ("native", "native-avx512vbmi"):
        with features.forced(specification):
            results.append(compute(teams[1], gg.mul_mat(a.tensor, b.tensor), a, b)[0])
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.skipif("avx512vbmi" not in host_features(), reason="the processor permutes no bytes")
@pytest.mark.parametrize("weights", [name for name, type in BLOCKS.items() if type.sums_of_groups is not None])
@pytest.mark.parametrize("N", [1, 4])
def test_sums_of_groups_are_those_of_all_rows_of_the_grid_by_the_largest_activations(
    teams: dict[int, Team], weights: str, N: int
) -> None:
    K, rows = 1024, 65  # 8320 indices of 2048 rows
    a, b = operand(weights, K, rows, seed=1), operand("f32", K, N, seed=2)
    signs = np.sign(a.values[0, 0, :N])
    b.raw.view(np.float32)[:] = 127.0 * np.where(signs == 0, 1, signs).reshape(-1)  # exact in int8
    got, _ = compute(teams[1], gg.mul_mat(a.tensor, b.tensor), a, b)
    sizes = product(np.abs(a.values), np.abs(b.values))
    assert (np.abs(got - product(a.values, b.values)) <= 1e-6 * sizes).all()


@pytest.mark.parametrize(("weights", "activations"), PAIRS)
@pytest.mark.parametrize("N", [1, 3, 20])
def test_weights_are_broadcast_over_the_matrices_of_activations(
    target: str, teams: dict[int, Team], weights: str, activations: str, N: int
) -> None:
    K = in_blocks(weights, 64)
    a, b = operand(weights, K, 18, 2, 3, seed=1), operand(activations, K, N, 6, 3, seed=2)
    got, _ = compute(teams[2], gg.mul_mat(a.tensor, b.tensor), a, b)
    check(got, a, b)


@pytest.mark.parametrize(("weights", "activations"), PAIRS)
@pytest.mark.parametrize("N", [1, 20])
@pytest.mark.parametrize("order", [(0, 2, 1, 3), (0, 1, 3, 2), (0, 3, 2, 1), (0, 3, 1, 2)])
def test_permuted_matrices_are_read_where_they_lie(
    target: str, teams: dict[int, Team], weights: str, activations: str, N: int, order: tuple[int, ...]
) -> None:
    K = in_blocks(weights, 64)
    shapes = [(K, 18, 2, 3), (K, N, 2, 3)]
    a, b = (
        operand(name, *(ne[order[i]] for i in range(4)), seed=ne[1])
        for name, ne in zip((weights, activations), shapes, strict=True)
    )
    a, b = (each.view(gg.permute(each.tensor, *order)) for each in (a, b))
    assert [a.tensor.ne, b.tensor.ne] == shapes
    got, _ = compute(teams[2], gg.mul_mat(a.tensor, b.tensor), a, b)
    check(got, a, b)


@pytest.mark.parametrize("activations", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("weights", ["f32", "q8_0"])
@pytest.mark.parametrize("N", [1, 20])
def test_activations_whose_numbers_are_not_adjacent_are_collected(
    target: str, teams: dict[int, Team], weights: str, activations: str, N: int
) -> None:
    if weights == "q8_0" and activations != "f32":
        pytest.skip("block types take f32 and q8_0")
    a, b = operand(weights, 96, 18, seed=1), operand(activations, N, 96, seed=2)
    b = b.view(gg.transpose(b.tensor))
    got, _ = compute(teams[2], gg.mul_mat(a.tensor, b.tensor), a, b)
    check(got, a, b)


def with_strides(whole: Operand, ne: tuple[int, ...], nb: tuple[int, int], b: Operand) -> tuple[Tensor, Operand]:
    """A product with weights that have strides which no view op gives them."""
    tensor = new_tensor(whole.tensor.type, ne)
    tensor.nb = (*nb, max(nb) * max(ne), max(nb) * max(ne))
    node = gg.mul_mat(new_tensor("f32", (1, ne[1])), new_tensor("f32", (1, b.tensor.ne[1])))
    node.src = (tensor, b.tensor)
    return node, whole.view(tensor)


@pytest.mark.parametrize("weights", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("N", [1, 20])
def test_weights_whose_numbers_are_not_adjacent_are_collected(
    target: str, teams: dict[int, Team], weights: str, N: int
) -> None:
    # every second number along ne0; and transposed, which the op refuses but the kernel could read
    whole, b = operand(weights, 150, 40, seed=1), operand("f32", 75, N, seed=2)
    size = whole.tensor.type.block_bytes
    for ne, nb in (((75, 37), (2 * size, 150 * size)), ((75, 70), (75 * size, size))):
        node, a = with_strides(whole, ne, nb, b)
        got, _ = compute(teams[2], node, a, b)
        check(got, a, b)
        assert f"pack_panels[f32,{weights},{'scattered' if nb[0] < nb[1] else 'columns'}]" in kernels(node)


def test_rows_with_gaps_and_unaligned_rows_are_read_in_place(target: str, teams: dict[int, Team]) -> None:
    for weights in ("f32", "q8_0"):
        for N in (2, 20):
            a, b = operand(weights, 96, 40, seed=1), operand("f32", 101, N, seed=2)
            block = a.tensor.type.block_bytes
            per = 96 // a.tensor.type.block_size
            a = a.view(gg.view(a.tensor, 64, 19, nb=(2 * per * block,), offset=per * block))
            b = b.view(gg.view(b.tensor, 64, N, nb=(b.tensor.nb[1],), offset=12))
            got, _ = compute(teams[2], gg.mul_mat(a.tensor, b.tensor), a, b)
            check(got, a, b)


def test_an_empty_sum_is_zero(target: str, teams: dict[int, Team]) -> None:
    for N in (1, 20):
        b = operand("f32", 0, N, seed=2)
        node, a = with_strides(operand("f32", 1, 3, seed=1), (0, 3), (4, 4), b)
        got, _ = compute(teams[1], node, a, b)
        assert not got.any()


@pytest.mark.parametrize("weights", ["f32", "f16", "bf16", "q8_0", "q4_0", *SCALED])
@pytest.mark.parametrize("N", [1, 20])
def test_nan_and_infinity_in_activations_reach_their_row_and_no_other(
    target: str, teams: dict[int, Team], weights: str, N: int
) -> None:
    for poison in (np.nan, np.inf):
        K = in_blocks(weights, 64)
        a, b = operand(weights, K, 9, seed=1), operand("f32", K, N, seed=2)
        b.raw.view(np.float32)[5] = poison
        got, _ = compute(teams[1], gg.mul_mat(a.tensor, b.tensor), a, b)
        assert not np.isfinite(got[0, 0, 0]).any()
        assert np.isfinite(got[0, 0, 1:]).all()


def test_full_precision_keeps_the_activations_of_bf16_weights(target: str, teams: dict[int, Team]) -> None:
    a, b = operand("bf16", 128, 40, seed=1), operand("f32", 128, 50, seed=2)
    got, _ = compute(teams[1], gg.mul_mat(a.tensor, b.tensor, precision=types.Precision.F32), a, b)
    assert nmse(got, product(a.values, b.values)) <= 1e-11


def test_extreme_bytes_of_weights_do_not_saturate(target: str, teams: dict[int, Team]) -> None:
    a = operand("q8_0", 256, 5, seed=1)
    blocks = a.raw.reshape(-1, 34)
    blocks[:, 2:] = 0x80  # -128 everywhere, which no quantiser writes
    for N in (1, 20):
        b = operand("q8_0", 256, N, seed=2)
        b.raw.reshape(-1, 34)[:, 2:] = 0x80
        got, _ = compute(teams[1], gg.mul_mat(a.tensor, b.tensor), a, b)
        assert nmse(got, product(a.values, b.values)) <= 1e-11


def test_what_is_not_multiplied_is_declined_with_the_reason(target: str) -> None:
    def reason(weights: str, activations: str) -> str:
        chosen = mul_mat(gg.mul_mat(new_tensor(weights, (256, 4)), new_tensor(activations, (256, 2))))
        assert isinstance(chosen, Decline)
        return chosen.reason

    assert "f64" in reason("f64", "f32")
    assert "q8_0" in reason("q8_0", "f16")
    assert "f16" in reason("q8_0", "f16")
    assert "f32" in reason("f32", "q8_0")


# -- mul_mat_id ------------------------------------------------------------------------------------------


def routed(
    weights: str, K: int, M: int, experts: int, used: int, tokens: int, rows: int, ids: Array
) -> tuple[Tensor, list[Operand]]:
    a, b = operand(weights, K, M, experts, seed=1), operand("f32", K, rows, tokens, seed=2)
    index = Operand(new_tensor("i32", (used, tokens)), ids.astype(np.int32).reshape(-1).view(np.uint8).copy())
    return gg.mul_mat_id(a.tensor, b.tensor, index.tensor), [a, b, index]


def routed_product(a: Array, b: Array, ids: Array) -> Array:
    out = np.zeros((1, *ids.shape, a.shape[2]))
    for token, slot in itertools.product(*map(range, ids.shape)):
        if 0 <= ids[token, slot] < a.shape[1]:
            out[0, token, slot] = a[0, ids[token, slot]] @ b[0, token, slot % b.shape[2]]
    return out


@pytest.mark.parametrize("weights", ["f32", "bf16", "q4_0", "q5_K", "mxfp4"])
@pytest.mark.parametrize(
    ("tokens", "experts", "used", "rows"), [(1, 4, 2, 1), (16, 4, 2, 2), (90, 4, 2, 1), (40, 64, 4, 4)]
)
def test_every_token_is_multiplied_with_the_experts_it_was_routed_to(
    target: str, teams: dict[int, Team], weights: str, tokens: int, experts: int, used: int, rows: int
) -> None:
    # uneven: the first expert has most tokens, some have none
    ids = np.random.default_rng(tokens).integers(0, experts, (tokens, used)) * (np.arange(tokens) % 3 == 0)[:, None]
    node, sources = routed(weights, in_blocks(weights, 96), 35, experts, used, tokens, rows, ids)
    got, faults = compute(teams[2], node, *sources)
    wanted = routed_product(sources[0].values, sources[1].values, ids)
    if weights in _ALLOWED:
        assert nmse(got, wanted) <= _ALLOWED[weights]
    else:
        rounded = routed_product(sources[0].values, rounded_to_q8_0(sources[1].values), ids)
        assert nmse(got, wanted) <= 2 * nmse(rounded, wanted)
    assert not any(faults)
    one, _ = compute(teams[1], node, *sources)
    assert one.tobytes() == got.tobytes()


def test_experts_with_many_and_with_few_rows_go_to_the_kernels_for_them(target: str) -> None:
    ids = np.zeros((90, 2))
    many, _ = routed("q4_0", 96, 35, 4, 2, 90, 2, ids)
    few, _ = routed("q4_0", 96, 35, 4, 2, 1, 2, ids[:1])
    assert kernels(many).count("mul_mat_dot") == kernels(many).count("mul_mat_gemm") == 1
    assert "mul_mat_gemm" not in kernels(few)


def test_an_id_that_names_no_expert_is_a_fault_and_gives_zeros(target: str, teams: dict[int, Team]) -> None:
    ids = np.array([[0, 1], [7, 2], [3, -1]])
    node, sources = routed("f32", 32, 20, 4, 2, 3, 2, ids)
    got, faults = compute(teams[2], node, *sources)
    assert (faults[Fault.noted.number], faults[Fault.at.number], faults[Fault.got.number]) == (1, _POSITION, 7)
    assert nmse(got, routed_product(sources[0].values, sources[1].values, ids)) <= 1e-11
    assert not got[0, 1, 0].any()
    assert not got[0, 2, 1].any()
