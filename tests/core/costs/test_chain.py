"""The fastest placement of a chain of layers under limits of memory is the one that trying all would find."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from ggplug.costs.chain import Layer, cheapest


def tried(layers: Sequence[Layer], limits: Sequence[int | None]) -> float | None:
    """The least time of all placements that fit, by trying each of them."""
    best = None
    for placed in itertools.product(range(len(limits)), repeat=len(layers)):
        held = [sum(layer.nbytes[d] for layer, at in zip(layers, placed, strict=True) if at == d) for d in range(9)]
        if any(limit is not None and size > limit for size, limit in zip(held, limits, strict=False)):
            continue
        best = min(time_of(layers, placed), best or float("inf"))
    return best


def time_of(layers: Sequence[Layer], placed: Sequence[int]) -> float:
    moved = (layer.move[a][b] for layer, a, b in zip(layers[1:], placed, placed[1:], strict=False))
    return sum(layer.seconds[at] for layer, at in zip(layers, placed, strict=True)) + sum(moved)


@pytest.mark.parametrize("seed", range(40))
def test_the_placement_is_the_best_of_all(seed: int) -> None:
    rng = random.Random(seed)
    n_devices = rng.choice((1, 2, 3))

    def layer() -> Layer:
        sizes = [rng.randrange(1, 20) for _ in range(n_devices)]
        move = [[0.0 if a == b else rng.randrange(1, 30) / 10 for b in range(n_devices)] for a in range(n_devices)]
        return Layer([rng.randrange(1, 50) / 10 for _ in range(n_devices)], sizes, move)

    layers = [layer() for _ in range(rng.randrange(1, 7))]
    limits = [rng.choice((None, 10, 30, 60)) for _ in range(n_devices)]
    wanted, found = tried(layers, limits), cheapest(layers, limits)
    if wanted is None:
        assert found is None
    else:
        assert found is not None
        assert found[0] == pytest.approx(wanted)
        assert time_of(layers, found[1]) == pytest.approx(wanted)


def test_sixty_equal_layers_fill_the_faster_devices_first() -> None:
    move = [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    found = cheapest([Layer([1.0, 2.0, 5.0], [10, 10, 10], move)] * 60, [200, 300, None])
    assert found is not None
    assert found[1].count(0) == 20
    assert found[1].count(1) == 30
    assert found[0] == 20 * 1 + 30 * 2 + 10 * 5 + 2
