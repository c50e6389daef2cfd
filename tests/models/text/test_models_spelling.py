"""The tokens of an answer are parts of its text: joined, their texts are the text, and their bytes its bytes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from ggplug_models import load_tokenizer
from ggplug_models.generation.detokenizer import Detokenizer
from ggplug_models.tokenizers import Tokenizer

WORDS = ["\u2581", "\u2581the", "\u2581a", "st", "op", "\u00e9", "\u65e5\u672c", "x</", "s>y", "."]
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS, "<|user|>"]
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": np.array([2, 3, 3, *[6] * 256, *[1] * len(WORDS), 3], np.int32),
    "tokenizer.ggml.scores": np.zeros(len(TOKENS), np.float32),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(METADATA)


def ids(*words: str | int) -> list[int]:
    """Token ids of words, and of bytes by their numbers."""
    return [3 + word if isinstance(word, int) else TOKENS.index(word) for word in words]


def written(tokenizer: Tokenizer, tokens: list[int], stop: list[str], *, begins: bool) -> tuple[str, list[Any]]:
    """The text of tokens, and its tokens; what was given so far is never less than what these are."""
    writer = Detokenizer(tokenizer, stop, begins=begins, keep_texts=True)
    text = ""
    for token in tokens:
        text += writer.push(token)
        assert text.startswith("".join(each.text for each in writer.token_texts))
    text += writer.finish()
    assert "".join(each.text for each in writer.token_texts) == text
    return text, writer.token_texts


CASES = [
    (["\u2581the", "\u2581a"], [], ["the", " a"]),
    (["\u2581", "\u2581a", "."], [], ["", " a", "."]),
    ([0xC3, 0xA9, "."], [], ["", "\u00e9", "."]),
    (["<|user|>", "\u2581the", "<|user|>", "."], [], ["", "the", "", "."]),
    ([".", 0xE6, 0x97], [], [".", "", "\ufffd"]),
    ([0xE6, "st"], [], ["", "\ufffdst"]),
    ([".", 0xE6, "<|user|>"], [], [".", "", "\ufffd"]),
    (["\u2581a", "st", "op", "."], ["stop"], ["a"]),
    (["\u2581a", "x</", "s>y", "."], ["</s>"], ["a", "x"]),
    (["\u2581a", "x</", "."], ["</s>"], ["a", "x</", "."]),
    (["\u2581a", "x</"], ["</s>"], ["a", "x</"]),
    (["\u2581a", 0xC3, 0xA9, "op"], ["\u00e9op"], ["a"]),
    (["\u65e5\u672c", "."], ["\u672c"], ["\u65e5"]),
    (["x</", "s>y"], ["x"], []),
]


@pytest.mark.parametrize(("words", "stop", "wanted"), CASES, ids=[f"{n}" for n in range(len(CASES))])
def test_tokens_are_parts_of_the_text(
    tokenizer: Tokenizer, words: list[Any], stop: list[str], wanted: list[str]
) -> None:
    text, parts = written(tokenizer, ids(*words), stop, begins=True)
    assert [each.text for each in parts] == wanted
    if "\ufffd" not in text:
        assert b"".join(each.data for each in parts) == text.encode()


def test_whatever_the_text_and_wherever_it_ends(tokenizer: Tokenizer) -> None:
    chance = random.Random(5)
    pieces = [ids(0xC3, 0xA9), ids(0xE6, 0x97, 0xA5), ids(0xE6), ids("<|user|>"), *map(ids, WORDS)]
    stops = [[], ["stop"], ["</s>"], ["\u00e9s"], ["a.", " the"], ["\u65e5"]]
    ended = 0
    for _ in range(3000):
        tokens = [token for _ in range(chance.randrange(1, 9)) for token in chance.choice(pieces)]
        stop, begins = chance.choice(stops), chance.random() < 0.5
        text, parts = written(tokenizer, tokens, stop, begins=begins)
        whole = tokenizer.decode(tokens, skip_special=True) if begins else None
        if whole is not None:
            cuts = [place for each in stop if (place := whole.find(each)) >= 0]
            assert text == whole[: min(cuts, default=len(whole))]
            ended += bool(cuts)
        if "\ufffd" not in text:
            assert b"".join(each.data for each in parts) == text.encode()
    assert ended > 100
