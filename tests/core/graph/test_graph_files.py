"""Graphs in files: what is read is equal to what was written, and computes the same bits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_graphs import Case, random_case

import ggplug as gg
from ggplug.errors import GGUFError, GraphError, ParameterError, PluginError, SerializationError, TensorStateError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.ops.base import OPS, Op, builder
from ggplug.registry.discover import Installed
from ggplug.saved import LoadedGraph, reader
from ggplug.saved.format import OPS_GROUP
from ggplug.tensor import Spec, Tensor, like
from ggplug.types import BufferUsage
from ggplug_testing.cases import Leafs, cases_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "graph.gguf"


def results_of(case: Case, graph: gg.Graph) -> list[bytes]:
    """The bytes of the outputs and persistent tensors of a graph that is equal to the one of the case."""
    positions = [case.graph.index[each] for each in (*case.outputs, *case.persistent) if each in case.graph]
    return [graph.tensors[position].tobytes() for position in positions]


@pytest.mark.parametrize("seed", range(40))
def test_a_random_graph_is_equal_after_it_was_in_a_file_and_has_the_same_results(seed: int, file: Path) -> None:
    case = random_case(seed)
    with gg.Scheduler([gg.device("CPU")]) as scheduler:
        scheduler.allocate(case.graph)
        case.restore()
        case.set_inputs()
        case.graph.save(file)
        scheduler.compute(case.graph)
        wanted = results_of(case, case.graph)
        with gg.load_graph(file) as loaded:
            assert loaded.signature() == case.graph.signature()
            assert [each.name for each in loaded.tensors] == [each.name for each in case.graph.tensors]
            assert not loaded.missing
            scheduler.allocate(loaded)
            loaded.set_inputs()
            scheduler.compute(loaded)
            assert results_of(case, loaded) == wanted


FEW = 6
"""Cases of each op that are written to files."""


@pytest.mark.parametrize("op", [cls for cls in OPS.values() if cls.__module__.startswith("ggplug.ops.")])
def test_each_op_is_the_same_after_it_was_in_a_file(op: type[Op], file: Path) -> None:
    for case in cases_of(op)[:: max(1, len(cases_of(op)) // FEW)]:
        leafs = Leafs(case.seed)
        graph = case.graph(leafs)
        if any(node.op is not None and "callback" in node.op.parameters for node in graph.nodes):
            with pytest.raises(SerializationError, match="an object of Python that cannot be written"):
                graph.save(file)
            continue
        graph.save(file)
        assert gg.load_graph(file).signature() == graph.signature(), case.label


def linear() -> tuple[gg.Graph, Tensor, Tensor]:
    """A product, a leaf that holds weights, and one without a place."""
    context = gg.Context()
    w, x = context.new_tensor("q8_0", (64, 3), "w"), gg.new_tensor("f32", (64, 2), "x").set_input()
    gg.allocate(context, gg.host.HOST, BufferUsage.WEIGHTS)
    w.set(np.random.default_rng(1).standard_normal((3, 64)))
    return gg.Graph(gg.mul_mat(w, x, name="y").set_output(), name="linear"), w, x


# -- values ----------------------------------------------------------------------------------------


def test_a_leaf_without_a_value_is_missing(file: Path) -> None:
    graph, w, _ = linear()
    graph.save(file)
    loaded = gg.load_graph(file)
    assert loaded.missing == [loaded["x"]]
    assert loaded["w"].tobytes() == w.tobytes()
    assert loaded["w"].buffer is not None
    assert loaded["w"].buffer.usage is BufferUsage.WEIGHTS


def test_values_are_written_as_wanted(file: Path) -> None:
    graph, w, _ = linear()
    graph.save(file, values=False)
    assert [each.name for each in gg.load_graph(file).missing] == ["w", "x"]
    graph.save(file, values=lambda leaf: leaf.name != "w")
    loaded = gg.load_graph(file)
    assert [each.name for each in loaded.missing] == ["w", "x"]
    with pytest.raises(TensorStateError, match="has no value"):
        gg.compute(gg.cont(loaded["w"]))
    loaded.set_missing(7)
    assert loaded["w"].tobytes() != w.tobytes()
    assert np.abs(loaded["w"].numpy()).max() < 1
    assert list(loaded.values) == [loaded["x"]]
    assert not loaded.missing


def test_only_the_structure_is_read_if_values_are_not_wanted(file: Path) -> None:
    graph, _, _ = linear()
    graph.save(file)
    loaded = gg.load_graph(file, values=False)
    assert loaded.structure == graph.structure
    assert loaded["w"].buffer is None
    assert not loaded.context.buffers


def test_leafs_with_gaps_keep_the_bytes_in_them(file: Path) -> None:
    whole = gg.tensor(np.arange(60, dtype=np.float32).reshape(5, 12))
    part = Tensor(Spec(gg.F32, (4, 5, 1, 1), 2, whole.nb, whole, 16))
    gg.Graph(gg.cont(part)).save(file)
    loaded = gg.load_graph(file)
    np.testing.assert_array_equal(gg.compute(loaded.nodes[0]).numpy(), whole.numpy()[:, 4:8])

    apart = Tensor(Spec(gg.F32, (4, 5, 1, 1), 2, whole.nb))
    apart.place(gg.host.HOST.alloc(apart.nbytes))
    apart.set_bytes(np.arange(apart.nbytes, dtype=np.uint8))
    gg.Graph(gg.cont(apart)).save(file)
    assert gg.load_graph(file).leafs[0].tobytes() == apart.tobytes()


def test_the_memory_is_that_of_the_device(file: Path) -> None:
    graph, w, _ = linear()
    graph.save(file)
    device = gg.testing.FakeDevice()
    with gg.load_graph(file, device) as loaded:
        assert loaded["w"].buffer_type is device.buffer_type
        assert loaded["w"].tobytes() == w.tobytes()
    assert loaded["w"].buffer is None


def test_a_part_of_a_graph_is_a_graph_in_its_file(file: Path) -> None:
    x = gg.tensor(np.linspace(-1, 1, 8, dtype=np.float32))
    whole = gg.Graph(gg.neg(gg.silu(x, name="middle")).set_output())
    with gg.Scheduler([gg.device("CPU")]) as scheduler:
        whole["middle"].set_output()
        scheduler.compute(whole)
        part = gg.Graph.part(whole.nodes[1:], whole=whole)
        part.save(file)
        loaded = gg.load_graph(file)
        assert [each.name for each in loaded.leafs] == ["middle"]
        scheduler.allocate(loaded)
        loaded.set_inputs()
        scheduler.compute(loaded)
        np.testing.assert_array_equal(loaded.nodes[0].numpy(), -gg.compute(gg.silu(x)).numpy())


# -- values that repeat one block --------------------------------------------------------------------


def cached(value: float, kind: str = "f16") -> tuple[gg.Graph, Tensor]:
    """A graph that reads 256 KiB or less, all of one value."""
    context = gg.Context()
    cache = context.new_tensor(kind, (128, 1024), "cache")
    gg.allocate(context, gg.host.HOST)
    cache.set(np.full((1024, 128), value))
    return gg.Graph(gg.get_rows(cache, gg.tensor(np.array([1], np.int32)), name="y").set_output()), cache


@pytest.mark.parametrize(
    ("value", "kind"), [(0.0, "f16"), (1.5, "f16"), (float("-inf"), "f16"), (0.0, "q8_0"), (1.5, "q8_0")]
)
def test_a_leaf_of_equal_blocks_takes_one_block_in_the_file(value: float, kind: str, file: Path) -> None:
    graph, cache = cached(value, kind)
    graph.save(file)
    assert file.stat().st_size < 4096
    loaded = gg.load_graph(file)
    assert loaded["cache"].tobytes() == cache.tobytes()
    assert not loaded.missing


def test_a_leaf_with_one_other_byte_is_written_whole(file: Path) -> None:
    graph, cache = cached(0.0)
    raw = np.zeros(cache.nbytes, np.uint8)
    raw[-1] = 1
    cache.set_bytes(raw)
    graph.save(file)
    assert file.stat().st_size > cache.nbytes
    assert gg.load_graph(file)["cache"].tobytes() == raw.tobytes()


def test_only_files_with_such_leafs_need_a_reader_of_version_2(file: Path) -> None:
    for graph, version in ((cached(0.0)[0], 2), (linear()[0], 1)):
        graph.save(file)
        with GGUFReader(file) as found:
            assert found.metadata["graph.version"] == version


def test_what_is_repeated_is_a_block_of_a_leaf(file: Path) -> None:
    cached(0.0)[0].save(file)
    for positions in ([2], [-1], [99]):
        with pytest.raises(GGUFError, match="is no leaf with a block to repeat"):
            gg.load_graph(changed(file, graph__repeated=positions))
    with pytest.raises(GGUFError, match="its value has 2 bytes, not 262144"):
        gg.load_graph(changed(file, graph__repeated=None))


# -- weights in other files ------------------------------------------------------------------------


def with_model(folder: Path) -> tuple[gg.Graph, Path]:
    graph, w, _ = linear()
    model = folder / "model.gguf"
    with GGUFWriter(model, "test") as writer:
        writer.add_tensor("w", w.tobytes(), "q8_0", (64, 3))
    return graph, model


def test_weights_of_a_model_are_references(file: Path, tmp_path: Path) -> None:
    graph, model = with_model(tmp_path)
    graph.save(file, models=[model])
    with GGUFReader(file) as found:
        assert not found.tensors
        assert found.metadata["graph.weights.file"] == ["model.gguf"]
    assert gg.load_graph(file)["w"].tobytes() == graph["w"].tobytes()
    moved = model.rename(tmp_path / "moved.gguf")
    assert gg.load_graph(file, models=[moved])["w"].tobytes() == graph["w"].tobytes()
    with pytest.raises(GGUFError, match=r"no file was found that has the tensor 'w' .*models=\[path\]"):
        gg.load_graph(file)


def test_a_weight_that_is_in_no_model_is_refused_or_embedded(file: Path, tmp_path: Path) -> None:
    graph, model = with_model(tmp_path)
    graph["w"].set(np.ones((3, 64)))
    with pytest.raises(ParameterError, match=r"the weight 'w' of .* in none of the models .*model\.gguf.*embed=True"):
        graph.save(file, models=[model])
    assert not file.exists()
    graph.save(file, models=[model], embed=True)
    assert gg.load_graph(file)["w"].tobytes() == graph["w"].tobytes()
    graph.save(file, models=[model], values=lambda leaf: leaf is not graph["w"])
    assert graph["w"].name in [leaf.name for leaf in gg.load_graph(file).missing]


@pytest.mark.parametrize("link", [None, "symlink_to", "hardlink_to"])
def test_a_model_is_not_replaced_by_the_graph_that_refers_to_it(link: str | None, tmp_path: Path) -> None:
    model = out = tmp_path / "model.gguf"
    with GGUFWriter(model, "test") as writer:
        writer.add_tensor("w", np.ones(4, np.float32))
    before = model.read_bytes()
    if link is not None:
        out = tmp_path / "link.gguf"
        getattr(out, link)(model)
    with pytest.raises(ParameterError, match=r"is the same file as .*model\.gguf, which would be overwritten"):
        gg.Graph(gg.neg(gg.new_tensor("f32", 4, "x"))).save(out, models=[model])
    assert model.read_bytes() == before


@pytest.mark.parametrize("kind", [str, Path])
def test_a_single_path_is_no_list_of_models(kind: Callable[[Path], object], file: Path) -> None:
    graph = gg.Graph(gg.neg(gg.new_tensor("f32", 4, "x")))
    graph.save(file)
    models: Any = kind(file)
    for call in (lambda: graph.save(file, models=models), lambda: gg.load_graph(file, models=models)):
        with pytest.raises(ParameterError, match="models must be a list of paths") as caught:
            call()
        assert caught.value.remedy == f"models=[{models!r}]"


def test_a_graph_knows_the_files_that_it_was_read_from(file: Path, tmp_path: Path) -> None:
    context = gg.Context()
    w = context.new_tensor("f32", 4, "w")
    gg.allocate(context, gg.host.HOST, BufferUsage.WEIGHTS)
    w.set(np.ones(4))
    with GGUFWriter(tmp_path / "model.gguf", "test") as writer:
        writer.add_tensor("w", w.numpy())
    gg.Graph(gg.neg(w)).save(file, models=[tmp_path / "model.gguf"])
    with gg.load_graph(file) as graph:
        assert graph.files == [file, tmp_path / "model.gguf"]


def test_a_file_lists_what_it_needs_without_being_loaded(file: Path, tmp_path: Path) -> None:
    graph, model = with_model(tmp_path)
    graph.save(file, models=[model])
    model.unlink()
    loaded = gg.load_graph(file, values=False)
    assert {leaf.name: reference[:2] for leaf, reference in loaded.references.items()} == {"w": ("model.gguf", "w")}
    assert loaded.missing == [loaded["x"]]


def test_a_model_that_has_changed_since_is_refused(file: Path, tmp_path: Path) -> None:
    graph, model = with_model(tmp_path)
    graph.save(file, models=[model])
    model.write_bytes(model.read_bytes().replace(graph["w"].tobytes()[:9], bytes(9)))
    with pytest.raises(GGUFError, match=r"with the digest that it has in 'model\.gguf'"):
        gg.load_graph(file)


# -- what a file may say ---------------------------------------------------------------------------


def changed(file: Path, **values: object) -> Path:
    """The file with other metadata: ``a__b=value`` sets ``a.b``; None removes it."""
    target = file.with_name("changed.gguf")
    new = {key.replace("__", "."): value for key, value in values.items()}
    with GGUFReader(file) as old:
        writer = GGUFWriter(target)
        writer.add_metadata_of(old, without=new)
        for key, value in new.items():
            if value is not None:
                writer.add(key, value, old.metadata_types.get(key))
        for info in old.tensors.values():
            writer.add_tensor(info.name, old.data(info), info.type, info.ne)
        writer.write()
    return target


@pytest.fixture
def plain(file: Path) -> Path:
    """y = rope(rms_norm(x), pos)."""
    x, positions = gg.new_tensor("f32", (4, 1, 2), "x"), gg.new_tensor("i32", (2,), "positions")
    gg.Graph(gg.rope(gg.rms_norm(x, eps=1e-5), positions, n_dims=4)).save(file)
    return file


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"general__architecture": "llama"}, "general.architecture", "the file has no graph but a model: 'llama'"),
        ({"graph__version": 3, "graph__writer": "9.1"}, "graph.version", r"version 3, which ggplug 9\.1 wrote.*update"),
        ({"graph__version": 0}, "graph.version", "has version 0"),
        ({"graph__ops": ["rms_norm", "a.wavelet"]}, "graph.ops", "there is no op 'a.wavelet'"),
        ({"graph__ops": ["rms_norm", "silu"]}, "graph.ops", "silu has no parameter"),
        ({"graph__op__1__n_dims": None}, "graph.ops", "rope needs the parameter 'n_dims'"),
        ({"graph__op__1__n_dims": 3}, "graph.op.1", "n_dims must be positive and even"),
        ({"graph__op__0__eps": -1.0}, "graph.op.0", "eps"),
        ({"graph__sources": [0, 3, 2, -1]}, "graph.sources", "there is no 3 before"),
        ({"graph__sources": [0, 1, -1, -1]}, "tensor 3", "must be a tensor"),
        ({"graph__outputs": [4]}, "graph.outputs", "there is no 4"),
        ({"graph__tensor__type": [0, 0, 26]}, "graph.tensor.type", "3 items, not 4"),
        ({"graph__tensor__type": [0, 1, 26, 0]}, "tensor 1", r"is not what it was for ggplug \d.*type, rank"),
        ({"graph__tensor__type": [99, 0, 26, 0]}, "tensor 0", "99"),
        ({"graph__tensor__flags": [0, 64, 0, 0]}, "tensor 1", "flags 64"),
        ({"graph__tensor__usage": [0, -1, 7, -1]}, "graph.tensor.usage", "no usage 7"),
        ({"graph__tensor__root": [0, 1, 0, 3], "graph__tensor__offset": [0, 0, 28, 0]}, "tensor 2", "spans bytes"),
        ({"graph__tensor__rank": None}, "graph.tensor.rank", "the value is missing, not ARRAY of UINT8"),
    ],
)
def test_a_malformed_file_is_refused_with_the_field(
    change: dict[str, object], field: str, said: str, plain: Path
) -> None:
    with pytest.raises(GGUFError, match=said) as raised:
        gg.load_graph(changed(plain, **change))
    assert raised.value.field == field
    assert raised.value.path is not None


def test_references_name_files_without_folders(file: Path, tmp_path: Path) -> None:
    graph, model = with_model(tmp_path)
    graph.save(file, models=[model])
    for name in ("../model.gguf", str(model), "..", ""):
        with pytest.raises(GGUFError, match="is no name of a file"):
            gg.load_graph(changed(file, graph__weights__file=[name]))


def test_a_parameter_that_a_file_lacks_has_its_default(plain: Path) -> None:
    loaded = gg.load_graph(changed(plain, graph__op__1__freq_base=None, graph__later__key="ignored"))
    assert loaded.structure == gg.load_graph(plain).structure


def test_the_graph_of_a_big_endian_file_is_refused(plain: Path) -> None:
    target = plain.with_name("big.gguf")
    with GGUFReader(plain) as old, GGUFWriter(target, endian="big") as writer:
        writer.add_metadata_of(old)
    with pytest.raises(GGUFError, match="is little-endian"):
        gg.load_graph(target)


def test_tensors_that_share_bytes_without_being_views_are_not_written(file: Path) -> None:
    buffer = gg.host.HOST.alloc(64)
    a, b = gg.new_tensor("f32", (4,), "a"), gg.new_tensor("f32", (4,), "b")
    a.place(buffer, 0)
    b.place(buffer, 8)
    with pytest.raises(ParameterError, match=r"'a' .*shares bytes with another tensor"):
        gg.Graph(gg.add(a, b)).save(file)
    assert not file.exists()


def test_a_list_of_tensors_is_in_the_order_of_computation() -> None:
    graph, w, x = linear()
    assert gg.Graph.listed(graph.tensors, graph.outputs).signature() == graph.signature()
    for tensors, outputs in (([w, *graph.nodes, x], ()), ([w, x, w], ()), ([w], [x])):
        with pytest.raises(GraphError, match=r"is listed twice, or before|is not in the list"):
            gg.Graph.listed(tensors, outputs)


# -- ops of other packages -------------------------------------------------------------------------

OUTSIDE = """
from ggplug.ops.base import Op, builder
from ggplug.tensor import like

