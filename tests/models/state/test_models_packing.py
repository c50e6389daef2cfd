"""Which weights a model keeps packed, what that costs, and that its results stay the same bits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("ggplug_cpu")

import ggplug as gg
import ggplug_models
from ggplug.backend import Decline, Device, Group, Memory
from ggplug.errors import ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.graph import Graph
from ggplug.quantizing import quantize_file
from ggplug.tensor import Context
from ggplug.types import MXFP4
from ggplug_models.commands.embed import embed
from ggplug_models.networks.model import ARCHITECTURES, Model
from ggplug_models.weights.placement import alternating
from ggplug_testing import FakeDevice
from ggplug_testing.devices.packing import PADDING, PackingDevice

IDS = [[2, 9, 33, 120, 7, 3] * 4, [2, 250, 11, 3] * 5]
"""Enough columns for the kernels that read panels, packed or not."""
PRODUCTS = re.compile(r"blk\.\d+\.(attn_(q|k|v|output)|ffn_(up|down))\.weight")


def packed_names(model: Model) -> set[str]:
    """The tensors that lie in packed memory, by what their buffers say."""
    return {t.name for t in model.weights if t.buffer_type is not None and t.buffer_type.has_own_layout}


def test_weights_that_only_products_read_are_packed_and_give_the_same_bits(data: Path) -> None:
    path = data / "bert.gguf"
    with ggplug_models.load(path, ["CPU"], pack=False) as plain, ggplug_models.load(path, ["CPU"]) as packed:
        assert packed_names(plain) == set()
        assert plain.packing == ()
        assert packed_names(packed) == {t.name for t in packed.weights if PRODUCTS.fullmatch(t.name)}
        assert packed_names(packed) == {each.name for each in packed.packing if each.memory is not None}
        for wanted, got in zip(plain.weights, packed.weights, strict=True):
            assert got.tobytes() == wanted.tobytes()
        np.testing.assert_array_equal(packed.embed_ids(IDS), plain.embed_ids(IDS))
        assert "MiB packed" in repr(packed)
        assert "packed" not in repr(plain)


def test_each_weight_says_what_it_takes_or_why_it_stays_plain(data: Path) -> None:
    with ggplug_models.load(data / "bert.gguf", ["CPU"]) as model:
        rows = {each.name: each for each in model.packing}
        assert set(rows) == {t.name for t in model.weights}
        product, table = rows["blk.0.ffn_up.weight"], rows["token_embd.weight"]
        assert product.packed_bytes >= product.nbytes == model.weights[product.name].nbytes
        assert f"{product.nbytes} bytes, packed in CPU packed: {product.packed_bytes} bytes" in str(product)
        assert "get_rows on the CPU reads its source 0 as plain bytes" in str(table)
        explained = {row.name: row for row in model.scheduler.explain(model.build(1, 64).graph).packed}
        assert set(explained) == packed_names(model)
        assert explained[product.name].packed_bytes == product.packed_bytes


def test_packing_stops_where_it_would_make_the_model_larger_than_allowed(data: Path) -> None:
    device = PackingDevice()
    one = ggplug_models.load(data / "bert.gguf", [device], pack_growth=PADDING)
    none = ggplug_models.load(data / "bert.gguf", [device], pack_growth=PADDING - 1)
    with one, none:
        assert len(packed_names(one)) == 1
        assert packed_names(none) == set()
        refused = next(each for each in none.packing if PRODUCTS.fullmatch(each.name))
        assert refused.reason == f"packing takes {PADDING} more bytes; pack_growth allows {PADDING - 1} more"
        np.testing.assert_allclose(one.embed_ids(IDS), none.embed_ids(IDS), rtol=0, atol=1e-6)
    with pytest.raises(ParameterError, match=r"pack_growth must be an integer from 0 to \d+, got -1"):
        ggplug_models.load(data / "bert.gguf", [device], pack_growth=-1)


def test_by_default_only_weights_are_packed_that_stay_about_as_large(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "mxfp4.gguf"
    quantize_file(data / "qwen3.gguf", path, "F16", overrides=[("attn_q", MXFP4)])
    with ggplug_models.load(path, ["CPU"]) as model:
        for each in model.packing:
            assert each.memory is None or each.packed_bytes <= each.nbytes * 17 / 16
        assert any(each.memory is not None for each in model.packing)
        growing = [each for each in model.packing if each.packed_bytes > each.nbytes * 17 / 16]
        assert growing
        assert all("which pack_growth must allow" in each.reason for each in growing)
    with ggplug_models.load(path, ["CPU"], pack_growth=1 << 20) as model:
        assert all({each.name: each for each in model.packing}[each.name].memory is not None for each in growing)


def test_nothing_is_packed_where_memory_is_short(data: Path) -> None:
    class Full(PackingDevice):
        def memory(self) -> Memory:
            return Memory(2_000, 1 << 30)

    with ggplug_models.load(data / "bert.gguf", [Full()]) as model:
        assert packed_names(model) == set()
        assert any("more than half of the 2000 that are free" in each.reason for each in model.packing)


def test_a_device_that_declines_the_product_with_packed_weights_keeps_them_plain(data: Path) -> None:
    class Picky(PackingDevice):
        def match(self, group: Group) -> Any:
            uses_packed = any(s is not None and s.root.buffer_type is self._extra for s in group.node.src)
            return Decline("not today") if uses_packed else super().match(group)

    with ggplug_models.load(data / "bert.gguf", [Picky()]) as model:
        assert packed_names(model) == set()
        assert next(each for each in model.packing if PRODUCTS.fullmatch(each.name)).reason == "not today"


def test_weights_on_a_device_without_packed_memory_stay_there(data: Path) -> None:
    cpu, fake = gg.device("CPU"), FakeDevice(inner=gg.device("CPU"))
    with ggplug_models.load(data / "bert.gguf", [cpu]) as whole:
        wanted = whole.embed_ids(IDS)
    with ggplug_models.load(data / "bert.gguf", [fake, cpu], placement=alternating) as split:
        names = packed_names(split)
        assert names
        assert all(int(name.split(".")[1]) % 2 for name in names)  # even layers are on the other device
        assert not any(copy.unpacked for copy in split.scheduler.explain(split.build(1, 64).graph).copies)
        np.testing.assert_allclose(split.embed_ids(IDS), wanted, rtol=0, atol=1e-6)


class Tied(Model):
    """Looks rows up in a matrix and multiplies with it, and with another one; the third serves one column only.

    The fourth serves a product, and an addition reads a row of it.
    """

    def __init__(self, weights: Context, metadata: Mapping[str, Any], devices: Sequence[Device]) -> None:
        super().__init__(weights, metadata, devices)
        self.ids = gg.new_tensor("i32", 20, "ids").set_input()
        table, other = self.w("table", 64, 64), self.w("other", 64, 64)
        rows = gg.mul_mat(other, gg.get_rows(table, self.ids))
        last = gg.view(rows, 64, offset=rows.nb[1] * 19)
        self.y = gg.mul_mat(table, rows).set_output()
        seen = self.w("seen", 64, 64)
        last = last + gg.view(seen, 64, offset=seen.nb[1] * 2) + gg.mean(gg.mul_mat(seen, rows))
        self.z = gg.mul_mat(self.w("last", 64, 64), gg.view(last, 64)).set_output()
        self.graph = Graph(self.y, self.z)

    def sample(self) -> Graph:
        return self.graph


def test_a_tied_embedding_and_a_weight_for_one_column_stay_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "tied", Tied)
    with GGUFWriter(tmp_path / "tied.gguf", "tied") as writer:
        for name in ("table", "other", "last", "seen"):
            writer.add_tensor(name, np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32))
    results = []
    for pack in (False, True):
        with ggplug_models.load(tmp_path / "tied.gguf", ["CPU"], pack=pack) as model:
            assert packed_names(model) == ({"other"} if pack else set())
            if pack:
                reasons = {each.name: each.reason for each in model.packing}
                assert "get_rows" in reasons["table"]
                assert "add on the CPU reads its source 1 as plain bytes" in reasons["seen"]
                assert reasons["last"] == "no product with many columns reads the weight"
            model.scheduler.allocate(model.graph)
            model.ids.set(np.arange(20, dtype=np.int32))
            model.scheduler.compute(model.graph)
            results.append((model.y.numpy(), model.z.numpy()))
    for plain, packed in zip(*results, strict=True):
        np.testing.assert_array_equal(packed, plain)


def test_a_model_without_a_sample_is_loaded_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(Tied):
        def sample(self) -> None:  # type: ignore[override]
            return None

    monkeypatch.setitem(ARCHITECTURES, "tied", Plain)
    with GGUFWriter(tmp_path / "tied.gguf", "tied") as writer:
        for name in ("table", "other", "last", "seen"):
            writer.add_tensor(name, np.zeros((64, 64), np.float32))
    with ggplug_models.load(tmp_path / "tied.gguf", ["CPU"]) as model:
        assert packed_names(model) == set()


def test_a_packed_model_is_saved_as_it_was_read(data: Path, tmp_path: Path) -> None:
    with ggplug_models.load(data / "bert.gguf", ["CPU"]) as model, GGUFWriter(tmp_path / "again.gguf") as writer:
        for tensor in model.weights:
            writer.add_tensor(tensor.name, np.frombuffer(tensor.tobytes(), np.uint8), tensor.type, tensor.ne)
    with GGUFReader(data / "bert.gguf") as before, GGUFReader(tmp_path / "again.gguf") as after:
        for name in before.tensors:
            assert before.data(name).tobytes() == after.data(name).tobytes()


@pytest.mark.parametrize("options", [["--no-pack"], [], ["--pack-growth", "2"]], ids=" ".join)
def test_the_command_passes_its_options_on(data: Path, options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Stop(Exception):
        pass

    def load(*args: Any, **known: Any) -> None:
        given.update(known)
        raise Stop

    monkeypatch.setattr("ggplug_models.loading.load", load)
    found = CliRunner().invoke(embed, [str(data / "bert.gguf"), *options])
    assert isinstance(found.exception, Stop)
    assert given["pack"] is ("--no-pack" not in options)
    assert given["pack_growth"] == (2 << 20 if "--pack-growth" in options else None)
