"""``ggplug graph``: shows, computes, measures and compares the graph in a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from wrong_device import Wrong

import ggplug as gg
from ggplug.backend import Group
from ggplug.cli.app import app
from ggplug.errors import ParameterError
from ggplug.gguf import GGUFWriter
from ggplug.ops.base import OPS, Op, builder
from ggplug.tensor import Spec, Tensor, like
from ggplug.types import BufferUsage


def graph(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["graph", *map(str, arguments)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """y = silu(w x) with the weights in a model next to it."""
    context = gg.Context()
    w, x = context.new_tensor("f32", (8, 3), "w"), gg.new_tensor("f32", (8, 2), "x").set_input()
    gg.allocate(context, gg.host.HOST, BufferUsage.WEIGHTS)
    w.set(np.full((3, 8), 0.5))
    with GGUFWriter(tmp_path / "model.gguf", "test") as writer:
        writer.add_tensor("w", w.numpy())
    built = gg.Graph(gg.silu(gg.mul_mat(w, x, name="wx"), name="y").set_output(), name="tiny")
    with gg.Scheduler([gg.device("CPU")]) as scheduler:
        scheduler.allocate(built)
        x.set(np.ones((2, 8)))
        return built.save(tmp_path / "graph.gguf", models=[tmp_path / "model.gguf"])


def test_show_summarises_lists_draws_and_explains(file: Path) -> None:
    done = graph("show", file)
    assert done.exit_code == 0, done.output
    assert "'tiny': 2 nodes, 2 leafs" in done.output
    assert "1 mul_mat, 1 silu" in done.output
    assert "mul_mat" in graph("show", file, "--nodes").output
    assert graph("show", file, "--dot").output.startswith("digraph")
    assert "2 nodes that compute something" in graph("show", file, "--explain", "CPU").output
    found = json.loads(graph("show", file, "--json").output)
    assert [each["op"] for each in found["tensors"]] == [None, None, "mul_mat", "silu"]
    assert [each["file"] for each in found["references"]] == ["model.gguf"]
    assert found["missing"] == []
    assert found["tensors"][2]["sources"] == [0, 1]


@pytest.mark.parametrize("outputs", [[], [gg.tensor([1.0, 2.0])]], ids=["empty", "of a leaf"])
def test_a_graph_without_nodes_has_no_results(tmp_path: Path, outputs: list[Tensor]) -> None:
    path = gg.Graph(*outputs).save(tmp_path / "nothing.gguf")
    assert "ops: none" in graph("show", path).output
    done = graph("run", path, "--out", tmp_path / "results.npz")
    assert done.exit_code == 0, done.output
    assert "no results" in done.output
    assert not np.load(tmp_path / "results.npz").files
    assert json.loads(graph("run", path, "--json").output)["results"] == []


def test_show_says_what_a_file_needs(file: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").unlink()
    assert "weights in the file model.gguf: 1, of 96 B" in graph("show", file).output
    assert "without a value" not in graph("show", file).output

    class Twice(Op):
        name = "outside.twice"

        def result(self, x: Tensor) -> Spec:
            return like(x)

    try:
        leafs = [gg.new_tensor("f32", (4,), f"x{number}") for number in range(7)]
        gg.Graph(*map(builder(Twice), leafs)).save(file)
        shown = " ".join(graph("show", file).output.split())
        assert "leafs without a value: 7: x0 (f32 4), x1 (f32 4)" in shown
        assert "x4 (f32 4), ...; --seed N" in shown
        assert f"op of another package: outside.twice, of the module {__name__}" in shown
    finally:
        del OPS["outside.twice"]


def test_run_prints_the_results_and_writes_them(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.npz"
    done = graph("run", file, "--device", "CPU", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.output)["results"]
    assert (row["result"], row["shape"], row["not finite"]) == ("y", "2x3", 0)
    np.testing.assert_allclose(np.load(out)["y"], np.full((2, 3), 4 / (1 + np.exp(-4))), rtol=1e-6)
    assert "not finite" in graph("run", file, "--device", "CPU").output


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("kind", ["the graph", "the model", "a link to the model"])
def test_results_replace_no_file_that_was_read(file: Path, kind: str, given: bool) -> None:
    model, link = file.parent / "model.gguf", file.parent / "link.gguf"
    link.symlink_to(model)
    before = file.read_bytes(), model.read_bytes()
    out = {"the graph": file, "the model": model, "a link to the model": link}[kind]
    done = graph("run", file, "--device", "CPU", "-o", out, *(["--model", model] if given else []))
    assert (done.exit_code, type(done.exception)) == (1, ParameterError)
    assert "which would be overwritten" in str(done.exception)
    assert (file.read_bytes(), model.read_bytes()) == before


def test_a_trace_replaces_no_file_that_is_given_or_written(file: Path) -> None:
    model, results = file.parent / "model.json", file.parent / "results.json"
    (file.parent / "model.gguf").rename(model)
    for option, path in (("--model", model), ("-o", results)):
        done = graph("run", file, "--device", "CPU", "--trace", path, option, path)
        assert type(done.exception) is ParameterError, done.output
    assert not results.exists()
    assert model.read_bytes().startswith(b"GGUF")


def test_results_have_a_key_each_whatever_their_names(tmp_path: Path) -> None:
    x = gg.new_tensor("f32", 1, "x").set_input()
    names = ["y", "y", "", "file", "allow_pickle", "y 1", "a/b.npy", "y"]
    outputs = [gg.scale(x, float(n), name=name).set_output() for n, name in enumerate(names)]
    built = gg.Graph(*outputs)
    with gg.Scheduler([gg.device("CPU")]) as scheduler:
        scheduler.allocate(built)
        x.set(np.ones(1))
        built.save(tmp_path / "graph.gguf")
    done = graph("run", tmp_path / "graph.gguf", "--device", "CPU", "--json", "-o", tmp_path / "out.npz")
    assert done.exit_code == 0, done.output
    results = json.loads(done.output)["results"]
    assert [each["mean"] for each in results] == list(range(8))
    with np.load(tmp_path / "out.npz") as file:
        written = {**file}
    assert [each["result"] for each in results] == list(written)
    assert [int(values[0]) for values in written.values()] == list(range(8))
    assert {"file", "allow_pickle", "a/b.npy"} < {*written}


def test_bench_measures_each_device(file: Path) -> None:
    done = graph("bench", file, "--device", "CPU", "--device", "CPU", "--repeats", 2, "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.output)
    assert [row["device"] for row in rows] == ["CPU", "CPU"]
    assert all(0 < row["best ms"] <= row["median ms"] for row in rows)


def test_compare_names_the_first_wrong_node(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def product(group: Group) -> bool:
        return group.node.op is not None and group.node.op.name == "mul_mat"

    wrong, found = Wrong(product, by=10.0, patterns=()), gg.device
    monkeypatch.setattr(gg, "device", lambda name: wrong if name == "wrong" else found(name))
    done = graph("compare", file, "--device", "CPU", "--device", "wrong", "--json")
    assert done.exit_code == 1, done.output
    assert [each["node"]["name"] for each in json.loads(done.output)["wrong"]] == ["wx"]
    assert graph("compare", file, "--device", "CPU,CPU").exit_code == 0


def test_leafs_without_values_need_a_seed(tmp_path: Path) -> None:
    file = gg.Graph(gg.mul_mat(gg.new_tensor("q8_0", (32, 2), "w"), gg.new_tensor("f32", (32, 1), "x"))).save(
        tmp_path / "graph.gguf"
    )
    done = graph("run", file, "--device", "CPU")
    assert done.exit_code == 1
    assert "no values for 2 leafs" in str(done.exception)
    first, again, other = (graph("run", file, "--device", "CPU", "--seed", seed).output for seed in (1, 1, 2))
    assert first == again != other


def test_a_file_without_a_graph_is_refused(tmp_path: Path) -> None:
    with GGUFWriter(tmp_path / "model.gguf", "llama") as writer:
        writer.add("llama.block_count", 1)
    done = graph("show", tmp_path / "model.gguf")
    assert done.exit_code == 1
    assert "has no graph but a model" in str(done.exception)
