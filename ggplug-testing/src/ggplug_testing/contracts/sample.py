"""A small computation that the device under test supports, for clauses that need any computation at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ggplug.backend import Backend, Device
from ggplug.graph import Graph
from ggplug.ops.base import Array
from ggplug.ops.copy import cont
from ggplug.ops.elementwise import add, mul
from ggplug.ops.matrix import mul_mat
from ggplug.ops.unary import relu, scale
from ggplug.tensor import Spec, Tensor
from ggplug.types import F32
from ggplug_testing.contracts.clause import NotOffered, expect
from ggplug_testing.judging.comparison import compare
from ggplug_testing.judging.oracle import evaluate
from ggplug_testing.reporting.causes import names_of_ops
from ggplug_testing.running.placement import Placement

WIDTH = 32
"""Extent of everything in a sample: wide enough for any quantised block, small enough for thousands."""

Step = Callable[[Tensor, Tensor], Tensor]


def _product(x: Tensor, w: Tensor) -> Tensor:
    return mul_mat(w, x)


_STEPS: tuple[Step, ...] = (
    add,
    _product,
    mul,
    lambda x, w: scale(x, 0.5),
    lambda x, w: relu(x),
    lambda x, w: cont(x),
)
"""``(x, w) -> y``, all three of them square: the first that a device supports is its sample."""


def supported_steps(device: Device, x: Tensor, w: Tensor, *, heavy: bool = False) -> Iterator[Step]:
    """The steps that a device supports on these; ``heavy``: the product comes first."""
    for step in dict.fromkeys((_product, *_STEPS)) if heavy else _STEPS:
        if device.supports_op(step(x, w)):
            yield step


def steps_of(device: Device) -> list[Step]:
    """All steps that samples of a device can be made of.  Raises NotOffered if it supports none."""
    found = list(supported_steps(device, square(), square()))
    if not found:
        raise NotOffered(f"{device.name} supports none of the ops that samples are made of")
    return found


class Sample:
    """A graph of ``length`` equal steps from an input ``x`` and a constant ``w`` to ``y``.

    ``step``: one of :func:`steps_of` the device (default: the first).  Raises NotOffered if there is none.
    """

    def __init__(self, device: Device, length: int = 1, step: Step | None = None) -> None:
        self.x, self.w = square("x"), square("w")
        step = step or steps_of(device)[0]
        y = self.x
        for _ in range(length):
            y = step(y, self.w)
        self.y = y.set_output()
        self.graph = Graph(y)

    def inputs(self, seed: int) -> dict[Tensor, Array]:
        """Values for the leafs that the graph has: small, so that long samples stay finite."""
        random = np.random.default_rng(seed)
        values = {t: random.uniform(-0.3, 0.3, (WIDTH, WIDTH)).astype(np.float32) for t in (self.x, self.w)}
        return {tensor: array for tensor, array in values.items() if tensor in self.graph}

    def place(self, device: Device, seed: int, shift: int = 0) -> Placement:
        """The sample's tensors in buffers of the device, leafs set to the inputs of ``seed``."""
        placement = Placement(self.graph, device.buffer_type, shift=shift)
        for tensor, values in self.inputs(seed).items():
            placement.write(tensor, values)
        return placement

    def alone(self, device: Device, seed: int) -> Array:
        """What the device computes for the inputs of ``seed`` while nothing else is given to it."""
        with self.place(device, seed) as placement, device.init() as stream:
            return self.compute(stream, placement)

    def compute(self, stream: Backend, placement: Placement) -> Array:
        """What a stream computes from what lies in the sample's leafs."""
        stream.compute(self.graph, placement.allocation)
        stream.synchronize()
        return placement.read(self.y)

    def expected(self, seed: int) -> Array:
        """What the oracle says."""
        return evaluate(self.graph, self.inputs(seed))[self.y]

    def check(self, got: Array, seed: int, what: str, want: Array | None = None) -> None:
        """Raises ContractError if ``got`` is not the result for the inputs of ``seed`` (``want``, if that is known)."""
        want = self.expected(seed) if want is None else want
        with np.errstate(invalid="ignore"):  # bytes that are no result may be signaling NaNs
            values = got.astype(np.float64).reshape(want.shape)
        found = compare(values, want, 1e-6)
        expect(found, f"{what}: {found.reason}", names_of_ops(self.graph))


def square(name: str = "", extent: int = WIDTH) -> Tensor:
    """An F32 leaf [extent, extent]."""
    return Tensor(Spec(F32, (extent, extent, 1, 1), 2), name=name)
