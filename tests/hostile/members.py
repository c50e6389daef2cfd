"""A fuzzer of several devices as one: random members, cuts, graphs, memories and failures of members, by a seed.

All values are small whole numbers, so sums in any order are exact: a computation gives the bits that one device gives,
or raises a typed error.  Afterwards the same device computes the same graph, and when everything is freed, no member
has memory in use.  ``python -m tests.hostile.members SEED [LAST]`` repeats cases.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

import ggplug as gg
from ggplug.combined import CombinedDevice
from ggplug.combined.weights import split_weights
from ggplug.errors import GGPlugError
from ggplug.tensor import Context, Tensor
from ggplug.types import BufferUsage
from ggplug_testing import FakeDevice, ReferenceDevice

from .placements import FAILING
from .seeds import Fault, main

OPS = ("add", "mul", "mul_mat", "relu", "cont", "set_rows", "concat", "get_rows", "neg", "clamp", "sum_rows")
WIDTHS = (8, 16, 24)
TOKENS = 6


class Network:
    """A random graph over weights and a cache, of which each call of :meth:`graph` makes an equal one."""

    def __init__(self, rng: random.Random) -> None:
        self._seed, self._layers = rng.random(), rng.randrange(2, 7)
        self._values = np.random.default_rng(rng.randrange(1 << 30))
        self.leafs: dict[str, np.ndarray] = {}
        self.x = self._whole(TOKENS, 16)

    def graph(self, leafs: Context) -> gg.Graph:
        """The graph; ``leafs`` gets the weights and caches, without places."""
        rng = random.Random(self._seed)
        h = gg.tensor(self.x)
        for number in range(self._layers):
            h = gg.clamp(rng.choice(LAYERS)(self, rng, leafs, h, f"{number}"), -4, 4)
            if rng.random() < 0.2:
                h.set_output()
        return gg.Graph(h)

    def leaf(self, leafs: Context, name: str, *shape: int) -> Tensor:
        """A leaf with values that are the same in each graph."""
        if name not in self.leafs:
            self.leafs[name] = self._whole(*shape)
        return leafs.new_tensor("f32", shape[::-1], name)

    def _whole(self, *shape: int) -> np.ndarray:
        return self._values.integers(-2, 3, shape).astype(np.float32)


Layer = Callable[[Network, random.Random, Context, Tensor, str], Tensor]


def product(net: Network, rng: random.Random, leafs: Context, h: Tensor, name: str) -> Tensor:
    return gg.mul_mat(net.leaf(leafs, f"w{name}", rng.choice(WIDTHS), h.ne[0]), h)


def two_products(net: Network, rng: random.Random, leafs: Context, h: Tensor, name: str) -> Tensor:
    inner = gg.clamp(product(net, rng, leafs, h, f"{name}a"), -2, 2)
    return product(net, rng, leafs, gg.relu(inner), f"{name}b")


def biased(net: Network, rng: random.Random, leafs: Context, h: Tensor, name: str) -> Tensor:
    return rng.choice((gg.add, gg.mul))(h, net.leaf(leafs, f"b{name}", h.ne[0]))


def by_heads(net: Network, rng: random.Random, leafs: Context, h: Tensor, name: str) -> Tensor:
    heads = gg.reshape(h, 4, h.ne[0] // 4, h.ne[1])
    turned = gg.cont(gg.permute(gg.neg(heads), 0, 2, 1, 3))
    return gg.reshape(gg.cont(gg.permute(turned, 0, 2, 1, 3)), *h.ne[:2])


def whole_rows(net: Network, rng: random.Random, leafs: Context, h: Tensor, name: str) -> Tensor:
    if rng.random() < 0.5 or h.ne[1] > TOKENS:
        return h + gg.sum_rows(h)
    return gg.concat(h, gg.neg(h), dim=1)


def stored(net: Network, rng: random.Random, leafs: Context, h: Tensor, name: str) -> Tensor:
    cache = net.leaf(leafs, f"cache{name}", 12, h.ne[0])
    held = gg.set_rows(cache, h, gg.tensor(np.array(rng.sample(range(12), h.ne[1]), np.int32)))
    return gg.cont(gg.view(held, h.ne[0], TOKENS, nb=(held.nb[1],), offset=2 * held.nb[1]))


LAYERS: tuple[Layer, ...] = (product, product, two_products, biased, by_heads, whole_rows, stored)


def trial(seed: int) -> str:
    """Runs the case of a seed; returns its outcome: ``right``, or the name of the error.  Raises :class:`Fault`."""
    rng = random.Random(seed)
    members = [_member(rng, f"fake{number}") for number in range(rng.choice((2, 2, 3)))]
    network = Network(rng)
    wanted = _alone(network)
    try:
        outcome = _computed(rng, members, network, wanted)
    except GGPlugError as error:
        outcome = type(error).__name__
    for member in members:
        if member.used:
            raise Fault(f"{member.name} has {member.used} bytes in use after everything was freed")
    return outcome


def _member(rng: random.Random, name: str) -> FakeDevice:
    declined = rng.sample(OPS, rng.choice((0, 0, 0, 1, 3)))
    return FakeDevice(
        name,
        memory=rng.choice((1 << 32, 1 << 32, 1 << 32, 1 << 12, 1 << 14)),
        execution=rng.choice(("now", "late", "thread")),
        declines=lambda node: "not built in" if node.op is not None and node.op.name in declined else "",
        inner=rng.choice((None, None, gg.device("CPU"))),
    )


def _alone(network: Network) -> list[np.ndarray]:
    """What one device computes."""
    device = ReferenceDevice("cpu")
    with Context("alone") as leafs, gg.Scheduler([device]) as scheduler:
        graph = network.graph(leafs)
        gg.allocate(leafs, device)
        for leaf in leafs:
            leaf.set(network.leafs[leaf.name])
        scheduler.compute(graph)
        return [tensor.numpy() for tensor in graph.outputs]


def _computed(rng: random.Random, members: Sequence[FakeDevice], network: Network, wanted: Sequence[np.ndarray]) -> str:
    device = CombinedDevice(members, [rng.choice((1, 1, 2, 5)) for _ in members])
    with Context("leafs") as leafs:
        graph = network.graph(leafs)
        places = split_weights(device, graph, list(leafs))
        for leaf in leafs:
            memory = places.get(leaf, device.buffer_type)
            leafs.buffers.append(memory.alloc(memory.alloc_size(leaf)))
            leafs.buffers[-1].usage = BufferUsage.WEIGHTS
            leaf.place(leafs.buffers[-1])
        outcome = "right"
        with gg.Scheduler([device, ReferenceDevice("cpu")], reuse=rng.random() < 0.8) as scheduler:
            seen: list[bytes] = []
            if rng.random() < 0.2:
                scheduler.set_eval_callback(lambda tensor, ask: bool(ask or seen.append(tensor.tobytes()) or True))
            for _ in range(rng.choice((1, 2, 3))):
                for member in members:
                    if rng.random() < 0.3:
                        member.fail(rng.choice(FAILING), rng.randrange(1, 6))  # type: ignore[arg-type]
                try:
                    _check(scheduler, leafs, network, graph, wanted)
                except GGPlugError as error:
                    outcome = type(error).__name__
            for member in members:
                member._failures.clear()
            if outcome not in ("OutOfMemoryError", "PlacementError"):
                _check(scheduler, leafs, network, graph, wanted)
    return outcome


def _check(
    scheduler: gg.Scheduler, leafs: Context, network: Network, graph: gg.Graph, wanted: Sequence[np.ndarray]
) -> None:
    for leaf in leafs:
        leaf.set(network.leafs[leaf.name])
    scheduler.compute(graph)
    for tensor, values in zip(graph.outputs, wanted, strict=True):
        if not np.array_equal(tensor.numpy(), values):
            raise Fault(f"{tensor!r} is not what one device computes")


if __name__ == "__main__":
    main(trial)