class Twice(Op):
    name = "outside.twice"
    level: int = 2
    def result(self, x):
        return like(x)
    def reference(self, x):
        return 2 * x
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Writes the module that an installed distribution names for its ops."""
    point = EntryPoint("outside", "outside_ops", OPS_GROUP)
    installed = Installed(point.name, point.value, "ggplug-outside", "1.0", "", False, point)
    monkeypatch.setattr(reader, "scan", lambda group: (installed,) if group == OPS_GROUP else ())
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda content: (tmp_path / "outside_ops.py").write_text(content) and None
    OPS.pop("outside.twice", None)
    sys.modules.pop("outside_ops", None)


def test_the_op_of_another_package_is_imported_when_a_file_needs_it(outside: Callable[[str], None], file: Path) -> None:
    class Twice(Op):
        name = "outside.twice"
        level: int = 2

        def result(self, x: Tensor) -> Spec:
            return like(x)

    gg.Graph(builder(Twice)(gg.new_tensor("f32", (4,)), level=5)).save(file)
    del OPS["outside.twice"]
    outside(OUTSIDE)
    op = gg.load_graph(file).nodes[0].op
    assert op is not None
    assert (type(op).__module__, op.key) == ("outside_ops", ("outside.twice", 5))
    del OPS["outside.twice"], sys.modules["outside_ops"]
    outside(OUTSIDE.replace("like(x)", "x.nothing"))
    with pytest.raises(GGUFError, match=r"tensor 1: the op outside\.twice raised .*no attribute 'nothing'"):
        gg.load_graph(file)
    del OPS["outside.twice"], sys.modules["outside_ops"]
    outside("")
    with pytest.raises(GGUFError, match=r"there is no op 'outside\.twice'.*import the package"):
        gg.load_graph(file)
    del sys.modules["outside_ops"]
    outside("import nothing_of_that_name")
    with pytest.raises(PluginError, match=r"outside_ops with the op 'outside\.twice'.*nothing_of_that_name"):
        gg.load_graph(file)


# -- files of earlier versions ---------------------------------------------------------------------


def test_a_file_of_version_1_is_read(data: Path) -> None:
    """Written when version 1 was new; it must be readable for ever."""
    loaded = gg.load_graph(data / "graphs" / "version-1.gguf")
    assert isinstance(loaded, LoadedGraph)
    found = gg.compute(loaded["y"])
    assert isinstance(found, Tensor)
    np.testing.assert_allclose(found.numpy(), np.load(data / "graphs" / "version-1.npy"), rtol=1e-5, atol=1e-6)


def test_a_file_of_version_2_is_read(data: Path) -> None:
    """Written when version 2 was new; it must be readable for ever.  Its caches are 1.5 everywhere."""
    for kind in ("f16", "q8_0"):
        loaded = gg.load_graph(data / "graphs" / f"version-2-{kind}.gguf")
        assert loaded["cache"].tobytes() == cached(1.5, kind)[1].tobytes()
