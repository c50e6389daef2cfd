"""Backward graphs and gradients of functions, on the CPU: what is asked for, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

import ggplug as gg
from ggplug.errors import GradientError, GraphError, ParameterError, ShapeError, TypeMismatchError
from ggplug.types import TensorFlag

Array = npt.NDArray[np.float32]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def gradients(loss: gg.Tensor, *wrt: gg.Tensor) -> list[Array]:
    """The gradients of a loss, computed by its backward graph."""
    backward = gg.Graph(loss).backward(loss, wrt)
    with gg.Scheduler([gg.init_best()]) as scheduler:
        scheduler.compute(backward)
        return [backward.gradients[each].numpy() for each in wrt]


def test_a_backward_graph_begins_with_the_tensors_of_the_graph_and_leaves_them_as_they_are() -> None:
    x = gg.tensor(numbers(3, 4))
    loss = gg.sum(gg.sqr(x))
    graph = gg.Graph(loss)
    signature = graph.signature()
    backward = graph.backward(loss, [x])
    assert backward.tensors[: len(graph.tensors)] == graph.tensors
    assert backward.outputs == [loss, backward.gradients[x]]
    assert graph.signature() == signature
    assert not graph.gradients


def test_marks_choose_the_loss_and_the_parameters() -> None:
    w, x = gg.tensor(numbers(4)).mark(TensorFlag.PARAM), gg.tensor(numbers(4, seed=1))
    loss = gg.sum(gg.mul(w, x)).mark(TensorFlag.LOSS)
    assert list(gg.Graph(loss).backward().gradients) == [w]
    with pytest.raises(GradientError, match=r"no tensor of .* is marked as a loss"):
        gg.Graph(gg.sum(w)).backward()
    other = gg.sum(x)
    with pytest.raises(GradientError, match=r"marked as a parameter.*TensorFlag.PARAM"):
        gg.Graph(other).backward(other)


def test_accumulators_add_up_until_they_are_reset() -> None:
    x = gg.tensor(numbers(5))
    sum_of_gradients = gg.tensor(np.zeros(5, np.float32))
    loss = gg.sum(gg.sqr(x))
    backward = gg.Graph(loss).backward(loss, [x], {x: sum_of_gradients})
    with gg.Scheduler([gg.init_best()]) as scheduler:
        for times in (1, 2, 3):
            scheduler.compute(backward)
            np.testing.assert_allclose(sum_of_gradients.numpy(), 2 * times * x.numpy(), rtol=1e-6)
    assert backward.accumulators == {x: sum_of_gradients}
    backward.reset()
    assert not sum_of_gradients.numpy().any()


def test_the_gradient_of_several_losses_is_that_of_their_sum() -> None:
    x = gg.tensor(numbers(6))
    first, second = gg.sum(gg.sqr(x)), gg.sum(gg.exp(x))
    backward = gg.Graph(first, second).backward([first, second], [x])
    with gg.Scheduler([gg.init_best()]) as scheduler:
        scheduler.compute(backward)
        found = backward.gradients[x].numpy()
    np.testing.assert_allclose(found, 2 * x.numpy() + np.exp(x.numpy()), rtol=1e-5)


def test_uses_of_a_tensor_add_up_and_repetitions_are_summed() -> None:
    x, row = gg.tensor(numbers(3, 4)), gg.tensor(numbers(4, seed=1))
    of_x, of_row = gradients(gg.sum(gg.mul(gg.add(x, row), gg.add(x, row))), x, row)
    np.testing.assert_allclose(of_x, 2 * (x.numpy() + row.numpy()), rtol=1e-5)
    np.testing.assert_allclose(of_row, of_x.sum(axis=0), rtol=1e-5)
    assert of_x.shape == (3, 4)
    assert of_row.shape == (4,)


def test_gradients_of_views_are_put_together() -> None:
    x = gg.tensor(numbers(4, 6))
    left = gg.view(x, 2, 4, nb=(x.nb[1],))
    right = gg.view(x, 3, 4, nb=(x.nb[1],), offset=4)
    loss = gg.add(gg.sum(gg.sqr(left)), gg.add(gg.sum(right), gg.sum(gg.scale(x, 10))))
    (found,) = gradients(loss, x)
    wanted = np.full((4, 6), 10, np.float32)
    wanted[:, :2] += 2 * x.numpy()[:, :2]
    wanted[:, 1:4] += 1
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_result_within_the_graph_has_a_gradient_too() -> None:
    x = gg.tensor(numbers(4))
    between = gg.exp(x)
    of_between, of_x = gradients(gg.sum(gg.sqr(between)), between, x)
    np.testing.assert_allclose(of_between, 2 * np.exp(x.numpy()), rtol=1e-5)
    np.testing.assert_allclose(of_x, 2 * np.exp(2 * x.numpy()), rtol=1e-5)


def test_what_the_loss_does_not_depend_on_has_zeros() -> None:
    x, other = gg.tensor(numbers(4)), gg.tensor(numbers(2, 3))
    loss = gg.sum(x)
    backward = gg.Graph(loss, gg.sqr(other)).backward(loss, [other])
    with gg.Scheduler([gg.init_best()]) as scheduler:
        scheduler.compute(backward)
        found = backward.gradients[other].numpy()
    assert found.shape == (2, 3)
    assert not found.any()


@pytest.mark.parametrize("type", ["q4_0", "q8_0", "q4_k", "f16", "bf16"])
def test_gradients_pass_quantised_weights_but_not_into_them(type: str) -> None:
    weights = gg.tensor(numbers(8, 256), type)
    x = gg.tensor(numbers(3, 256, seed=1))
    loss = gg.sum(gg.mul_mat(weights, x))
    (found,) = gradients(loss, x)
    wanted = gg.dequantize(np.frombuffer(weights.tobytes(), np.uint8).reshape(8, -1), type).sum(axis=0)
    np.testing.assert_allclose(found, np.broadcast_to(wanted, (3, 256)), rtol=2e-2, atol=2e-2)
    if weights.type.is_quantized:
        with pytest.raises(GradientError, match="is no float"):
            gg.Graph(loss).backward(loss, [weights])
        rounded = gg.sum(gg.mul_mat(gg.cast(x, type), x))
        with pytest.raises(GradientError, match="numbers in blocks have none"):
            gg.Graph(rounded).backward(rounded, [x])


def test_an_op_without_a_rule_is_named() -> None:
    x = gg.tensor(numbers(3, 3))
    loss = gg.sum(gg.map_custom1(x, lambda dst, a, *_: None))
    with pytest.raises(GradientError, match="the op map_custom1 has no gradient rule") as caught:
        gg.Graph(loss).backward(loss, [x])
    assert caught.value.op.name == "map_custom1"


def test_what_a_rule_does_not_take_is_named() -> None:
    x, positions, factors = gg.tensor(numbers(4, 2, 8)), gg.tensor(np.arange(4, dtype=np.int32)), gg.tensor(numbers(4))
    loss = gg.sum(gg.rope(x, positions, 8, factors))
    with pytest.raises(GradientError, match=r"rope has no gradient of .*: the factors of frequencies are constants"):
        gg.Graph(loss).backward(loss, [factors])


def test_losses_and_tensors_that_are_not_there_are_refused() -> None:
    x = gg.tensor(numbers(4))
    loss = gg.sum(x)
    with pytest.raises(ShapeError, match="a loss is one number"):
        gg.Graph(gg.sqr(x)).backward(x, [x])
    with pytest.raises(GraphError, match="is not in"):
        gg.Graph(loss).backward(loss, [gg.tensor(numbers(2))])
    with pytest.raises(GradientError, match="gradients are of tensors, got str"):
        gg.Graph(loss).backward(loss, ["x"])  # type: ignore[list-item]


# -- writes ----------------------------------------------------------------------------------------


def test_gradients_pass_what_is_written_into_a_tensor() -> None:
    cache, rows = gg.tensor(numbers(4, 3)), gg.tensor(numbers(2, 3, seed=1))
    before = cache.numpy()
    written = gg.set_rows(cache, rows, gg.tensor(np.array([2, 0], np.int64)))
    of_rows, of_cache = gradients(gg.sum(gg.sqr(written)), rows, cache)
    np.testing.assert_allclose(of_rows, 2 * rows.numpy(), rtol=1e-6)
    wanted = 2 * before
    wanted[[0, 2]] = 0
    np.testing.assert_allclose(of_cache, wanted, rtol=1e-6)


def test_a_read_that_goes_round_the_written_result_is_refused() -> None:
    cache, x = gg.tensor(numbers(3)), gg.tensor(numbers(3, seed=1))
    written = gg.cpy(x, cache)
    graph = gg.Graph(written)
    loss = gg.sum(gg.sqr(cache))
    graph.expand(loss)
    with pytest.raises(GradientError, match=r"sqr reads .* after cpy wrote into its bytes .*read the result of cpy"):
        graph.backward(loss, [x])


def test_a_value_that_a_gradient_needs_must_not_be_overwritten() -> None:
    x, weights = gg.tensor(numbers(3)), gg.tensor(numbers(3, seed=1))
    doubled = gg.cpy(gg.mul(x, weights), x)
    loss = gg.sum(doubled)
    with pytest.raises(GradientError, match=r"a gradient needs the value of .*, which cpy overwrites"):
        gg.Graph(loss).backward(loss, [weights])
    (of_x,) = gradients(loss, x)  # that of the value before, for which nothing is needed that was overwritten
    np.testing.assert_allclose(of_x, weights.numpy(), rtol=1e-6)


def test_writes_into_other_bytes_do_not_matter() -> None:
    x = gg.tensor(numbers(2, 4))
    first, second = (gg.view(x, 4, offset=16 * row) for row in (0, 1))
    written = gg.cpy(gg.scale(first, 2), second)
    loss = gg.sum(gg.mul(written, gg.sqr(first)))
    (found,) = gradients(loss, first)
    np.testing.assert_allclose(found, 6 * x.numpy()[0] ** 2, rtol=1e-5)


# -- functions -------------------------------------------------------------------------------------


def cubed(x: gg.Tensor) -> gg.Tensor:
    return gg.sum(gg.mul(gg.sqr(x), x))


def test_grad_and_value_and_grad() -> None:
    x = gg.tensor(numbers(5))
    value, gradient = gg.compute(*gg.value_and_grad(cubed)(x))
    np.testing.assert_allclose(value.item(), (x.numpy() ** 3).sum(), rtol=1e-5)
    np.testing.assert_allclose(gradient.numpy(), 3 * x.numpy() ** 2, rtol=1e-5)
    np.testing.assert_allclose(gg.compute(gg.grad(cubed)(x)).numpy(), gradient.numpy())


def test_gradients_are_arranged_as_the_arguments_are() -> None:
    parameters = {"w": gg.tensor(numbers(4, 4)), "layers": [gg.tensor(numbers(4)), gg.tensor(numbers(4, seed=1))]}
    x = gg.tensor(numbers(2, 4, seed=2))

    def loss(p: dict[str, object], x: gg.Tensor) -> gg.Tensor:
        w, (a, b) = p["w"], p["layers"]  # type: ignore[misc]
        return gg.sum(gg.sqr(gg.mul(gg.add(gg.mul_mat(w, x), a), b)))

    found, of_x = gg.grad(loss, argnums=(0, 1))(parameters, x)
    assert found["w"].shape == (4, 4)
    assert [each.shape for each in found["layers"]] == [(4,), (4,)]
    assert of_x.shape == (2, 4)
    with pytest.raises(ParameterError, match="argnums 2 of 2 arguments"):
        gg.grad(loss, 2)(parameters, x)
    with pytest.raises(TypeMismatchError, match="must return a tensor, got float"):
        gg.grad(lambda x: 1.0)(x)  # type: ignore[arg-type,return-value]
    with pytest.raises(ShapeError, match="a loss is one number"):
        gg.grad(gg.sqr)(x)


def test_an_argument_has_its_own_gradient_when_others_have_the_same_tensor_or_are_computed_from_it() -> None:
    x = gg.tensor(np.array([1, 2], np.float32))
    squared = gg.sqr(x)

    def gradients_at(*arguments: object, argnums: int | tuple[int, ...] = 0) -> list[list[float]]:
        found = gg.grad(lambda a, b: gg.sum(gg.mul(a["a"], gg.sqr(b))), argnums)(*arguments)
        flat = [each["a"] if isinstance(each, dict) else each for each in ([found] if argnums == 0 else found)]
        return [each.numpy().tolist() for each in gg.compute(*flat, gg.sum(x))[:-1]]

    assert gradients_at({"a": x}, x) == [[1, 4]]
    assert gradients_at({"a": x}, x, argnums=(0, -1)) == [[1, 4], [2, 8]]
    assert gradients_at({"a": x}, squared, argnums=(0, 1)) == [[1, 16], [2, 16]]
    assert gradients_at({"a": squared}, x, argnums=(0, 1)) == [[1, 4], [2, 16]]
    transposed = gg.transpose(gg.tensor(np.array([[1, 2, 3], [4, 5, 6]], np.float32)))
    found = gg.compute(gg.grad(lambda a, b: gg.sum(gg.mul(gg.cont(a), b)))(transposed, transposed)).numpy()
    assert found.tolist() == [[1, 4], [2, 5], [3, 6]]


@pytest.mark.parametrize(
    ("function", "second"),
    [
        (cubed, lambda x: 6 * x),
        (lambda x: gg.sum(gg.silu(x)), None),
        (lambda x: gg.sum(gg.sqr(gg.rms_norm(x))), None),
        (lambda x: gg.sum(gg.sqr(gg.soft_max(x))), None),
        (lambda x: gg.sum(gg.tanh(x)), lambda x: -2 * np.tanh(x) * (1 - np.tanh(x) ** 2)),
    ],
)
def test_gradients_have_gradients(
    function: Callable[[gg.Tensor], gg.Tensor], second: Callable[[Array], Array] | None
) -> None:
    x, step = numbers(3, 7), np.float32(1e-2)

    def slope(x: gg.Tensor) -> gg.Tensor:
        return gg.sum(gg.sqr(gg.grad(function)(x)))

    found = gg.compute(gg.grad(slope)(gg.tensor(x))).numpy()
    direction = numbers(3, 7, seed=1)
    ends = [gg.compute(slope(gg.tensor(x + way * direction))).item() for way in (step, -step)]
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx((found * direction).sum(), rel=2e-2, abs=2e-3)
    if second is not None:
        first = gg.compute(gg.grad(function)(gg.tensor(x))).numpy()
        np.testing.assert_allclose(found, 2 * first * second(x), rtol=1e-4, atol=1e-5)


# -- computing again -------------------------------------------------------------------------------


def layers(layer: Callable[[gg.Tensor, gg.Tensor], gg.Tensor]) -> tuple[gg.Tensor, list[gg.Tensor]]:
    """A loss over six layers, and their weights."""
    weights = [gg.tensor(numbers(32, 32, seed=i) / 6) for i in range(6)]
    y = gg.tensor(numbers(64, 32, seed=9))
    for each in weights:
        y = layer(y, each)
    return gg.sum(gg.sqr(y)), weights


def layer(x: gg.Tensor, w: gg.Tensor) -> gg.Tensor:
    y = gg.mul_mat(w, gg.rms_norm(x))
    for _ in range(4):
        y = gg.add(gg.tanh(y), gg.sin(y))
    return gg.add(x, y)


def test_remat_takes_less_memory_and_gives_the_same_gradients() -> None:
    peaks, found = [], []
    for each in (layer, gg.remat(layer)):
        loss, weights = layers(each)
        backward = gg.Graph(loss).backward(loss, weights)
        allocator = gg.memory.GraphAllocator(gg.device("CPU").buffer_type)
        peaks.append(sum(allocator.lay_out(backward).peak))
        found.append(gradients(loss, *weights))
    assert peaks[1] < 0.5 * peaks[0]
    for kept, again in zip(*found, strict=True):
        np.testing.assert_array_equal(kept, again)


def test_remat_within_remat_and_with_several_results() -> None:
    inner = gg.remat(lambda x: gg.tanh(gg.sin(x)))

    @gg.remat
    def both(x: gg.Tensor, scales: dict[str, gg.Tensor]) -> tuple[gg.Tensor, gg.Tensor]:
        y = inner(gg.mul(x, scales["a"]))
        return gg.sqr(y), gg.mul(y, scales["b"])

    x, scales = gg.tensor(numbers(3, 5)), {"a": gg.tensor(numbers(5, seed=1)), "b": gg.tensor(numbers(5, seed=2))}

    def loss(call: Callable[..., tuple[gg.Tensor, gg.Tensor]]) -> gg.Tensor:
        first, second = call(x, scales)
        return gg.sum(gg.add(first, gg.sqr(second)))

    def plain(x: gg.Tensor, scales: dict[str, gg.Tensor]) -> tuple[gg.Tensor, gg.Tensor]:
        y = gg.tanh(gg.sin(gg.mul(x, scales["a"])))
        return gg.sqr(y), gg.mul(y, scales["b"])

    wrt = x, scales["a"], scales["b"]
    for again, kept in zip(gradients(loss(both), *wrt), gradients(loss(plain), *wrt), strict=True):
        np.testing.assert_allclose(again, kept, rtol=1e-6, atol=1e-6)


def test_the_gradient_of_a_result_within_a_call_is_found_too() -> None:
    inside: list[gg.Tensor] = []

    @gg.remat
    def call(x: gg.Tensor) -> gg.Tensor:
        inside.append(gg.sin(x))
        return gg.sqr(inside[-1])

    x = gg.tensor(numbers(4))
    loss = gg.sum(call(x))
    of_inside, of_x = gradients(loss, inside[0], x)
    np.testing.assert_allclose(of_inside, 2 * np.sin(x.numpy()), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_x, 2 * np.sin(x.numpy()) * np.cos(x.numpy()), rtol=1e-5, atol=1e-6)


def test_a_call_that_writes_is_not_computed_again() -> None:
    x, count = gg.tensor(numbers(4)), gg.tensor(np.zeros(4, np.float32))
    call = gg.remat(lambda x: gg.mul(gg.sin(x), gg.add_inplace(count, gg.sqr(x))))
    loss = gg.sum(call(x))
    with pytest.raises(GradientError, match=r"the backward pass would compute .* again, which writes into .*gg.remat"):
        gg.Graph(loss).backward(loss, [x])
