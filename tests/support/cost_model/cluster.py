"""How fast a model of 70 G parameters would be on the nodes of a cluster, as the cost model predicts it.

    PYTHONPATH=tests/support:. python -m cost_model.cluster    # the table of docs/cluster.md

Nothing is computed and no weight is read: the file is a header with a hole.  A kernel of a node takes the time in which
memory is read, or arithmetic is done, whichever is longer.  A copy between nodes takes two messages, a small one takes
one, and the time of its bytes; a split takes one message.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import ggplug as gg
from ggplug.backend import Device
from ggplug.costs.model import CostModel
from ggplug.costs.rates import Rates
from ggplug.costs.work import Work
from ggplug.gguf import GGUFReader
from ggplug.gguf.load import planned
from ggplug_models.deciding import decide
from ggplug_models.state.session import Session
from ggplug_models.weights.placement import Placement
from ggplug_models.weights.rules import LayerSplit
from ggplug_ray.memory import INPUT
from ggplug_testing import FakeDevice
from tests.models.state.test_models_fit import of_70_g

CONTEXT = 4096
MICRO_BATCH = 512
LAUNCH = 5e-6
"""Seconds that each kernel takes at least."""


class Kind(NamedTuple):
    """A kind of node: bytes a second of its memory, and operations a second."""

    name: str
    bandwidth: float
    flops: float


KINDS = (Kind("CPU, 80 GB/s, 2 TFLOP/s", 80e9, 2e12), Kind("GPU, 900 GB/s, 60 TFLOP/s", 900e9, 60e12))


class NodeRates(Rates):
    """The times of a node.  ``network``: bytes a second.  ``message``: seconds of an empty call."""

    def __init__(self, kind: Kind, network: float, message: float) -> None:
        super().__init__()
        self._kind, self._network, self._message = kind, network, message
        self.note_split(message, LAUNCH)

    def kernel(self, work: Work) -> float:
        return max(work.bytes / self._kind.bandwidth, work.flops / self._kind.flops, LAUNCH)

    def copy(self, source: str, nbytes: int) -> float:
        return (1 if nbytes <= INPUT else 2) * self._message + nbytes / self._network


def predicted(path: Path, devices: Sequence[Device], costs: CostModel) -> list[tuple[float, float]]:
    """For a prompt of a micro-batch, and for a generated token: seconds in all, and those of the kernels."""
    with GGUFReader(path) as reader:
        decided = decide(reader, devices, Placement(LayerSplit()) if len(devices) > 1 else None, pack=False)
        weights = planned(reader, decided.where)
        with (
            weights.context,
            decided.model(weights.context, reader.metadata, devices) as model,
            Session(model, CONTEXT, 1, "f16", MICRO_BATCH, planned=True) as session,
        ):
            found = []
            for graph in session.largest():
                seconds, kernels = model.scheduler.predicted(graph, costs)
                found.append((seconds, sum(taken for _, taken in kernels)))
            return [found[0], found[-1]]


def rows(network: float, message: float) -> Iterator[tuple[str, int, float, float, str]]:
    """The kind and the number of nodes, tokens of a prompt and generated tokens a second, and what bounds these."""
    with tempfile.TemporaryDirectory() as folder:
        path = of_70_g(Path(folder) / "70 G.gguf")
        for kind in KINDS:
            for count in (1, 2, 4, 8):
                devices = [FakeDevice(f"node{n}", inner=gg.device("CPU"), memory=1 << 40) for n in range(count)]
                costs = CostModel({device: NodeRates(kind, network, message) for device in devices})
                (prompt, _), (token, computing) = predicted(path, devices, costs)
                share = computing / token
                bound = f"memory {share:.0%}, network {1 - share:.0%}"
                yield kind.name, count, MICRO_BATCH / prompt, 1 / token, bound


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicts the speed of a model of 70 G parameters on a cluster.")
    parser.add_argument("--gigabits", type=float, default=10.0, help="of the network, a second")
    parser.add_argument("--message", type=float, default=1e-3, help="seconds of an empty call of a Ray actor")
    options = parser.parse_args()
    print("| node | nodes | tokens of a prompt a second | generated tokens a second | time of a generated token |")
    print("|---|---|---|---|---|")
    for kind, count, prompt, token, bound in rows(options.gigabits * 1e9 / 8, options.message):
        print(f"| {kind} | {count} | {prompt:.0f} | {token:.2f} | {bound} |")


if __name__ == "__main__":
    main()
