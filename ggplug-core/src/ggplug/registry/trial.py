"""A tiny computation on one device, compared with NumPy: finds devices that start and then crash or compute wrongly."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggplug.backend import Decline, Device
from ggplug.errors import ComputeError
from ggplug.graph import Graph
from ggplug.host import tensor
from ggplug.ops import add, mul_mat
from ggplug.scheduler import Scheduler
from ggplug.tensor import Tensor

_K, _M, _N = 64, 8, 32
"""Length, number of rows and number of columns of a product; with fewer columns some devices leave it to others."""

_TOLERANCE = 1e-3
"""Of the largest value.  Correct devices differ by nothing: see :func:`trials`."""


def try_device(device: Device) -> int:
    """Computes those of :func:`trials` that the device supports, in one graph on a stream of its own.

    Returns how many there were.  Raises ComputeError for a wrong result, and what the device raises.
    """
    wanted = [each for each in trials() if not isinstance(device.supports_op(each[0]), Decline)]
    if not wanted:
        return 0
    with Scheduler([device]) as scheduler:
        for node, _ in wanted:
            node.set_output()
        scheduler.compute(Graph(*(node for node, _ in wanted)))
        for node, expected in wanted:
            _compare(device, node, expected)
    return len(wanted)


def trials() -> list[tuple[Tensor, np.ndarray[Any, Any]]]:
    """Nodes that most devices compute, each with its values: an addition, and products with F32 and Q8_0 weights.

    All numbers are whole, and each block of 32 holds a 127 as its largest, so they are the same in F16, BF16 and Q8_0,
    and all sums are exact in F32.
    """
    random = np.random.default_rng(0)
    weights = random.integers(-5, 6, (_M, _K)).astype(np.float32)
    columns = random.integers(-5, 6, (_N, _K)).astype(np.float32)
    weights[:, ::32] = columns[:, ::32] = 127
    x, product = tensor(columns), columns @ weights.T
    return [
        (add(x, tensor(columns[:1])), columns + columns[:1]),
        (mul_mat(tensor(weights), x), product),
        (mul_mat(tensor(weights, "q8_0"), x), product),
        (mul_mat(tensor(weights, "q8_0"), tensor(columns[:1])), product[:1]),
    ]


def _compare(device: Device, node: Tensor, expected: np.ndarray[Any, Any]) -> None:
    found = node.numpy()
    wrong = ~(np.abs(found - expected) <= _TOLERANCE * np.abs(expected).max())  # a NaN is wrong too
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        assert node.op is not None
        types = " and ".join(source.type.name for source in node.src if source is not None)
        raise ComputeError(
            f"{device.name} computes {node.op.name} of {types} wrongly: {np.count_nonzero(wrong)} of {wrong.size} "
            f"values, the first at {place}: {found[place]:g}, not {expected[place]:g}",
            op=node.op,
            device=device,
            got=float(found[place]),
            wanted=float(expected[place]),
        )
