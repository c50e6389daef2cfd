"""Metadata and configurations of the wrong type or out of range are ModelErrors that name the key."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggplug as gg
import ggplug_models
from ggplug.errors import GGUFError, ModelError
from ggplug.gguf import GGUFReader, GGUFWriter, ValueType
from ggplug.tensor import Context
from ggplug_models.architectures.bert import Bert
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.metadata.values import Values
from ggplug_models.networks.model import Model
from ggplug_models.tokenizers.encoders import HF_JSON, TextTokenizer, from_metadata

GOOD: dict[str, Any] = {
    "general.architecture": "bert",
    "bert.context_length": 512,
    "bert.embedding_length": 64,
    "bert.block_count": 3,
    "bert.feed_forward_length": 160,
    "bert.attention.head_count": 4,
    "bert.attention.layer_norm_epsilon": 1e-12,
    "bert.attention.causal": False,
    "bert.pooling_type": 1,
    "bert.hidden_activation": "gelu",
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"\u2581w{n}" for n in range(296))]
VOCABULARY: dict[str, Any] = {
    "tokenizer.ggml.model": "bert",
    "tokenizer.ggml.tokens": WORDS,
    "tokenizer.ggml.token_type": np.array([3] * 4 + [1] * 296, np.int32),
    "tokenizer.ggml.unknown_token_id": 1,
    "tokenizer.ggml.cls_token_id": 2,
    "tokenizer.ggml.seperator_token_id": 3,
}

ODD: list[Any] = [
    None,
    -1,
    0,
    2**31,
    2**63,
    10**400,
    -(10**400),
    0.5,
    math.nan,
    math.inf,
    -math.inf,
    True,
    "",
    "7",
    "x" * 10_000_000,
    [],
    ["a"],
    [[1], ["b"]],
    np.zeros(0, np.float32),
    np.arange(3, dtype=np.int32),
    np.zeros((2, 2)),
    np.float32(2.5),
]
"""Values of every type that metadata can have, and some that it cannot."""

FITS: dict[str, Callable[[Any], bool]] = {
    "bert.context_length": lambda x: False,
    "bert.embedding_length": lambda x: False,
    "bert.block_count": lambda x: False,
    "bert.feed_forward_length": lambda x: False,
    "bert.attention.head_count": lambda x: False,
    "bert.attention.layer_norm_epsilon": lambda x: (
        not isinstance(x, bool) and isinstance(x, (int, float, np.floating)) and 0 <= float(str(x)) < 1e300
    ),
    "bert.attention.causal": lambda x: x is None,
    "bert.pooling_type": lambda x: x is None or (type(x) is int and x == 0),
    "bert.hidden_activation": lambda x: x is None,
    "general.architecture": lambda x: isinstance(x, str),
    "tokenizer.ggml.model": lambda x: False,
    "tokenizer.ggml.tokens": lambda x: False,
    "tokenizer.ggml.token_type": lambda x: x is None,
    "tokenizer.ggml.unknown_token_id": lambda x: x is None or (type(x) is int and x == 0),
    "tokenizer.ggml.cls_token_id": lambda x: x is None or (type(x) is int and x == 0),
    "tokenizer.ggml.seperator_token_id": lambda x: x is None or (type(x) is int and x == 0),
    HF_JSON: lambda x: x is None,
}
"""What of that is right for a key, because it has a default or a wide range."""


def read(metadata: dict[str, Any]) -> TextTokenizer:
    numbers(metadata)
    return from_metadata(metadata, 512, 300)


def numbers(metadata: dict[str, Any]) -> Bert:
    """A model that knows the numbers of its file, and no tensor."""
    model = object.__new__(Bert)
    model.read(Hyperparameters(metadata))
    return model


@pytest.mark.parametrize("key", FITS)
def test_a_value_of_the_wrong_type_or_range_is_an_error_that_names_its_key(key: str) -> None:
    assert read({**GOOD, **VOCABULARY}).encode(["w1 w2"]) == [[2, 5, 6, 3]]
    for value in ODD:
        metadata = {**GOOD, **VOCABULARY, key: value}
        if value is None:
            del metadata[key]
        if FITS[key](value):
            if key != "general.architecture":
                read(metadata)
            continue
        named = "tokenizer.ggml.token" if key == "tokenizer.ggml.tokens" else key  # their number is that of their types
        with pytest.raises(ModelError, match=re.escape(named)) as caught:
            read(metadata)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"bert.attention.head_count": 5}, "embedding_length must be a multiple of bert.attention.head_count"),
        ({"bert.attention.head_count": 128}, "embedding_length must be a multiple of bert.attention.head_count"),
        ({"bert.context_length": 2}, "context_length"),
        ({"bert.pooling_type": 5}, r"bert.pooling_type must be 0 \(none\), 1 \(mean\), 2 .*, got 5"),
        ({"bert.attention.causal": True}, "bert.attention.causal is true"),
        ({"tokenizer.ggml.tokens": WORDS[:3]}, "tokenizer.ggml.token_type must be an array of 3 integers"),
        ({"tokenizer.ggml.token_type": np.zeros(299, np.int32)}, "token_type must be an array of 300 integers"),
        ({"tokenizer.ggml.token_type": np.zeros(300, np.float32)}, "token_type must be an array of 300 integers"),
        ({"tokenizer.ggml.cls_token_id": 300}, "cls_token_id must be an integer from 0 to 299, got 300"),
        (
            {"tokenizer.ggml.tokens": ["a"] * 300, "tokenizer.ggml.unknown_token_id": None},
            "must be a vocabulary that contains",
        ),
    ],
)
def test_values_that_do_not_go_together_are_refused(changes: dict[str, Any], key: str) -> None:
    metadata = {**GOOD, **VOCABULARY, **changes}
    with pytest.raises(ModelError, match=key):
        from_metadata(metadata, numbers(metadata).n_ctx, 300)


def test_a_vocabulary_may_be_larger_than_the_embeddings_until_such_a_token_is_needed() -> None:
    larger = {**VOCABULARY, "tokenizer.ggml.tokens": [*WORDS, "[more]"], "tokenizer.ggml.token_type": None}
    tokenizer = from_metadata(larger, 512, 300)
    assert tokenizer.encode(["w7"]) == [[2, 11, 3]]
    with pytest.raises(
        ModelError, match=r"tokenizer\.ggml\.tokens has the token id 300, but the model's vocabulary has 300 tokens"
    ):
        tokenizer.encode(["w7 [more]"])
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.tokens has the token id 300"):
        from_metadata({**larger, "tokenizer.ggml.cls_token_id": 300}, 512, 300)


def described(**changes: Any) -> str:
    """A whole tokenizer.json, with its parts replaced."""
    pytest.importorskip("tokenizers")
    made = json.loads(from_metadata(VOCABULARY, 512, 300)._tokenizer.to_str())
    for path, value in changes.items():
        inner = made
        *outer, last = path.split("__")
        for name in outer:
            inner = inner[name]
        inner[last] = value
    return json.dumps(made)


BROKEN: dict[str, Callable[[], str]] = {
    "nothing": lambda: "",
    "not JSON": lambda: "{",
    "a list": lambda: "[]",
    "no model": lambda: "{}",
    "nested deeply": lambda: "[" * 100_000,
    "without its unknown token": lambda: described(model__unk_token="[nope]"),
    "negative ids": lambda: described(model__vocab={"a": -1}),
    "too short for a token": lambda: described(
        truncation={"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    ),
    "ids around texts that the model does not know": lambda: described(
        post_processor__special_tokens={
            "[CLS]": {"id": "[CLS]", "ids": [4_000_000], "tokens": ["[CLS]"]},
            "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]},
        }
    ),
    "an odd normalizer": lambda: described(normalizer={"type": "Replace", "pattern": {"Regex": "("}, "content": ""}),
}


@pytest.mark.parametrize("make", BROKEN.values(), ids=BROKEN)
def test_a_broken_tokenizer_json_is_an_error_that_names_its_key(make: Callable[[], str]) -> None:
    metadata = {**GOOD, **VOCABULARY, HF_JSON: make()}
    with pytest.raises(ModelError, match=re.escape(HF_JSON)):
        read(metadata).encode(["w1 unknown"])


def test_errors_reach_who_loads_the_file(data: Path, tmp_path: Path) -> None:
    def variant(**changes: Any) -> Path:
        path = tmp_path / "odd.gguf"
        replaced = {name.replace("__", "."): value for name, value in changes.items()}
        with GGUFReader(data / "bert.gguf") as reader, GGUFWriter(path) as writer:
            writer.add_metadata_of(reader, without=replaced.keys())
            for key, value in replaced.items():
                writer.add(key, *value) if isinstance(value, tuple) else writer.add(key, value)
            for name, info in reader.tensors.items():
                writer.add_tensor(name, reader.data(name), info.type, info.ne)
        return path

    for changes, key in (
        ({"bert__attention__head_count": "four"}, "head_count"),
        ({"bert__attention__layer_norm_epsilon": math.nan}, "layer_norm_epsilon"),
        ({"bert__block_count": (-3, ValueType.INT64)}, "block_count"),
        ({"general__architecture": 5}, "general.architecture"),
    ):
        with pytest.raises(ModelError, match=key):
            ggplug_models.load(variant(**changes), ["CPU"])
    odd = variant(tokenizer__ggml__model="bert", tokenizer__ggml__tokens=np.arange(300, dtype=np.int32))
    with ggplug_models.load(odd, ["CPU"]) as model:
        with pytest.raises(ModelError, match=r"tokenizer\.ggml\.tokens must be an array of at least 1 strings"):
            model.embed(["a text"])
        assert model.embed_ids([[1, 2]]).shape == (1, 64)  # what needs no tokeniser works on


def test_a_weight_without_rows_is_refused(data: Path, tmp_path: Path) -> None:
    for empty in ("token_embd.weight", "token_types.weight"):
        with GGUFReader(data / "bert.gguf") as reader, GGUFWriter(tmp_path / "empty.gguf") as writer:
            writer.add_metadata_of(reader)
            for name, info in reader.tensors.items():
                if name == empty:
                    writer.add_tensor(name, b"", info.type, (info.ne[0], 0))
                else:
                    writer.add_tensor(name, reader.data(name), info.type, info.ne)
        with pytest.raises(ModelError, match=empty):
            ggplug_models.load(tmp_path / "empty.gguf", ["CPU"])


def test_a_string_that_is_not_utf_8_is_an_error_that_names_its_key(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    with GGUFWriter(path) as writer:
        writer.add("general.architecture", "bert")
    path.write_bytes(path.read_bytes().replace(b"bert", b"b\xffrt"))
    with pytest.raises(GGUFError, match=r"general\.architecture"):
        ggplug_models.load(path, ["CPU"])


# -- facts of a file -------------------------------------------------------------------------------


def test_a_model_knows_the_number_of_its_parameters_and_the_type_of_its_file(data: Path) -> None:
    with GGUFReader(data / "qwen3.gguf") as reader:
        count = sum(info.n_elements for info in reader.tensors.values())
    for pack in (True, False):
        with ggplug_models.load(data / "qwen3.gguf", ["CPU"], pack=pack) as model:
            assert (model.n_params, model.file_type) == (count, "F16")


@pytest.mark.parametrize(("number", "name"), [(15, "Q4_K_M"), (32, "BF16"), (999, None), (None, None)])
def test_the_type_of_a_file_is_named_as_llama_cpp_names_it(number: int | None, name: str | None) -> None:
    metadata = {"general.architecture": "any"} | ({} if number is None else {"general.file_type": number})
    with Model(Context(), metadata, [gg.device("CPU")]) as model:
        assert (model.file_type, model.n_params) == (name, 0)


def test_a_type_of_a_file_that_is_no_number_is_an_error_that_names_its_key() -> None:
    metadata = {"general.architecture": "any", "general.file_type": "Q4_0"}
    refused = pytest.raises(ModelError, match=r"general\.file_type must be an integer")
    with Model(Context(), metadata, [gg.device("CPU")]) as model, refused:
        _ = model.file_type


# -- reading values --------------------------------------------------------------------------------


def test_an_error_says_file_key_and_what_is_wanted() -> None:
    values = Values({"a": "five", "list": [{}, {"b": 1.5}], "inner": {"c": None}}, where="config.json")
    with pytest.raises(ModelError, match=r"^config\.json: a must be an integer of at least 1, got 'five'$"):
        values.integer("a")
    with pytest.raises(ModelError, match=r"^config\.json: b is missing; it must be a string$"):
        values.text("b")
    with pytest.raises(ModelError, match=r"^config\.json: list\[1\]: b must be an integer from 0 to 5, got 1\.5$"):
        values.objects("list")[1].integer("b", at_least=0, at_most=5)
    with pytest.raises(ModelError, match=r"^config\.json: inner: c is missing"):
        values.inner("inner").number("c")
    assert values.integer("missing", None) is None
    assert "missing" not in values


def test_numbers_of_numpy_are_numbers() -> None:
    values = Values({"i": np.int64(5), "f": np.float32(0.5), "b": np.bool_(True)})
    assert (values.integer("i"), values.number("f"), values.boolean("b")) == (5, 0.5, True)
    assert [type(x) for x in (values.integer("i"), values.number("f"), values.boolean("b"))] == [int, float, bool]
