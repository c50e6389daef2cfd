"""The oracle computes a graph in float64 by the ops' references, with views, writes and rounding as the types say."""

from __future__ import annotations

import numpy as np
import pytest

import ggplug as gg
from ggplug.errors import GraphError, ShapeError, TensorStateError
from ggplug.ops.base import OPS, Op, apply
from ggplug.tensor import like
from ggplug.values.arrays import encode
from ggplug_testing.judging.oracle import evaluate

rng = np.random.default_rng(3)


def leaf(type: str, *ne: int) -> gg.Tensor:
    return gg.new_tensor(type, ne)


def test_views_read_their_root_with_their_strides() -> None:
    x = leaf("f32", 6, 5, 4)
    values = rng.standard_normal((4, 5, 6)).astype(np.float32)
    window = gg.view(x, 3, 2, 2, nb=(2 * x.nb[1], x.nb[2]), offset=x.nb[2] + x.nb[1] + 8)
    permuted = gg.cont(gg.permute(window, 2, 0, 1, 3))
    got = evaluate(gg.Graph(permuted), {x: values})[permuted]
    want = values[1:3, 1:5:2, 2:5].transpose(2, 0, 1)
    np.testing.assert_array_equal(got[0], want)


def test_views_of_quantised_roots_show_whole_blocks() -> None:
    w = leaf("q8_0", 96, 4)
    raw = encode(rng.standard_normal((4, 96)).astype(np.float32), w.type)
    whole = evaluate(gg.Graph(w), {w: raw})[w][0, 0]
    part = gg.view(w, 32, 2, nb=(2 * w.nb[1],), offset=w.nb[1] + w.type.block_bytes)
    got = evaluate(gg.Graph(gg.cont(part)), {w: raw})[part]
    np.testing.assert_array_equal(got[0, 0], whole[1::2, 32:64])


def test_signalling_nans_are_values_like_others() -> None:
    signalling = np.array([0x7F80_0001], np.uint32).view(np.float32)
    x = leaf("f32", 1)
    assert np.isnan(evaluate(gg.Graph(y := gg.neg(x)), {x: signalling})[y]).all()
    wide = np.array([0x7FF0_0000_0000_0001], np.uint64).view(np.float64)
    for type in ("f32", "f64", "f16", "bf16"):
        assert np.isnan(gg.tensor(wide, type).numpy()).all()
    assert np.isnan(gg.tensor(signalling, "f64").numpy()).all()


def test_a_write_through_a_view_is_seen_by_later_readers_of_the_root() -> None:
    cache, new = leaf("f32", 8, 6), leaf("f32", 8, 2)
    window = gg.view(cache, 8, 2, nb=cache.nb[1:], offset=3 * cache.nb[1])
    written = gg.cpy(new, window)
    total = gg.sum_rows(cache)
    graph = gg.Graph(written, total)
    old, fresh = rng.standard_normal((6, 8)).astype(np.float32), rng.standard_normal((2, 8)).astype(np.float32)
    want = old.copy()
    want[3:5] = fresh
    values = evaluate(graph, {cache: old, new: fresh})
    np.testing.assert_array_equal(values[cache][0, 0], want)
    np.testing.assert_allclose(values[total][0, 0, :, 0], want.astype(np.float64).sum(axis=1), rtol=1e-6)


