"""Functions that the backward pass calls again have the gradients that they have without gg.remat."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ggplug as gg
from ggplug_testing.judging.oracle import evaluate

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]

ONE = gg.tanh, gg.sin, gg.sqr, gg.sigmoid, gg.silu, gg.neg, gg.soft_max
TWO = gg.add, gg.mul, gg.sub


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def gradient(function: Callable[[gg.Tensor], gg.Tensor]) -> list[float]:
    found: list[float] = gg.compute(gg.grad(lambda x: gg.sum(function(x)))(gg.tensor([1.0, 2.0]))).numpy().tolist()
    return found


# -- what a call returns ---------------------------------------------------------------------------


def test_an_argument_that_a_call_returns_has_its_gradient_once() -> None:
    call = gg.remat(lambda x: (x, gg.sqr(x)))
    assert gradient(lambda x: gg.add(*call(x))) == [3, 5]
    assert gradient(lambda x: gg.add(*call(gg.sqr(x)))) == [2 + 4, 4 + 32]


def test_a_tensor_that_a_call_returns_twice_has_its_gradient_once() -> None:
    call = gg.remat(lambda x: (gg.sqr(x),) * 2)
    assert gradient(lambda x: gg.add(*call(x))) == [4, 8]


def test_the_results_of_a_call_inside_of_another_are_not_passed_twice() -> None:
    @gg.remat
    def inner(x: gg.Tensor) -> tuple[gg.Tensor, gg.Tensor]:
        y = gg.sqr(x)
        return gg.sqr(y), y

    assert gradient(gg.remat(lambda x: inner(x)[0])) == [4, 32]
    assert gradient(gg.remat(lambda x: gg.add(*inner(x)))) == [6, 36]


def test_a_result_of_another_call_keeps_its_gradient_when_a_call_returns_it() -> None:
    def both(x: gg.Tensor, first: Callable[[gg.Tensor], gg.Tensor]) -> gg.Tensor:
        a = first(x)
        return gg.add(*gg.remat(lambda y: (gg.exp(y), a))(x))

    wanted = [np.e + 2, np.e**2 + 4]
    assert gradient(lambda x: both(x, gg.remat(gg.sqr))) == pytest.approx(wanted, rel=1e-5)
    assert gradient(lambda x: both(x, gg.sqr)) == pytest.approx(wanted, rel=1e-5)


def test_a_call_is_passed_before_what_it_reads_in_whichever_order_the_graph_has_them() -> None:
    def loss(x: gg.Tensor, wrap: Wrap) -> gg.Tensor:
        before = gg.sin(x)
        first, second = wrap(lambda x, y: (gg.mul(x, y), gg.sqr(x)))(x, before)
        return gg.add(gg.sqr(second), gg.mul(before, first))

    assert gradient(lambda x: loss(x, gg.remat)) == pytest.approx(gradient(lambda x: loss(x, plain)), rel=1e-5)


def test_a_result_from_which_a_call_computes_another_one_has_its_whole_gradient() -> None:
    def call(x: gg.Tensor) -> tuple[gg.Tensor, gg.Tensor]:
        y = gg.sin(x)
        return y, gg.sqr(y)

    x = gg.tensor([1.0, 2.0])
    y, squared = gg.remat(call)(x)
    loss = gg.sum(squared)
    backward = gg.Graph(loss).backward(loss, [y])
    np.testing.assert_allclose(gg.compute(backward.gradients[y]).numpy(), 2 * np.sin([1, 2]), rtol=1e-5)


# -- any functions ---------------------------------------------------------------------------------


class Functions:
    """Random functions: they take and return one to three tensors, capture others, and call such functions."""

    def __init__(self, wrap: Wrap) -> None:
        self.wrap = wrap

    def make(self, seed: int, captured: Sequence[gg.Tensor], depth: int) -> Callable[..., list[gg.Tensor]]:
        def function(*arguments: gg.Tensor) -> list[gg.Tensor]:
            choose = random.Random(seed)
            known = [*arguments, *captured]
            self.extend(known, choose, depth)
            return [choose.choice(known[-4:] if choose.random() < 0.7 else known) for _ in range(choose.randint(1, 3))]

        return self.wrap(function)

    def extend(self, known: list[gg.Tensor], choose: random.Random, depth: int = 0) -> None:
        """Adds tensors that are computed from known ones."""
        for _ in range(choose.randint(1, 5)):
            kind = choose.random()
            if kind < 0.35:
                known.append(choose.choice(ONE)(choose.choice(known)))
            elif kind < 0.65 or depth == 3:
                known.append(choose.choice(TWO)(choose.choice(known), choose.choice(known)))
            else:
                captured = choose.sample(known, min(len(known), choose.randint(0, 2)))
                function = self.make(choose.randrange(1 << 30), captured, depth + 1)
                for _ in range(choose.randint(1, 2)):
                    known += function(*(choose.choice(known) for _ in range(choose.randint(1, 3))))


def random_gradients(seed: int, wrap: Wrap) -> list[npt.NDArray[np.float64]]:
    """The gradients of a loss over random functions, in float64."""
    choose = random.Random(seed)
    arguments = [gg.new_tensor("f32", (4, 2)) for _ in range(2)]
    known = list(arguments)
    for _ in range(2):
        Functions(wrap).extend(known, choose)
    loss = gg.sum(gg.tanh(known[-1]))
    for each in choose.sample(known, min(3, len(known))):
        loss = gg.add(loss, gg.sum(gg.mul(gg.sin(each), gg.scale(each, 0.5, 1))))
    graph = gg.Graph(loss)
    wrt = list(dict.fromkeys(each for each in (*arguments, choose.choice(known)) if each in graph))
    if choose.random() < 0.7:
        wrt = wrt[:1]
    backward = graph.backward(loss, wrt)
    numbers = np.random.default_rng(seed)
    found = evaluate(backward, {each: numbers.standard_normal(8) for each in arguments})
    return [found.exact(backward.gradients[each]) for each in wrt]


def alike(seed: int) -> bool:
    """Whether random functions have the same gradients with and without gg.remat."""
    pairs = zip(random_gradients(seed, plain), random_gradients(seed, gg.remat), strict=True)
    return all(np.allclose(a, b, rtol=1e-9, atol=1e-9 * max(1, np.abs(a).max()), equal_nan=True) for a, b in pairs)


def test_functions_have_the_same_gradients_with_and_without_remat() -> None:
    with np.errstate(all="ignore"):
        assert not [seed for seed in range(300) if not alike(seed)]


# -- time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [lambda x: gg.swiglu(x, x), gg.remat(gg.sqr), gg.norm, gg.tanh])
def test_the_steps_of_a_backward_pass_grow_with_the_layers(layer: Callable[[gg.Tensor], gg.Tensor]) -> None:
    def steps(layers: int) -> int:
        """The calls of functions while the gradient through so many layers is made."""
        count = 0

        def counted(*_: object) -> None:
            nonlocal count
            count += 1

        y = x = gg.tensor(np.ones((2, 4), np.float32))
        for _ in range(layers):
            y = layer(y)
        loss = gg.sum(y)
        graph = gg.Graph(loss)
        before = sys.getprofile()
        sys.setprofile(counted)
        try:
            graph.backward(loss, [x])
        finally:
            sys.setprofile(before)
        return count

    steps(1)
    assert steps(160) < 2.2 * steps(80)
