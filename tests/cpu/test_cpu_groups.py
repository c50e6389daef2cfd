"""What the CPU device computes together: the same numbers, bit for bit, as node by node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ggplug_cpu")

from cpu_groups import check, described, with_other_instructions

import ggplug as gg
from ggplug import ops
from ggplug.errors import ComputeError
from ggplug.graph import Graph
from ggplug.memory import GraphAllocator
from ggplug.tensor import Tensor
from ggplug_cpu import features
from ggplug_cpu.device import CpuDevice


@pytest.fixture(scope="module")
def device() -> Iterator[CpuDevice]:
    cpu = CpuDevice()
    yield cpu
    cpu.team.close()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(77)


# -- chains of elementwise ops ----------------------------------------------------------------------


def test_a_chain_of_elementwise_ops_is_one_pass(device: CpuDevice, rng: np.random.Generator) -> None:
    x, y = (gg.tensor(rng.standard_normal((3, 5, 70)), "f32") for _ in range(2))
    bias, column = gg.tensor(rng.standard_normal(70), "f32"), gg.tensor(rng.standard_normal((5, 1)), "f32")
    chain = ops.mul(ops.gelu(ops.add(ops.scale(x, 0.5, 0.25), bias)), column)
    check(device, ops.sub(y, chain), "scale add gelu mul sub")


@pytest.mark.parametrize("inner", ["f16", "bf16"])
def test_results_inside_of_a_chain_are_rounded_to_their_type(
    inner: str, device: CpuDevice, rng: np.random.Generator
) -> None:
    x, y = gg.tensor(rng.standard_normal((7, 33)), inner), gg.tensor(rng.standard_normal((7, 33)), "f32")
    check(device, ops.sqr(ops.add(ops.mul(x, y), x)), "mul add sqr")


def test_a_gate_is_computed_with_what_comes_before_it(device: CpuDevice, rng: np.random.Generator) -> None:
    x, y, wide = (gg.tensor(rng.standard_normal((4, n)), "f32") for n in (48, 48, 96))
    check(device, ops.mul(ops.swiglu(ops.neg(x), y), y), "neg swiglu mul")
    check(device, ops.mul(ops.geglu(wide), x), "geglu mul")
    check(device, ops.geglu(ops.neg(wide)))  # halves of a result of the chain


def test_a_chain_whose_sources_repeat_in_different_ways_is_none(device: CpuDevice, rng: np.random.Generator) -> None:
    x, two, three = (gg.tensor(rng.standard_normal((2, n)), "f32") for n in (12, 2, 3))
    check(device, ops.add(ops.mul(x, two), three))


@pytest.mark.parametrize("n", [1, 4, 16, 32])
def test_a_row_that_ends_within_a_block_of_a_chain_s_result_is_none_of_its_sources(
    n: int, device: CpuDevice, rng: np.random.Generator
) -> None:
    x, y = gg.tensor(rng.standard_normal((6, 64)), "q8_0"), gg.tensor(rng.standard_normal((6, 64)), "f32")
    row = gg.tensor(rng.standard_normal((2, n)), "f32")
    check(device, ops.add(x, ops.mul(y, row)), *(["mul add"] if n in (1, 32) else []))


# -- products of transposed weights -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["q4_0", "q8_0", "q4_K", "iq4_xs", "mxfp4", "f32", "f16", "bf16"])
@pytest.mark.parametrize("wide", ["f32", "bf16", "f16"])
def test_transposed_weights_are_neither_converted_nor_copied_first(
    kind: str, wide: str, device: CpuDevice, rng: np.random.Generator
) -> None:
    w, x = gg.tensor(rng.standard_normal((43, 256)), kind), gg.tensor(rng.standard_normal((2, 20, 43)), "f32")
    bias = gg.tensor(rng.standard_normal(256), "f32")
    product = ops.mul_mat(ops.cont(ops.transpose(ops.cast(w, wide))), x)
    check(device, product, "dup cont mul_mat")
    check(device, ops.add(product, bias), "dup cont mul_mat add")


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_a_transposed_view_is_not_copied_before_its_product(
    kind: str, device: CpuDevice, rng: np.random.Generator
) -> None:
    w, x = gg.tensor(rng.standard_normal((2, 43, 50)), kind), gg.tensor(rng.standard_normal((4, 20, 43)), "f32")
    product = ops.mul_mat(ops.cont(ops.transpose(w)), x)
    check(device, product, "cont mul_mat")
    check(device, ops.scale(product, 0.5), "cont mul_mat scale")
    scattered = ops.cont(ops.permute(w, 2, 0, 1))
    check(device, ops.mul_mat(scattered, gg.tensor(rng.standard_normal((50, 20, 43)), "f32")))


def test_a_copy_is_made_where_it_is_read_again_or_few_columns_are_multiplied(
    device: CpuDevice, rng: np.random.Generator
) -> None:
    w, x = gg.tensor(rng.standard_normal((43, 64)), "q8_0"), gg.tensor(rng.standard_normal((20, 43)), "f32")
    copy = ops.cont(ops.transpose(ops.cast(w, "bf16")))
    check(device, [ops.mul_mat(copy, x), ops.sum_rows(ops.cast(copy, "f32"))])
    check(device, ops.mul_mat(copy, gg.tensor(rng.standard_normal((3, 43)), "f32")))


# -- norms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [ops.norm, ops.rms_norm, ops.l2_norm])
@pytest.mark.parametrize("n", [16, 53])
def test_a_norm_takes_its_scale_and_shift_along(
    norm: ops.base.Builder, n: int, device: CpuDevice, rng: np.random.Generator
) -> None:
    x = gg.tensor(rng.standard_normal((2, 5, n)), "f32")
    w, b = (gg.tensor(rng.standard_normal(n), "f32") for _ in range(2))
    name = norm(x).op.name
    check(device, ops.add(ops.mul(norm(x), w), b), f"{name} mul add")
    check(device, ops.mul(norm(x), w), f"{name} mul")


def test_a_sum_is_normalised_and_kept_where_it_is_read_again(device: CpuDevice, rng: np.random.Generator) -> None:
    a, b, c = (gg.tensor(rng.standard_normal((6, 40)), "f32") for _ in range(3))
    w = gg.tensor(rng.standard_normal(40), "f32")
    check(device, ops.norm(ops.add(a, b)), "add norm")
    check(device, ops.mul(ops.rms_norm(ops.add(a, b)), w), "add rms_norm mul")
    check(device, ops.mul(ops.norm(ops.add(ops.add(a, w), c)), w), "add add norm mul")
    total = ops.add(a, b)  # the residual of the next sum
    mixed = ops.sum_rows(ops.mul(ops.rms_norm(total), w))
    check(device, ops.add(total, mixed), "add* rms_norm mul")
    check(device, [total.set_output(), ops.rms_norm(total)], "add* rms_norm")


@pytest.mark.parametrize("norm", [ops.norm, ops.rms_norm, ops.l2_norm])
@pytest.mark.parametrize("shape", [(2, 40), (6, 20), (3, 4), (1, 40), (6, 1)])
def test_a_sum_with_a_term_that_is_repeated_several_times_is_normalised_by_itself(
    norm: ops.base.Builder, shape: tuple[int, ...], device: CpuDevice, rng: np.random.Generator
) -> None:
    a, b, term = (gg.tensor(rng.standard_normal(s), "f32") for s in ((6, 40), (6, 40), shape))
    w, name = gg.tensor(rng.standard_normal(40), "f32"), norm(a).op.name
    once = 1 in shape
    check(device, norm(ops.add(a, term)), *([f"add {name}"] if once else []))
    check(device, ops.mul(norm(ops.add(a, term)), w), f"add {name} mul" if once else f"{name} mul")
    sums = ops.add(ops.add(a, b), term)
    check(device, ops.mul(norm(sums), w), *([f"add add {name} mul"] if once else ["add add", f"{name} mul"]))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_norms_of_other_types_round_as_single_nodes_do(kind: str, device: CpuDevice, rng: np.random.Generator) -> None:
    a, w = gg.tensor(rng.standard_normal((6, 40)), kind), gg.tensor(rng.standard_normal(40), kind)
    b = gg.tensor(rng.standard_normal((6, 40)), "f32")
    check(device, ops.add(ops.mul(ops.norm(ops.add(a, b)), w), b), "add norm mul add")
    total = ops.add(a, b)
    check(device, [total.set_output(), ops.mul(ops.rms_norm(total), w)], "add* rms_norm mul")


# -- products ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["f32", "bf16", "q4_0"])
@pytest.mark.parametrize("columns", [3, 29])
def test_a_product_takes_bias_activation_and_residual_along(
    kind: str, columns: int, device: CpuDevice, rng: np.random.Generator
) -> None:
    w, x = gg.tensor(rng.standard_normal((70, 544)), kind), gg.tensor(rng.standard_normal((columns, 544)), "f32")
    bias, residual = gg.tensor(rng.standard_normal(70), "f32"), gg.tensor(rng.standard_normal((columns, 70)), "f32")
    check(device, ops.add(ops.gelu(ops.add(ops.mul_mat(w, x), bias)), residual), "mul_mat add gelu add")


@pytest.mark.parametrize(("instructions", "kind"), with_other_instructions())
def test_products_of_all_instructions_add_a_bias_and_normalise_whole_tiles(
    instructions: str, kind: str, device: CpuDevice, rng: np.random.Generator
) -> None:
    w, x = gg.tensor(rng.standard_normal((70, 1300)), kind), gg.tensor(rng.standard_normal((77, 1300)), "f32")
    bias, residual = gg.tensor(rng.standard_normal(70), "f32"), gg.tensor(rng.standard_normal((8200, 70)), "f32")
    with features.forced(instructions):
        check(device, ops.add(ops.mul_mat(w, x), bias), "mul_mat add")
        check(device, ops.relu(ops.add(ops.mul_mat(w, x), bias)), "mul_mat add relu")
        w, x = gg.tensor(rng.standard_normal((70, 32)), kind), gg.tensor(rng.standard_normal((8200, 32)), "f32")
        total = ops.add(ops.add(ops.mul_mat(w, x), bias), residual)
        check(device, ops.mul(ops.norm(total), bias), "mul_mat add add norm mul")
        check(device, ops.mul(ops.norm(ops.add(ops.mul_mat(w, x), bias)), bias), "mul_mat add norm mul")


def test_a_product_that_is_read_again_after_its_sum_is_unchanged(device: CpuDevice, rng: np.random.Generator) -> None:
    w, x = gg.tensor(rng.standard_normal((24, 32)), "f32"), gg.tensor(rng.standard_normal((20, 32)), "f32")
    bias, product = gg.tensor(rng.standard_normal(24), "f32"), ops.mul_mat(w, x)
    check(device, ops.mul(ops.add(product, bias), product), "mul_mat add mul")
    product = ops.mul_mat(w, x)
    check(device, ops.add(product, product), "mul_mat add")
    check(device, ops.sub(ops.mul_mat(w, x), bias), "mul_mat sub")
    check(device, ops.add(ops.add(ops.mul_mat(w, x), bias), bias), "mul_mat add add")


def test_a_product_of_several_matrices_finds_its_residual(device: CpuDevice, rng: np.random.Generator) -> None:
    w, x = gg.tensor(rng.standard_normal((2, 3, 40, 32)), "f32"), gg.tensor(rng.standard_normal((4, 3, 21, 32)), "f32")
    residual = gg.tensor(rng.standard_normal((4, 3, 21, 40)), "f32")
    check(device, ops.silu(ops.add(residual, ops.mul_mat(w, x))), "mul_mat add silu")


def test_a_product_leaves_what_lies_otherwise_to_others(device: CpuDevice, rng: np.random.Generator) -> None:
    w, x = gg.tensor(rng.standard_normal((24, 32)), "f32"), gg.tensor(rng.standard_normal((24, 32)), "f32")
    y = gg.tensor(rng.standard_normal((24, 24)), "f32")
    half, column = gg.tensor(rng.standard_normal((24, 24)), "f16"), gg.tensor(rng.standard_normal((24, 1)), "f32")
    for other in (ops.transpose(y), half, column):
        check(device, ops.add(ops.mul_mat(w, x), other))
    check(device, ops.relu(ops.add(ops.mul_mat(w, x), column)), "add relu")
    product = ops.mul_mat(w, x)
    check(device, ops.add(product, ops.transpose(product)))
    product = ops.mul_mat(w, x)
    check(device, [ops.add(product, y), ops.neg(product)])


@pytest.mark.parametrize(("unit", "swapped"), [(ops.reglu, False), (ops.swiglu, True)])
def test_a_gated_unit_over_the_halves_of_one_result_is_computed_behind_it(
    unit: ops.base.Builder, swapped: bool, device: CpuDevice, rng: np.random.Generator
) -> None:
    w, x = gg.tensor(rng.standard_normal((80, 32)), "f32"), gg.tensor(rng.standard_normal((5, 32)), "f32")
    wide, narrow = (gg.tensor(rng.standard_normal((5, n)), "f32") for n in (80, 40))
    name = unit(wide).op.name
    check(device, unit(ops.mul_mat(w, x), swapped=swapped))
    check(device, ops.add(unit(ops.mul_mat(w, x), swapped=swapped), narrow), f"{name} add")
    check(device, unit(ops.add(ops.mul_mat(w, x), wide), swapped=swapped), "mul_mat add")
    for norm in (ops.norm, ops.rms_norm, ops.l2_norm):
        check(device, unit(norm(wide), swapped=swapped))
        total = ops.add(wide, wide)
        check(device, ops.tanh(unit(norm(total), swapped=swapped)), f"add {norm(wide).op.name}", f"{name} tanh")


@pytest.mark.parametrize(("kind", "columns"), [("f32", 40), ("q8_0", 2)])
def test_two_products_are_gated(kind: str, columns: int, device: CpuDevice, rng: np.random.Generator) -> None:
    a, b = (gg.tensor(rng.standard_normal((50, 64)), kind) for _ in range(2))
    x, y = (gg.tensor(rng.standard_normal((columns, 64)), "f32") for _ in range(2))
    check(device, ops.swiglu(ops.mul_mat(a, x), ops.mul_mat(b, x)), "mul_mat mul_mat swiglu")
    check(device, ops.geglu(ops.mul_mat(a, x), ops.mul_mat(b, y)), "mul_mat geglu")
    product = ops.mul_mat(a, x)
    check(device, ops.swiglu(product, product), "mul_mat swiglu")


def test_a_product_is_written_where_its_copy_would_be(device: CpuDevice, rng: np.random.Generator) -> None:
    w, x = gg.tensor(rng.standard_normal((3, 4, 20, 32)), "f32"), gg.tensor(rng.standard_normal((3, 4, 9, 32)), "f32")

    def copied(*axes: int) -> Tensor:
        return ops.cont(ops.permute(ops.mul_mat(w, x), *axes))

    check(device, copied(0, 2, 1, 3), "mul_mat cont")
    check(device, copied(0, 3, 1, 2), "mul_mat cont")
    check(device, copied(1, 0, 2, 3))
    check(device, ops.cont(ops.view(ops.mul_mat(w, x), 10, 9, 4, 3, nb=(80, 720, 2880))))
    check(device, ops.reshape(copied(0, 2, 1, 3), 80, 27), "mul_mat cont")


@pytest.mark.parametrize("kind", ["f32", "bf16", "q8_0"])
def test_rows_of_a_product_are_normalised_while_they_are_whole(
    kind: str, device: CpuDevice, rng: np.random.Generator
) -> None:
    w, x = gg.tensor(rng.standard_normal((70, 544)), kind), gg.tensor(rng.standard_normal((3300, 544)), "f32")
    bias, scale, shift = (gg.tensor(rng.standard_normal(70), "f32") for _ in range(3))
    residual = gg.tensor(rng.standard_normal((3300, 70)), "f32")
    total = ops.add(ops.add(ops.mul_mat(w, x), bias), residual)
    check(device, ops.add(ops.mul(ops.norm(total), scale), shift), "mul_mat add add norm mul add")
    check(device, ops.rms_norm(ops.add(residual, ops.mul_mat(w, x))), "mul_mat add rms_norm")
    kept = ops.add(ops.mul_mat(w, x), bias).set_output()
    check(device, [kept, ops.mul(ops.norm(kept), scale)], "add* norm mul")


def test_rows_that_a_product_computes_in_parts_are_normalised_after_it(
    device: CpuDevice, rng: np.random.Generator
) -> None:
    long, residual = (gg.tensor(rng.standard_normal((3, n)), "f32") for n in (64, 96))
    w = gg.tensor(rng.standard_normal((96, 64)), "f32")
    check(device, ops.norm(ops.add(ops.mul_mat(w, long), residual)), "add norm")


def test_a_norm_behind_a_product_is_computed_where_f32_ends(device: CpuDevice, rng: np.random.Generator) -> None:
    x = rng.standard_normal((1600, 32)).astype(np.float32)
    x[3] *= 1e18
    x[4] *= 1e-22
    x[5, 1] = np.nan
    w, bias = gg.tensor(1e19 * rng.standard_normal((40, 32)), "f32"), gg.tensor(np.zeros(40), "f32")
    check(device, ops.norm(ops.add(ops.mul_mat(w, gg.tensor(x, "f32")), bias), eps=0.0), "mul_mat add norm")


# -- attention --------------------------------------------------------------------------------------


INSIDE = "cont mul_mat soft_max mul_mat"


def attention(
    rng: np.random.Generator,
    *,
    queries: int = 37,
    keys: int = 53,
    heads: int = 4,
    groups: int = 2,
    head: int = 16,
    kind: str = "f32",
    mask: str = "f32",
    max_bias: float = 0.0,
    sinks: bool = False,
    transposed: bool = True,
    copied: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, probabilities, mixed values, and the result, of two batches; ``groups`` heads of keys and values."""
    q = gg.tensor(rng.standard_normal((2, queries, heads, head)), "f32")
    k = gg.tensor(rng.standard_normal((2, keys, groups, head)), kind)
    v = gg.tensor(rng.standard_normal((2, keys, groups, head) if transposed else (2, groups, head, keys)), kind)
    logits = ops.mul_mat(ops.permute(k, 0, 2, 1, 3), ops.permute(q, 0, 2, 1, 3))
    hidden = np.where(rng.random((2, 1, queries, keys)) < 0.3, -np.inf, 0.5)
    probabilities = ops.soft_max(
        logits,
        gg.tensor(hidden, mask) if mask else None,
        gg.tensor(rng.standard_normal(heads), "f32") if sinks else None,
        scale=head**-0.5,
        max_bias=max_bias,
    )
    mixed = ops.mul_mat(ops.cont(ops.permute(v, 1, 2, 0, 3)) if transposed else v, probabilities)
    return logits, probabilities, mixed, ops.cont(ops.permute(mixed, 0, 2, 1, 3)) if copied else mixed


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"mask": ""},
        {"mask": "f16", "max_bias": 8.0, "sinks": True},
        {"kind": "f16", "transposed": False},
        {"kind": "bf16", "transposed": False, "copied": False},
        {"copied": False},
        {"queries": 250, "keys": 300, "heads": 2, "groups": 1, "head": 20},
        {"keys": 700, "heads": 2},
    ],
)
def test_attention_is_computed_block_by_block(how: dict[str, Any], device: CpuDevice, rng: np.random.Generator) -> None:
    *_, result = attention(rng, **how)
    front = "cont " * how.get("transposed", True)
    check(device, result, f"{front}mul_mat soft_max mul_mat{' cont' * how.get('copied', True)}")


