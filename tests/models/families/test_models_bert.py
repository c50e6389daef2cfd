"""BERT encoders give the reference's embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cyclic_pairs import cyclic_pairs
from installed import device_or_skip

import ggplug as gg
import ggplug_models
from ggplug.errors import GGUFError, ModelError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug_models.networks.encoder import batches
from ggplug_models.tokenizers.encoders import HF_JSON
from ggplug_models.weights.placement import alternating


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.sum(a * b, -1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


LEAST_COSINES = {"F32": 0.99999, "Q4_0": 0.9, "F16": 0.9999, "Q8_0": 0.998}


@pytest.mark.parametrize(
    ("kind", "places"),
    [*((kind, "CPU") for kind in LEAST_COSINES), *cyclic_pairs(LEAST_COSINES, ["OpenCL0 CPU", "OpenCL0"])],
)
def test_embeddings_are_those_of_the_reference(
    minilm: Any, minilm_reference: dict[str, Any], kind: str, places: str
) -> None:
    devices = places.split()
    for name in devices:
        device_or_skip(name)
    with ggplug_models.load(minilm(kind), devices, placement=alternating) as model:
        found = model.embed(minilm_reference["texts"])
        held = {weight.buffer.type.device.name for weight in model.weights}
    assert held == set(devices)
    cosines = cosine(found, minilm_reference["embeddings"])
    assert cosines.min() >= LEAST_COSINES[kind], dict(zip(minilm_reference["names"], cosines, strict=True))


def test_token_ids_are_those_of_the_reference_truncated_to_256(minilm: Any, minilm_reference: dict[str, Any]) -> None:
    with ggplug_models.load(minilm("F16"), ["CPU"]) as model:
        found = model.tokenizer.encode(minilm_reference["texts"])
    for ids, wanted, length in zip(found, minilm_reference["token_ids"], minilm_reference["token_len"], strict=True):
        assert ids == wanted[:length].tolist()


def test_a_file_without_tokenizer_json_tokenises_the_same(
    minilm: Any, minilm_reference: dict[str, Any], tmp_path: Path
) -> None:
    bare = tmp_path / "bare.gguf"
    with GGUFReader(minilm("Q8_0")) as reader, GGUFWriter(bare, "bert") as writer:
        writer.add_metadata_of(reader, without={HF_JSON})
        for name, info in reader.tensors.items():
            writer.add_tensor(name, reader.data(name), info.type, info.ne)
        writer.write()
    with ggplug_models.load(bare, ["CPU"]) as model:
        found = model.tokenizer.encode(minilm_reference["texts"])
    for ids, wanted, length in zip(found, minilm_reference["token_ids"], minilm_reference["token_len"], strict=True):
        if length < 256:
            assert ids == wanted[:length].tolist()


def test_hidden_states_of_a_text_are_those_of_the_reference(minilm: Any, minilm_reference: dict[str, Any]) -> None:
    text = minilm_reference["texts"][int(minilm_reference["hidden_text_index"])]
    with ggplug_models.load(minilm("F32"), ["CPU"]) as model:
        found = model.hidden_states(model.tokenizer.encode([text])[0])
    assert np.abs(found - minilm_reference["hidden_states"]).max() < 2e-5


def test_a_text_embeds_the_same_by_itself_and_among_others(minilm: Any, minilm_reference: dict[str, Any]) -> None:
    with ggplug_models.load(minilm("F32"), ["CPU"]) as model:
        together = model.embed(minilm_reference["texts"], batch=5)
        alone = np.concatenate([model.embed([text]) for text in minilm_reference["texts"]])
    assert np.abs(together - alone).max() < 1e-6


def test_a_llama_cpp_file_gives_llama_cpps_vectors(data: Path) -> None:
    golden = np.load(data / "bert.npz")
    with ggplug_models.load(data / "bert.gguf", ["CPU"]) as model:
        for i in range(3):
            ids = golden[f"tokens_{i}"].tolist()
            wanted = golden[f"embd_f32_{i}"]
            found = model.hidden_states(ids)
            assert np.sum((found - wanted) ** 2) / np.sum(wanted**2) <= 1e-5
            pooled = model.embed_ids([ids], normalize=False)[0]
            assert np.sum((pooled - golden[f"pooled_f32_{i}"]) ** 2) / np.sum(wanted**2) <= 1e-5


def test_no_texts_give_no_vectors(data: Path) -> None:
    with ggplug_models.load(data / "bert.gguf", ["CPU"]) as model:
        assert model.embed_ids([]).shape == (0, 64)


def test_wrong_input_is_named(data: Path) -> None:
    with ggplug_models.load(data / "bert.gguf", ["CPU"]) as model:
        with pytest.raises(ParameterError, match="one string"):
            model.embed("a text")
        with pytest.raises(ParameterError, match="the token ids of the vocabulary are 0 to 299"):
            model.embed_ids([[5, 300]])
        with pytest.raises(ParameterError, match="the context length of the model is 512"):
            model.embed_ids([[5] * 513])
        with pytest.raises(ParameterError, match="batch must be an integer of at least 1"):
            model.embed_ids([[5]], batch=0)
        assert model.embed_ids([[5, 6]]).shape == (1, 64)


def test_a_model_that_lacks_a_tensor_says_which(data: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    with GGUFReader(data / "bert.gguf") as reader, GGUFWriter(broken, "bert") as writer:
        writer.add_metadata_of(reader)
        for name, info in reader.tensors.items():
            if name != "blk.1.ffn_down.weight":
                writer.add_tensor(name, reader.data(name), info.type, info.ne)
        writer.write()
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_down\.weight"):
        ggplug_models.load(broken, ["CPU"])


def test_another_architecture_is_refused_with_the_supported_ones(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    with GGUFWriter(path, "clip") as writer:
        writer.write()
    with pytest.raises(
        ModelError,
        match=r"architecture is 'clip', which is not known as an architecture .*bert.*llama.*architectures\.MODULES",
    ):
        ggplug_models.load(path, ["CPU"])


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("hello")
    with pytest.raises(GGUFError):
        ggplug_models.load(path, ["CPU"])


def test_an_unknown_device_is_refused_and_not_replaced(data: Path) -> None:
    with pytest.raises(gg.DeviceNotFoundError, match="Nowhere7"):
        ggplug_models.load(data / "bert.gguf", ["Nowhere7"])


def test_converting_a_folder_that_lacks_something_says_what(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        ggplug_models.convert(tmp_path, tmp_path / "out.gguf")
    (tmp_path / "config.json").write_text('{"model_type": "whisper"}')
    known = "model_type must be one of Dream, .*, bert, .*, xverse: no other family is supported, got 'whisper'"
    with pytest.raises(ModelError, match=known):
        ggplug_models.convert(tmp_path, tmp_path / "out.gguf")
    with pytest.raises(ParameterError, match="Q9"):
        ggplug_models.convert(tmp_path, tmp_path / "out.gguf", "Q9")
    assert not (tmp_path / "out.gguf").exists()


def test_converted_files_are_read_by_the_gguf_package(minilm: Any) -> None:
    import gguf

    reader = gguf.GGUFReader(minilm("Q8_0"))
    assert reader.fields["general.architecture"].contents() == "bert"
    assert reader.fields["bert.block_count"].contents() == 6
    names = {t.name for t in reader.tensors}
    assert {"token_embd.weight", "blk.5.layer_output_norm.bias"} <= names
    assert len(names) == 101


def test_texts_of_similar_length_are_computed_together() -> None:
    assert list(batches([3, 9, 1, 8], 2)) == [[1, 3], [0, 2]]


def test_of_long_texts_fewer_are_computed_together() -> None:
    assert [len(each) for each in batches([512] * 40, 32)] == [32, 8]
    assert [len(each) for each in batches([2048] * 3, 32)] == [2, 1]
    assert [len(each) for each in batches([8192, 8192, 100, 100], 32)] == [1, 1, 2]
