"""A graph of typical size over a model's weights."""

from __future__ import annotations

import ggplug as gg
from ggplug.graph import Graph
from ggplug_models.state.memory import Memory
from ggplug_models.state.session import LanguageModel
from ggplug_models.state.steps import Outputs, Shape


def sample_graph(model: LanguageModel) -> Graph:
    """The graph of a step of 64 tokens of one sequence, and of a source text of 64 tokens if the model reads one.

    The KV cache has no memory, or planned one if that is split.
    """
    n = min(64, model.n_ctx)
    cells = model.cells(1, n, n)
    counts = {window: each.count for window, each in cells.items()}
    devices = [model.device_of(number) for number in range(len(model.kinds))] if model.split else None
    memory = Memory(model.kinds, devices, 1, counts, gg.F32, planned=True, split=model.split)
    spans = tuple((window, each.span(n)) for window, each in cells.items())
    graph = model.build(Shape(0, 1, n, spans, Outputs.ALL), memory, cells, model.n_ctx).graph
    source = model.build_source(n, memory)
    assert graph is not None
    return graph if source is None else Graph(*graph.outputs, *source.graph.outputs, name=graph.name)
