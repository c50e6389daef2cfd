"""What Sentence Transformers puts behind a model is in the file, or refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from test_models_convert_families import changed, made

import ggplug_models
from ggplug.errors import ModelError
from ggplug.gguf import GGUFReader

MODULES = "sentence_transformers.models."
IDENTITY = "torch.nn.modules.linear.Identity"
LAYER = {"in_features": 32, "out_features": 32, "bias": False, "activation_function": IDENTITY}


def with_modules(name: str, tmp_path: Path, *kinds: str, modes: dict[str, Any] | None = None, **layer: Any) -> Path:
    """A folder with these modules, the first one in ``0_Pooling`` or so; linear layers have random weights."""
    folder = made(name, tmp_path)
    listed = [{"path": f"{number}_{kind}", "type": MODULES + kind} for number, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(listed), "utf-8")
    for number, kind in enumerate(kinds):
        (path := folder / f"{number}_{kind}").mkdir(exist_ok=True)
        settings = {**LAYER, **layer} if kind == "Dense" else modes or {"pooling_mode_mean_tokens": True}
        (path / "config.json").write_text(json.dumps(settings), "utf-8")
        if kind == "Dense":
            values = np.random.default_rng(number).standard_normal((settings["out_features"], 32), np.float32)
            save_file({"linear.weight": values}, path / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("mode", "number"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, 1),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, 2),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, 3),
        ({"pooling_mode": "lasttoken"}, 3),
        ({"word_embedding_dimension": 32}, 1),
    ],
)
@pytest.mark.parametrize("name", ["bert", "qwen3"])
def test_the_pooling_is_that_of_the_folder_that_the_modules_name(
    name: str, mode: dict[str, Any], number: int, tmp_path: Path
) -> None:
    folder = with_modules(name, tmp_path, "Transformer", "Dropout", "Pooling", "Normalize", modes=mode)
    with GGUFReader(ggplug_models.convert(folder, tmp_path / "out.gguf")) as reader:
        assert reader.metadata[f"{name}.pooling_type"] == number


@pytest.mark.parametrize(
    ("modes", "named"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "pooling_mode_mean_tokens"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
        ({"pooling_mode_mean_tokens": False}, "pooling_mode_mean_tokens"),
        ({"pooling_mode": "weightedmean"}, "pooling_mode"),
        ({"pooling_mode_mean_tokens": True, "include_prompt": False}, "include_prompt"),
    ],
)
def test_another_pooling_or_several_at_once_are_refused(modes: dict[str, Any], named: str, tmp_path: Path) -> None:
    folder = with_modules("qwen3", tmp_path, "Transformer", "Pooling", modes=modes)
    with pytest.raises(ModelError, match=rf"1_Pooling/config\.json: {named} must be "):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_a_prompt_for_all_texts_is_refused(tmp_path: Path) -> None:
    folder = with_modules("bert", tmp_path, "Transformer", "Pooling")
    about = folder / "config_sentence_transformers.json"
    about.write_text(json.dumps({"prompts": {"query": "ask: "}, "default_prompt_name": "query"}), "utf-8")
    with pytest.raises(ModelError, match="default_prompt_name must be null"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")
    about.write_text(json.dumps({"prompts": {"query": "ask: "}, "default_prompt_name": None}), "utf-8")
    ggplug_models.convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("name", "kinds", "number"),
    [
        ("bert", ("Transformer", "Pooling", "Dense"), 2),
        ("bert", ("Transformer", "LSTM", "Pooling"), 1),
        ("bert", ("Transformer", "Pooling", "Pooling"), 2),
        ("gemma-embedding", ("Transformer", "Dense"), 1),
        ("gemma-embedding", ("Transformer", "Pooling", "Normalize", "Dense"), 3),
        ("gemma-embedding", ("Transformer", "Pooling", "Dense", "Dense", "Dense"), 4),
    ],
)
def test_a_module_that_files_cannot_have_is_refused(
    name: str, kinds: tuple[str, ...], number: int, tmp_path: Path
) -> None:
    folder = with_modules(name, tmp_path, *kinds)
    with pytest.raises(ModelError, match=rf"modules\.json: modules\[{number}\]: type must be .*{kinds[number]}'"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("bias", True), ("activation_function", "torch.nn.modules.activation.Tanh"), ("out_features", 16)],
)
def test_a_linear_layer_that_files_cannot_have_is_refused(setting: str, value: Any, tmp_path: Path) -> None:
    folder = with_modules("gemma-embedding", tmp_path, "Transformer", "Pooling", "Dense", **{setting: value})
    with pytest.raises(ModelError, match=rf"2_Dense/config\.json: {setting} must be "):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_a_linear_layer_without_its_matrix_is_refused(tmp_path: Path) -> None:
    folder = with_modules("gemma-embedding", tmp_path, "Transformer", "Pooling", "Dense")
    save_file({"other": np.zeros((2, 2), np.float32)}, folder / "2_Dense" / "model.safetensors")
    with pytest.raises(ModelError, match=r"2_Dense has no tensor 'linear\.weight'"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_vectors_are_what_the_linear_layers_behind_the_pooling_make_of_it(tmp_path: Path) -> None:
    vectors, ids = [], [list(range(5, 17))]
    for kinds in (("Dense", "Dense"), ()):
        folder = with_modules("gemma-embedding", tmp_path / str(len(kinds)), "Transformer", "Pooling", *kinds)
        path = ggplug_models.convert(folder, tmp_path / f"{len(kinds)}.gguf")
        with ggplug_models.load(path, ["CPU"], pack=False) as model:
            vectors.append(model.embed_ids(ids)[0])
    first, second = (np.random.default_rng(number).standard_normal((32, 32), np.float32) for number in (2, 3))
    wanted = second @ (first @ vectors[1])
    np.testing.assert_allclose(vectors[0], wanted / np.linalg.norm(wanted), rtol=1e-3, atol=1e-4)


def test_modules_that_are_no_list_or_lie_elsewhere_are_refused(tmp_path: Path) -> None:
    for content, message in (
        ({}, r"modules\.json: modules must be an array of objects"),
        *(
            ([{"type": f"{MODULES}Pooling", "path": path}], r"modules\[0\]: path must be the name of a folder")
            for path in ("../1_Pooling", "..", "")
        ),
    ):
        folder = made("qwen3", tmp_path / str(len(list(tmp_path.iterdir()))))
        (folder / "modules.json").write_text(json.dumps(content), "utf-8")
        with pytest.raises(ModelError, match=message):
            ggplug_models.convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize("name", ["modern-bert", "gemma-embedding", "qwen3"])
def test_texts_are_cut_where_sentence_transformers_cuts_them(name: str, tmp_path: Path) -> None:
    folder = with_modules(name, tmp_path, "Transformer", "Pooling")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9, "do_lower_case": false}', "utf-8")
    with ggplug_models.load(ggplug_models.convert(folder, tmp_path / "out.gguf"), ["CPU"], pack=False) as model:
        whole, cut = (model.text_tokenizer.encode([text])[0] for text in ("the " * 30, "the"))
    assert (len(whole), len(cut) < 9) == (9, True)


def test_texts_are_cut_where_the_tokenizer_cuts_them_if_no_other_length_is_set(tmp_path: Path) -> None:
    folder = with_modules("qwen3", tmp_path, "Transformer", "Pooling")
    for length, wanted in ((9, 9), (10**30, None), (10**6, None)):
        changed(folder, "tokenizer_config.json", model_max_length=length)
        with GGUFReader(ggplug_models.convert(folder, tmp_path / "out.gguf")) as reader:
            assert reader.metadata.get("qwen3.embedding.max_length") == wanted
    changed(folder, "tokenizer_config.json", truncation_side="left")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: truncation_side must be one of right"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_texts_in_lower_case_need_a_tokenizer_that_makes_them_so(tmp_path: Path) -> None:
    for name in ("bert", "modern-bert"):
        folder = made(name, tmp_path)
        (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}', "utf-8")
    ggplug_models.convert(tmp_path / "bert", tmp_path / "out.gguf")
    with pytest.raises(ModelError, match=r"sentence_bert_config\.json: do_lower_case must be false"):
        ggplug_models.convert(tmp_path / "modern-bert", tmp_path / "out.gguf")