def test_attention_whose_inside_is_needed_is_computed_step_by_step(device: CpuDevice, rng: np.random.Generator) -> None:
    for position, expected in ((0, ["mul_mat cont"]), (1, ["mul_mat cont"]), (2, [INSIDE])):
        steps = attention(rng)
        check(device, [steps[position].set_output(), steps[-1]], *expected)


def test_attention_that_other_kernels_compute_is_computed_step_by_step(
    device: CpuDevice, rng: np.random.Generator
) -> None:
    check(device, attention(rng, queries=3)[-1], "mul_mat cont")  # few columns
    check(device, attention(rng, keys=9000, head=32, queries=20, heads=1, groups=1)[-1], "mul_mat cont")
    mixed = attention(rng, copied=False)[-1]
    check(device, ops.cont(ops.permute(mixed, 1, 0, 2, 3)), INSIDE)  # rows taken apart


# -- caches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("mode", [0, 2])
def test_heads_are_rotated_and_stored_in_a_cache(
    kind: str, mode: int, device: CpuDevice, rng: np.random.Generator
) -> None:
    x = gg.tensor(rng.standard_normal((2, 5, 3, 32)), "f32")
    positions, factors = gg.tensor(np.arange(5) + 7, "i32"), gg.tensor(rng.uniform(1, 2, 16), "f32")
    rows = gg.tensor(np.stack([rng.permutation(9)[:5] for _ in range(2)]), "i64")

    def written(rows: Tensor, *ne: int) -> Tensor:
        cache = gg.tensor(np.zeros((2, 9, 96)), kind)
        return ops.set_rows(cache, ops.reshape(ops.rope(x, positions, 32, freq_factors=factors, mode=mode), *ne), rows)

    check(device, written(rows, 96, 5, 2), "rope set_rows")


def test_an_index_out_of_range_is_noted_by_the_group(device: CpuDevice, rng: np.random.Generator) -> None:
    x, cache = gg.tensor(rng.standard_normal((5, 3, 32)), "f32"), gg.tensor(np.zeros((9, 96)), "f32")
    rows, positions = gg.tensor([0, 1, 9, 2, 3], "i64"), gg.tensor(np.arange(5), "i32")
    node = ops.set_rows(cache, ops.reshape(ops.rope(x, positions, 32), 96, 5), rows)
    graph = Graph(node)
    groups = device.groups(graph)
    assert described(graph, groups) == ["rope set_rows"]
    with GraphAllocator(device.buffer_type) as memory, device.init() as stream:
        plan = stream.plan(graph, groups)
        allocation = memory.allocate(graph, groups=groups)
        plan.rebind(graph, allocation)
        with pytest.raises(ComputeError, match=r"set_rows.*9"):
            plan.compute()
    assert cache.numpy()[:4].all()
    assert not cache.numpy()[4:].any()
