"""Texts that are embedded by a file's own vocabulary: their tokens, cut off where the model ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from oracles.packed import ORACLES

import ggplug_models
from ggplug.cli.app import app
from ggplug.errors import ModelError
from ggplug_models import LongText, load_tokenizer
from ggplug_models.tokenizers.encoders import VocabularyTokenizer

SPM: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b"],
    "tokenizer.ggml.token_type": np.array([2, 3, 3, *[6] * 256, *[1] * 3], np.int32),
    "tokenizer.ggml.scores": np.zeros(262, np.float32),
}


def made(max_length: int, n_vocab: int = 262, **more: Any) -> VocabularyTokenizer:
    return VocabularyTokenizer(load_tokenizer({**SPM, **more}), max_length, n_vocab)


@pytest.mark.parametrize("name", ["gemma-embedding", "modern-bert"])
def test_encoders_without_word_piece_embed_texts(name: str) -> None:
    path = ORACLES / f"{name}.gguf"
    texts = ["hello", "the thing in the air on the hat " * 20]
    tokenizer = load_tokenizer(path)
    ids = [tokenizer.encode(text, add_special=True)[:64] for text in texts]
    with ggplug_models.load(path, ["CPU"]) as model:
        found = model.embed(texts)
        assert np.array_equal(found, model.embed_ids(ids))
        for each, vector in zip(ids, found, strict=True):  # the first is filled up, far beyond the model's windows
            assert np.allclose(vector, model.embed_ids([each])[0], atol=1e-5)
    done = CliRunner().invoke(app, ["embed", str(path), "--device", "CPU"], input="hello\n")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["embedding"]) == model.n_embd


def test_what_ends_a_text_stays_where_the_text_is_cut() -> None:
    bos, eos, a, b = 1, 2, 260, 261
    spaces = {"tokenizer.ggml.add_space_prefix": False}
    both = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True, **spaces}
    assert made(8, **both).encode(["ab", "abababab", ""]) == [
        [bos, a, b, eos],
        [bos, a, b, a, b, a, b, eos],
        [bos, eos],
    ]
    one = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": False, **spaces}
    assert made(3, **one).encode(["abab", "a"]) == [[a, b, a], [a]]
    only_eos = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True, **spaces}
    assert made(3, **only_eos).encode(["abab"]) == [[a, b, eos]]


def test_of_a_long_text_only_the_beginning_is_read() -> None:
    read = 0

    def pieces() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "ab" * 500

    found = made(16).encode([LongText(pieces)])[0]
    assert len(found) == 16
    assert read == 1
    assert found == made(16).encode(["ab" * 5000])[0]


def test_an_id_that_the_model_does_not_know_is_an_error() -> None:
    with pytest.raises(ModelError, match="has the token id 261, but the model's vocabulary has 261 tokens") as caught:
        made(8, 261).encode(["ab"])
    assert (caught.value.got, caught.value.wanted) == (261, 261)


def test_a_language_model_keeps_what_ends_a_text(data: Path) -> None:
    with ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as model:
        tokenizer = model.tokenizer
        tokenizer.vocabulary.add_eos = True
        assert tokenizer.eos is not None
        long = "hello world " * model.n_ctx
        ids = [*tokenizer.encode(long, add_special=True)[: model.n_ctx - 1], tokenizer.eos]
        assert np.array_equal(model.embed([long]), model.embed_ids([ids]))
