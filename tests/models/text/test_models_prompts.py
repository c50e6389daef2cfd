"""Texts that models read have special tokens by their names, whichever way they come in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from word_models import with_vocabulary

import ggplug_models
from ggplug.errors import ModelError
from ggplug_models import load_tokenizer
from ggplug_models.commands.chat import Chat
from ggplug_models.commands.tokenize import tokenize
from ggplug_models.networks.decoder import Decoder
from ggplug_models.sampling import Sampler, Sampling
from ggplug_models.tokenizers import Tokenizer
from ggplug_models.tokenizers.encoders import VocabularyTokenizer

TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "<|user|>"]
TOKENS += [f"[PAD{n}]" for n in range(len(TOKENS), 300)]
BOS, EOS, A, USER = 1, 2, 260, 262
THREE = "</s></s></s>"
VOCABULARY: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": np.array([2, 3, 3, *[6] * 256, *[1] * 3, 3, *[5] * 37], np.int32),
    "tokenizer.ggml.scores": np.zeros(len(TOKENS), np.float32),
    "tokenizer.ggml.add_space_prefix": False,
}


def tokenizer(*, bos: bool = False, eos: bool = False) -> Tokenizer:
    return load_tokenizer({**VOCABULARY, "tokenizer.ggml.add_bos_token": bos, "tokenizer.ggml.add_eos_token": eos})


@pytest.fixture(scope="module")
def path(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small language model with that vocabulary, which wants BOS."""
    path = tmp_path_factory.mktemp("prompts") / "special.gguf"
    return with_vocabulary(data / "qwen3.gguf", path, {**VOCABULARY, "tokenizer.ggml.add_bos_token": True})


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Decoder]:
    with ggplug_models.load(path, ["CPU"]) as loaded:
        yield loaded


def test_names_of_special_tokens_in_a_prompt_are_these_tokens() -> None:
    assert tokenizer().prompt(THREE) == [EOS, EOS, EOS]
    assert tokenizer().prompt("<|user|>a</s>") == [USER, A, EOS]


def test_bos_begins_a_prompt_once_and_nothing_ends_it() -> None:
    found = tokenizer(bos=True, eos=True)
    assert found.prompt("a") == found.prompt("<s>a") == [BOS, A]
    assert found.prompt("<s><s>a") == [BOS, BOS, A]
    assert tokenizer().prompt("<s>a") == [BOS, A]
    assert found.prompt("") == [BOS]


def test_every_way_to_go_on_with_a_text_reads_the_same_tokens(
    path: Path, model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi")
    from ggplug_models.serve.apis import completions
    from ggplug_models.serve.writer import Writer

    read: list[list[int]] = []

    def kept(prompt: list[int], *arguments: Any, **options: Any) -> Iterator[int]:
        read.append(list(prompt))
        return iter(())

    monkeypatch.setattr(model, "generate_ids", kept)
    assert "".join(model.generate("<|user|>a" + THREE)) == ""
    with model.session(64) as session:
        list(Chat(model, session, Sampler(Sampling())).complete("<|user|>a" + THREE))
    writer = Writer(model, slots=1)
    try:
        (text,) = writer.texts(completions.ask(writer, completions.CompletionBody(prompt="<|user|>a" + THREE)))
        read.append(text.prompt)
    finally:
        writer.close()
    printed = CliRunner().invoke(tokenize, [str(path), "<|user|>a" + THREE, "--json"])
    read.append(json.loads(printed.output)["ids"])
    assert read == [[BOS, USER, A, EOS, EOS, EOS]] * 4


def test_a_vocabulary_with_fewer_tokens_than_the_weights_is_refused_for_texts(data: Path, tmp_path: Path) -> None:
    fewer = {
        "tokenizer.ggml.tokens": TOKENS[:263],
        "tokenizer.ggml.token_type": VOCABULARY["tokenizer.ggml.token_type"][:263],
        "tokenizer.ggml.scores": np.zeros(263, np.float32),
    }
    path = with_vocabulary(data / "qwen3.gguf", tmp_path / "fewer.gguf", VOCABULARY | fewer)
    with ggplug_models.load(path, ["CPU"]) as model:
        with pytest.raises(ModelError, match="tokens has 263 tokens, but the weights have 300"):
            model.generate("a")
        assert model.logits([USER]).shape == (1, 300)


def test_texts_to_embed_have_special_tokens_too() -> None:
    made = VocabularyTokenizer(tokenizer(bos=True), 16, len(TOKENS))
    assert made.encode([f"a{THREE}"]) == made.encode_whole([f"a{THREE}"]) == [[BOS, A, EOS, EOS, EOS]]
