"""Every node of every family has a name of its own, and those that all families share are the same in all."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from corpus.recording import MODELS, of_model

import ggplug as gg
import ggplug_models
from ggplug_models.layers.names import name_nodes
from ggplug_models.networks.encoder import Encoder
from ggplug_models.networks.encoder_decoder import EncoderDecoder
from ggplug_models.networks.transformer import Transformer
from ggplug_models.state.memory import KeysValues


@pytest.mark.parametrize("stem", MODELS)
def test_each_node_has_a_name_of_its_own(stem: str) -> None:
    with ggplug_models.load(MODELS[stem], ["CPU"], pack=False) as model:
        for step, graph in of_model(model):
            counts = Counter(tensor.name for tensor in graph.tensors)
            assert [name for name, count in counts.items() if count > 1 or not name] == [], step
            part = "dec." if isinstance(model, EncoderDecoder) else ""
            if isinstance(model, Transformer) and all(isinstance(kind, KeysValues) for kind in model.kinds):
                own = ["Qcur", "Kcur", "kqv_out", "attn_out", "ffn_out", "l_out"]
                # the last norm of a block of BERT is the block's output
                assert {f"{part}blk.{n}.{name}" for n in range(model.n_layer) for name in own} <= set(counts), step
            assert {"inp_embd"} <= set(counts)
            if not isinstance(model, Encoder):
                assert ("result_norm" if step == "embedding" else "result_output") == graph.outputs[0].name


def test_a_name_is_the_same_in_graphs_of_other_sizes() -> None:
    with ggplug_models.load(MODELS["qwen3"], ["CPU"], pack=False) as model:
        names = {step: {node.name: node.op.name for node in graph.nodes if node.op} for step, graph in of_model(model)}
    shared = names["prompt"].keys() & names["token"].keys()
    assert len(shared) > 100
    assert all(names["prompt"][name] == names["token"][name] for name in shared)
    assert not [name for name in shared if not re.fullmatch(r"(blk\.\d\.)?[\w ]+(/\w+(\.\d+)?)?", name)]


def test_a_node_between_two_named_ones_is_called_by_what_it_is_computed_for() -> None:
    x = gg.new_tensor("f32", (4,), "x")
    first = gg.sqr(gg.neg(x))
    y = gg.add(first, gg.sqr(x), name="y")
    rest = gg.neg(y)
    graph = gg.Graph(y, rest)
    name_nodes(graph)
    assert [node.name for node in graph.nodes] == ["y/neg", "y/sqr", "y/sqr.2", "y", "neg"]
