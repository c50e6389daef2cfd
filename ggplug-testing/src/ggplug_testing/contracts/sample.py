"""A small computation that the device under test supports, for clauses that need any computation at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ggplug.backend import UNGROUPED, Backend, Buffer, Device, Groups
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
from ggplug_testing.judging.expected import Expected
from ggplug_testing.judging.oracle import evaluate
from ggplug_testing.reporting.causes import names_of_ops
from ggplug_testing.running.placement import Bytes, Placement

WIDTH = 32
"""Extent of everything in a sample: wide enough for any quantised block, small enough for thousands."""

BinaryOp = Callable[[Tensor, Tensor], Tensor]


def _product(x: Tensor, w: Tensor) -> Tensor:
    return mul_mat(w, x)


_STEPS: tuple[BinaryOp, ...] = (
    add,
    _product,
    mul,
    lambda x, w: scale(x, 0.5),
    lambda x, w: relu(x),
    lambda x, w: cont(x),
)
"""``(x, w) -> y``, all three of them square: the first that a device supports is its sample."""


def supported_steps(device: Device, x: Tensor, w: Tensor, *, heavy: bool = False) -> Iterator[BinaryOp]:
    """The steps that a device supports on these; ``heavy``: the product comes first."""
    for step in dict.fromkeys((_product, *_STEPS)) if heavy else _STEPS:
        if device.supports_op(step(x, w)):
            yield step


def first_supported(device: Device, *nodes: Tensor) -> Tensor:
    """The first of these nodes that a device supports.  Raises NotOffered if it supports none."""
    found = next(filter(device.supports_op, nodes), None)
    if found is None:
        raise NotOffered("the device supports none of the ops that this clause computes")
    return found


def steps_of(device: Device) -> list[BinaryOp]:
    """All steps that samples of a device can be made of.  Raises NotOffered if it supports none."""
    found = list(supported_steps(device, square(), square()))
    if not found:
        raise NotOffered(f"{device.name} supports none of the ops that the suite computes as samples")
    return found


class Sample:
    """A graph of ``length`` equal steps from an input ``x`` and a constant ``w`` to ``y``.

    ``step``: one of :func:`steps_of` the device (default: the first).  Raises NotOffered if there is none.
    """

    def __init__(self, device: Device, length: int = 1, step: BinaryOp | None = None) -> None:
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
        values = {leaf: numbers(random, leaf, -0.3, 0.3) for leaf in (self.x, self.w)}
        return {tensor: array for tensor, array in values.items() if tensor in self.graph}

    def computed_alone(self, device: Device, seed: int) -> Array:
        """What the device computes for the inputs of ``seed`` while nothing else is submitted to it."""
        with Placed(self, device, seed) as placed, device.init() as stream:
            placed.compute(stream)
            stream.synchronize()
            return placed.read(self.y)

    def expected(self, seed: int) -> Array:
        """What the oracle says."""
        return evaluate(self.graph, self.inputs(seed))[self.y]

    def check(self, got: Array, seed: int, what: str, want: Array | None = None) -> None:
        """Raises ContractError if ``got``, values or bytes, is not the result for the inputs of ``seed`` (``want``)."""
        want = self.expected(seed) if want is None else want
        check_values(self.graph, got, want, what)


def check_values(graph: Graph, got: Array, want: Array, what: str, allowed: float = 1e-6) -> None:
    """Raises ContractError if ``got``, values or bytes of a graph's result, is further off than ``allowed``."""
    values = got.view(np.float32) if got.dtype == np.uint8 else got
    with np.errstate(invalid="ignore"):  # bytes that are no result may be signaling NaNs
        found = compare(values.astype(np.float64).reshape(want.shape), want, allowed)
    expect(found, f"{what}: {found.reason}", names_of_ops(graph))


def check_expected(expected: Expected, got: Array, what: str) -> None:
    """Raises ContractError unless the values of a graph's last node are what the node's rule allows."""
    node = expected.graph.nodes[-1]
    found = compare(got, expected[node], expected.allowed(node))
    expect(found, f"{what}: {found.reason}")


class Placed(Placement):
    """A sample's tensors in buffers of a device, its leafs set to the inputs of ``seed``."""

    def __init__(self, sample: Sample, device: Device, seed: int, shift: int = 0) -> None:
        super().__init__(sample.graph, device.buffer_type, shift=shift)
        self.sample = sample
        self.set(seed)

    @property
    def result(self) -> tuple[Buffer, int, int]:
        """Where the result lies: the buffer, the first byte, and how many there are."""
        return self.region(self.sample.y)

    def set(self, seed: int) -> None:
        """Sets the leafs to other inputs."""
        self.seed = seed
        self.write_all(self.sample.inputs(seed))

    def clear_result(self) -> None:
        """Fills the result with what no computation leaves."""
        self.clear(self.sample.y)

    def compute(self, stream: Backend) -> None:
        """Gives a stream the computation."""
        stream.compute(self.graph, self.allocation)

    def fetch(self, stream: Backend) -> Bytes:
        """Gives a stream a fetch of the result, into the bytes that are returned."""
        buffer, offset, size = self.result
        out = np.empty(size, np.uint8)
        stream.get_async(buffer, offset, out)
        return out

    def check(self, what: str, *, seed: int | None = None, want: Array | None = None) -> None:
        """Raises ContractError if what lies there is not the result for the inputs of ``seed`` (default: the last)."""
        self.sample.check(self.read(self.sample.y), self.seed if seed is None else seed, what, want)


class Bound(Placement):
    """A graph in memory of a stream's device, and a plan of the stream, bound to it."""

    def __init__(self, stream: Backend, graph: Graph, groups: Groups = UNGROUPED) -> None:
        super().__init__(graph, stream.device.buffer_type, groups=groups)
        self.stream, self.groups, self.result = stream, groups, graph.outputs[-1]
        try:
            self.plan = stream.plan(graph, groups)
            self.plan.rebind(graph, self.allocation)
        except Exception:
            super().free()
            raise

    def fetch(self, out: Bytes) -> None:
        """Submits a fetch of the last bytes of the result, as many as ``out`` has."""
        buffer, offset, size = self.region(self.result)
        self.stream.get_async(buffer, offset + size - out.size, out)

    def free(self) -> None:
        """Waits for the work, and frees its memory."""
        self.plan.free()
        super().free()


def square(name: str = "", extent: int = WIDTH) -> Tensor:
    """An F32 leaf [extent, extent]."""
    return Tensor(Spec(F32, (extent, extent, 1, 1), 2), name=name)


def numbers(random: np.random.Generator, tensor: Tensor, low: float, high: float) -> Array:
    """F32 values for a tensor, drawn evenly between two."""
    return random.uniform(low, high, tensor.shape).astype(np.float32)