def test_rows_that_are_not_written_keep_their_bits() -> None:
    # Arbitrary bytes: quantising what they decode to again would give others.
    cache, new, ids = leaf("q4_0", 64, 5), leaf("f32", 64, 1), leaf("i64", 1)
    raw = rng.integers(0, 256, cache.nbytes, dtype=np.uint8)
    raw.view(cache.type.dtype)["d"] = rng.uniform(0.1, 1, raw.size // 18)
    before = evaluate(gg.Graph(cache), {cache: raw})[cache]
    written = gg.set_rows(cache, new, ids)
    after = evaluate(gg.Graph(written), {cache: raw, new: np.ones(64, np.float32), ids: np.array([2])})[cache]
    np.testing.assert_array_equal(np.delete(after, 2, axis=2), np.delete(before, 2, axis=2))
    np.testing.assert_allclose(after[0, 0, 2], 1, rtol=1e-3)


def test_copies_between_equal_quantised_types_move_blocks() -> None:
    x = leaf("q4_0", 64, 3, 2)
    raw = rng.integers(0, 256, x.nbytes, dtype=np.uint8)
    raw.view(x.type.dtype)["d"] = rng.uniform(0.1, 1, raw.size // 18)
    moved = gg.cont(gg.permute(x, 0, 2, 1, 3))
    values = evaluate(gg.Graph(moved), {x: raw})
    np.testing.assert_array_equal(values[moved][0], values[x][0].transpose(1, 0, 2))


def test_results_are_rounded_to_types_coarser_than_f32_before_they_are_read() -> None:
    x = leaf("f32", 4)
    values = np.array([1 / 3, 1.0001, 1e-3, 70000], np.float32)
    halves = gg.cast(x, "f16")
    y = gg.scale(gg.cast(halves, "f32"), 3.0)
    with np.errstate(over="ignore"):
        want = values.astype(np.float16).astype(np.float64) * 3
    np.testing.assert_allclose(evaluate(gg.Graph(y), {x: values})[y].reshape(-1), want, rtol=1e-7)


def test_f32_results_are_not_rounded_in_between() -> None:
    x = leaf("f32", 2)
    values = np.array([1.0, 3.0], np.float32)
    # 1e8 + 1 is no float32: rounded in between, the difference would be 0.
    y = gg.scale(gg.scale(x, 1.0, bias=1e8), 1.0, bias=-1e8)
    graph = gg.Graph(y)
    np.testing.assert_array_equal(evaluate(graph, {x: values})[y].reshape(-1), values)
    assert evaluate(graph, {x: values}, wide=False)[y].reshape(-1)[0] == 0


def test_what_overflows_float32_is_infinite() -> None:
    x = leaf("f32", 2)
    y = gg.exp(x)
    got = evaluate(gg.Graph(y), {x: np.array([100, -100], np.float32)})[y].reshape(-1)
    assert got[0] == np.inf
    assert 0 < got[1] < 1e-40


# what float32 has of integers, their limits and what lies beyond: as a processor converts them, and as dup says
FLOATS = [np.nan, np.inf, -np.inf, 3e9, -3e9, 2147483648.0, -2147483648.0, 2147483520.0, 1.9, -1.9, 16777216.0, -0.0]
CUT = [0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 2147483520, 1, -1, 16777216, 0]


def test_floats_become_integers_alike_wherever_they_are_written() -> None:
    given, old = np.array(FLOATS, np.float32), np.arange(2**24 + 1, 2**24 + 25, dtype=np.int32).reshape(2, 12)
    x, target, cache, ids = leaf("f32", 12), leaf("i32", 12), leaf("i32", 12, 2), leaf("i64", 1)
    for node, values in (
        (gg.cast(x, "i32"), {x: given}),
        (gg.cpy(x, target), {x: given, target: old[0]}),
        (gg.set_rows(cache, x, ids), {x: given, cache: old, ids: np.array([1])}),
    ):
        got = evaluate(gg.Graph(node), values)[node][0, 0]
        assert got[-1].tolist() == CUT, node.op
    assert got[0].tolist() == old[0].tolist(), "the row that set_rows leaves as it is"


def test_integers_beyond_a_type_become_the_nearest_of_its_integers() -> None:
    x = leaf("i64", 5)
    values = np.array([2**40 + 1, -(2**40), 2**31 - 1, -129, 127])
    for type, want in (
        ("i32", [2**31 - 1, -(2**31), 2**31 - 1, -129, 127]),
        ("i16", [2**15 - 1, -(2**15), 2**15 - 1, -129, 127]),
        ("i8", [127, -128, 127, -128, 127]),
    ):
        node = gg.cast(x, type)
        assert evaluate(gg.Graph(node), {x: values})[node].reshape(-1).tolist() == want


def test_integers_become_bf16_by_way_of_f32() -> None:
    """Which makes a tie of the number above one, and that goes to the even side."""
    x = leaf("i32", 3)
    values = np.array([2**30 + 2**22, 2**30 + 2**22 + 1, 2**30 + 2**22 + 65], np.int32)
    node = gg.cast(x, "bf16")
    got = evaluate(gg.Graph(node), {x: values})[node].reshape(-1)
    assert got.tolist() == [2**30, 2**30, 2**30 + 2**23]


def test_integers_stay_integers() -> None:
    a, ids = leaf("i32", 3, 4), leaf("i32", 2)
    table = np.arange(12, dtype=np.int32).reshape(4, 3) + 2**30
    y = gg.get_rows(a, ids)
    got = evaluate(gg.Graph(y), {a: table, ids: np.array([3, 1], np.int32)})[y]
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got[0, 0], table[[3, 1]])


def test_tensors_without_elements_are_computed_too() -> None:
    x = leaf("f32", 4, 0)
    y = gg.relu(x)
    assert evaluate(gg.Graph(y), {x: b""})[y].shape == (1, 1, 0, 4)


def test_placed_leafs_bring_their_own_values() -> None:
    x = gg.tensor([[1.0, -2.0]])
    y = gg.relu(x)
    np.testing.assert_array_equal(evaluate(gg.Graph(y), {})[y].reshape(-1), [1, 0])


def test_a_leaf_without_values_is_an_error_that_names_it() -> None:
    x = gg.new_tensor("f32", (3,), name="forgotten")
    with pytest.raises(TensorStateError, match="forgotten"):
        evaluate(gg.Graph(gg.relu(x)), {})
    with pytest.raises(ShapeError, match="12 bytes"):
        evaluate(gg.Graph(gg.relu(x)), {x: bytes(8)})


def test_an_op_without_reference_is_an_error_that_names_it() -> None:
    class Silent(Op):
        name = "test.silent"

        def result(self, x: gg.Tensor) -> object:
            return like(x)

    try:
        x = leaf("f32", 3)
        with pytest.raises(GraphError, match=r"test\.silent"):
            evaluate(gg.Graph(apply(Silent(), (x,))), {x: bytes(12)})
    finally:
        del OPS["test.silent"]
