"""Layers of encoders that the CPU device computes in one pass: the same numbers, bit for bit, as node by node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ggplug_cpu")

from cpu_groups import check, with_other_instructions

import ggplug as gg
from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu import features
from ggplug_cpu.choosing.entries import Entries
from ggplug_cpu.device import CpuDevice
from ggplug_cpu.ops.mul_mat.prepare import mul_mat_round
from ggplug_cpu.packed import PackedBufferType
from ggplug_cpu.tape import Entry


@pytest.fixture(scope="module")
def device() -> Iterator[CpuDevice]:
    cpu = CpuDevice()
    yield cpu
    cpu.team.close()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(77)


# -- feed-forward layers ----------------------------------------------------------------------------


def packed(device: CpuDevice, values: Any, kind: str) -> Tensor:
    """Weights that lie packed."""
    plain = gg.tensor(values, kind)
    memory = next(each for each in device.extra_buffer_types if isinstance(each, PackedBufferType))
    made = gg.new_tensor(plain.type, plain.ne[:2])
    made.place(memory.alloc(memory.alloc_size(made)))
    return made.set_bytes(plain.tobytes())


def layer(
    device: CpuDevice,
    rng: np.random.Generator,
    kind: str = "f32",
    inside: int = 160,
    rows: int = 397,
    bias: bool = True,
) -> tuple[Tensor, Tensor]:
    """Rows of so many numbers between two products, and the second product, of 70 numbers."""
    x = gg.tensor(rng.standard_normal((rows, 256)), "f32")
    w, v = (packed(device, rng.standard_normal(shape), kind) for shape in ((inside, 256), (70, inside)))
    total = ops.mul_mat(w, x)
    if bias:
        total = ops.add(total, gg.tensor(rng.standard_normal(inside), "f32"))
    hidden = ops.gelu_erf(total)
    return hidden, ops.mul_mat(v, hidden)


def finished(rng: np.random.Generator, product: Tensor) -> Tensor:
    """The product with bias, residual and norm."""
    bias, scale, shift = (gg.tensor(rng.standard_normal(70), "f32") for _ in range(3))
    residual = gg.tensor(rng.standard_normal((product.ne[1], 70)), "f32")
    return ops.add(ops.mul(ops.norm(ops.add(ops.add(product, bias), residual)), scale), shift)


LAYER = "mul_mat add gelu_erf mul_mat add"


@pytest.mark.parametrize(
    ("instructions", "kind", "inside"),
    [
        ("", "f32", 700),
        ("", "f16", 160),
        ("", "bf16", 1300),
        ("", "q8_0", 2144),
        ("", "q4_1", 160),
        ("", "q6_K", 256),
        *with_other_instructions(1300),
    ],
)
def test_a_feed_forward_layer_is_computed_in_one_pass(
    instructions: str, kind: str, inside: int, device: CpuDevice, rng: np.random.Generator
) -> None:
    with features.forced(instructions) if instructions else nullcontext():
        _, product = layer(device, rng, kind, inside)
        check(device, finished(rng, product), f"{LAYER} add norm mul add")


def test_a_feed_forward_layer_is_the_same_with_and_without_what_is_around_it(
    device: CpuDevice, rng: np.random.Generator
) -> None:
    _, product = layer(device, rng)
    check(device, ops.add(product, gg.tensor(rng.standard_normal((397, 70)), "f32")), LAYER)
    _, product = layer(device, rng, bias=False)
    check(device, ops.add(product, gg.tensor(rng.standard_normal(70), "f32")), "mul_mat gelu_erf mul_mat add")


def test_a_feed_forward_layer_is_the_same_for_any_number_of_threads(
    device: CpuDevice, rng: np.random.Generator
) -> None:
    _, product = layer(device, rng, "bf16")
    result, before = finished(rng, product), device.n_threads
    for threads in (1, 3, before):
        device.with_team(lambda team, n=threads: team.set_n_threads(n))
        check(device, result, f"{LAYER} add norm mul add")


def test_a_feed_forward_layer_whose_inside_is_needed_is_computed_step_by_step(
    device: CpuDevice, rng: np.random.Generator
) -> None:
    hidden, product = layer(device, rng)
    check(device, [hidden.set_output(), finished(rng, product)], "mul_mat add gelu_erf", "mul_mat add add norm mul add")
    hidden, product = layer(device, rng)
    check(device, [ops.neg(hidden), finished(rng, product)], "mul_mat add gelu_erf", "mul_mat add add norm mul add")


def test_a_feed_forward_layer_that_reads_its_weights_too_often_is_computed_step_by_step(
    device: CpuDevice, rng: np.random.Generator
) -> None:
    _, product = layer(device, rng, rows=380)  # blocks of 48 rows
    check(device, ops.relu(product), "mul_mat add gelu_erf", "mul_mat relu")
    x, w, v = (gg.tensor(rng.standard_normal((n, 64)), "f32") for n in (397, 64, 64))  # not packed
    check(device, ops.relu(ops.mul_mat(v, ops.relu(ops.mul_mat(w, x)))), "mul_mat relu", "mul_mat relu")
    w, v = packed(device, np.ones((16400, 64)), "f32"), packed(device, np.ones((70, 16400)), "f32")  # many
    check(device, ops.relu(ops.mul_mat(v, ops.relu(ops.mul_mat(w, x)))), "mul_mat relu", "mul_mat relu")


def test_a_feed_forward_layer_inside_of_which_rows_are_added_is_computed_step_by_step(
    device: CpuDevice, rng: np.random.Generator
) -> None:
    x, rows = (gg.tensor(rng.standard_normal((397, n)), "f32") for n in (64, 160))
    w, v = (packed(device, rng.standard_normal(shape), "f32") for shape in ((160, 64), (70, 160)))
    hidden = ops.relu(ops.add(ops.mul_mat(w, x), rows))
    check(device, ops.relu(ops.mul_mat(v, hidden)), "mul_mat add relu", "mul_mat relu")


# -- attention and the product behind it ------------------------------------------------------------


ATTENTION = "cont mul_mat soft_max mul_mat cont"


def attention_layer(
    device: CpuDevice,
    rng: np.random.Generator,
    kind: str = "f32",
    queries: int = 53,
    texts: int = 8,
    shared: int = 1,
    weights: Any = packed,
) -> tuple[Tensor, Tensor]:
    """What four heads of 16 numbers mix, and the product with that, of 70; ``shared``: heads with equal keys."""
    q = gg.tensor(rng.standard_normal((texts, queries, 4, 16)), "f32")
    k, v = (gg.tensor(rng.standard_normal((texts, 37, 4 // shared, 16)), "f32") for _ in range(2))
    logits = ops.mul_mat(ops.permute(k, 0, 2, 1, 3), ops.permute(q, 0, 2, 1, 3))
    mask = gg.tensor(np.where(rng.random((texts, 1, queries, 37)) < 0.3, -np.inf, 0.5), "f32")
    mixed = ops.mul_mat(ops.cont(ops.permute(v, 1, 2, 0, 3)), ops.soft_max(logits, mask, scale=0.25))
    heads = ops.cont(ops.permute(mixed, 0, 2, 1, 3))
    w = weights(device, rng.standard_normal((70, 64)), kind)
    return heads, ops.mul_mat(w, ops.reshape(heads, 64, queries * texts))


@pytest.mark.parametrize(
    ("instructions", "kind", "how"),
    [
        ("", "f32", {}),
        ("", "bf16", {"queries": 300, "texts": 3}),
        ("", "q8_0", {}),
        ("", "q4_1", {"texts": 9}),
        *with_other_instructions({}),
    ],
)
def test_what_all_heads_mix_is_multiplied_in_the_same_pass(
    instructions: str, kind: str, how: dict[str, int], device: CpuDevice, rng: np.random.Generator
) -> None:
    with features.forced(instructions) if instructions else nullcontext():
        _, product = attention_layer(device, rng, kind, **how)
        check(device, finished(rng, product), f"{ATTENTION} mul_mat add add norm mul add")


def test_what_all_heads_mix_is_multiplied_and_added(device: CpuDevice, rng: np.random.Generator) -> None:
    _, product = attention_layer(device, rng)
    check(device, ops.add(product, gg.tensor(rng.standard_normal((53 * 8, 70)), "f32")), f"{ATTENTION} mul_mat add")


def test_what_all_heads_mix_is_the_same_for_any_number_of_threads(device: CpuDevice, rng: np.random.Generator) -> None:
    result, before = finished(rng, attention_layer(device, rng)[1]), device.n_threads
    for threads in (1, 3, before):
        device.with_team(lambda team, n=threads: team.set_n_threads(n))
        check(device, result, f"{ATTENTION} mul_mat add add norm mul add")


@pytest.mark.parametrize(
    "how", [{"shared": 2}, {"queries": 30}, {"texts": 7}, {"weights": lambda _, *args: gg.tensor(*args)}]
)
def test_what_all_heads_mix_is_written_where_blocks_do_not_serve_the_product(
    how: dict[str, Any], device: CpuDevice, rng: np.random.Generator
) -> None:
    _, product = attention_layer(device, rng, **how)
    check(device, ops.relu(product), ATTENTION, "mul_mat relu")


def test_what_all_heads_mix_is_written_where_it_is_read(device: CpuDevice, rng: np.random.Generator) -> None:
    heads, product = attention_layer(device, rng)
    check(device, [heads.set_output(), ops.relu(product)], ATTENTION, "mul_mat relu")
    heads, product = attention_layer(device, rng)
    halves = ops.reshape(heads, 32, 2 * 53 * 8)
    w = packed(device, rng.standard_normal((70, 32)), "f32")
    check(device, ops.relu(ops.mul_mat(w, halves)), ATTENTION, "mul_mat relu")


def test_the_first_entry_of_a_node_waits_for_the_nodes_before() -> None:
    entry = Entry(mul_mat_round("f32"), [], barrier_before=False)
    with pytest.raises(AssertionError, match="waits for no node before"):
        Entries((entry,))
    Entries((replace(entry, barrier_before=True), entry))
