"""The corpus of graphs: each one is equal, and computes the same bits, after it was in a file once more."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import corpus
import pytest
from corpus.recording import MODELS, of_model

import ggplug as gg
import ggplug_models
from ggplug.backend import Device
from ggplug.cli.compare import with_cpu
from ggplug.cli.graph import results_of
from ggplug.errors import DeviceNotFoundError
from ggplug.interface.grouping import Tried, form_groups
from ggplug.saved import LoadedGraph

GRAPHS = corpus.graphs()


def results(graph: LoadedGraph, device: Device, copy: Path | None = None) -> list[bytes]:
    """The bytes of a graph's results and of the tensors that it writes into.

    ``copy``: a file that the graph is written to before it is computed.
    """
    with gg.Scheduler(with_cpu(device)) as scheduler:
        scheduler.allocate(graph)
        graph.set_inputs()
        if copy is not None:
            graph.save(copy)
        scheduler.compute(graph)
        return [each.numpy().tobytes() for each in (*results_of(graph), *graph.context) if each.nbytes]


def check_results(names: list[str], device: Device, folder: Path) -> None:
    """Computes graphs, and what was written to files before that."""
    copy = folder / "copy.gguf"
    for name in names:
        with corpus.load(name, GRAPHS[name], folder, device) as first:
            wanted = results(first, device, copy)
            with gg.load_graph(copy, device) as second:
                assert not second.missing, name
                assert second.signature() == first.signature(), name
                assert results(second, device) == wanted, name


def test_the_corpus_has_graphs_of_all_models_and_others() -> None:
    assert len(GRAPHS) >= 300
    kinds = Counter(name.partition("/")[0] for name in GRAPHS)
    assert min(kinds[kind] for kind in ("model", "case", "random")) >= 70
    assert {name.split("/")[1] for name in GRAPHS if name.startswith("model/")} == set(MODELS)
    assert corpus.CORPUS.stat().st_size < 400_000


def test_each_graph_is_equal_after_it_was_in_a_file_once_more(tmp_path: Path) -> None:
    for name, content in GRAPHS.items():
        with corpus.load(name, content, tmp_path) as first:
            first.save(tmp_path / "again.gguf", values=False)
            with gg.load_graph(tmp_path / "again.gguf") as second:
                assert second.signature() == first.signature(), name
                assert [each.name for each in second.tensors] == [each.name for each in first.tensors]


def test_the_groups_of_a_graph_do_not_depend_on_which_graphs_were_seen_before(tmp_path: Path) -> None:
    device = gg.device("CPU")
    tried: Tried = {}
    for name in list(GRAPHS)[::2]:
        with corpus.load(name, GRAPHS[name], tmp_path) as graph:
            found, alone = (form_groups(graph, device.patterns, device._declined, (), known) for known in (tried, None))
            assert (found, found.missed) == (alone, alone.missed), name


def test_some_graphs_have_the_same_results_on_the_cpu(tmp_path: Path) -> None:
    check_results(list(GRAPHS)[::12], gg.device("CPU"), tmp_path)


def opencl() -> Device:
    try:
        return gg.device("OpenCL0")
    except DeviceNotFoundError as error:
        pytest.skip(str(error))


def test_some_graphs_have_the_same_results_with_opencl(tmp_path: Path) -> None:
    check_results(list(GRAPHS)[::60], opencl(), tmp_path)


@pytest.mark.long
def test_all_graphs_have_the_same_results_on_the_cpu(tmp_path: Path) -> None:
    check_results(list(GRAPHS), gg.device("CPU"), tmp_path)


@pytest.mark.long
def test_all_graphs_have_the_same_results_with_opencl(tmp_path: Path) -> None:
    check_results(list(GRAPHS), opencl(), tmp_path)


@pytest.mark.parametrize("stem", ["qwen3", "mamba2", "deepseek3", "bert"])
def test_the_graph_of_a_model_has_the_same_results_after_it_was_in_a_file(stem: str, tmp_path: Path) -> None:
    device = gg.device("CPU")
    with ggplug_models.load(MODELS[stem], [device], pack=False) as model:
        for step, graph in of_model(model):
            path = graph.save(tmp_path / "graph.gguf", models=[MODELS[stem]])
            model.scheduler.compute(graph)
            wanted = [each.numpy().tobytes() for each in results_of(graph)]
            with gg.load_graph(path, device, models=[MODELS[stem]]) as loaded:
                assert loaded.signature() == graph.signature(), step
                assert results(loaded, device)[: len(wanted)] == wanted, step
