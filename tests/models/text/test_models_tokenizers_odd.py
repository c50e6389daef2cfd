"""Tokenisers take any text: what comes back is the text, and a run of one character costs what other texts cost."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import DATA
from test_models_tokenizers import KINDS, Recording

from ggplug.errors import ModelError
from ggplug_models import Tokenizer, load_tokenizer
from ggplug_models.tokenizers import pre_tokenizers as rows
from ggplug_models.tokenizers.byte_pairs import LETTERS

pytest.importorskip("tokenizers")

SPLITS = ["default", "llama-bpe", "gpt-4o", "deepseek-llm", "tiny_aya", "superbpe", "chameleon", "bloom"]

RECORDED = Recording(DATA / "tokenizers.json.xz")
OF_KINDS = {name: load_tokenizer(RECORDED.metadata(name)) for name in KINDS}
OF_BYTES = {pre: load_tokenizer(RECORDED.metadata("bytes", pre=pre)) for pre in SPLITS}

CHARACTERS = st.one_of(
    st.characters(),  # halves of surrogate pairs, too
    st.sampled_from("\0\ufffd\u2581\u0301\u200d\ufeff\U0001f600 \n\r\t1a'"),
)
TEXTS = st.one_of(
    st.text(CHARACTERS, max_size=40),
    st.builds(lambda unit, count: unit * count, st.text(CHARACTERS, min_size=1, max_size=3), st.integers(1, 200)),
    st.lists(st.sampled_from(["<s>", "</s>", "<|", "[CLS]", "<0x0A>", "1234567", "   ", "don't", "\n\n"])).map("".join),
)


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    ids = tokenizer.encode(text)
    assert all(0 <= token < tokenizer.n_vocab for token in ids)
    assert tokenizer.encode(text) == ids  # words that are known by now as well
    assert tokenizer.at_least(text) <= len(ids)
    return ids


@settings(max_examples=120, derandomize=True, deadline=None, database=None)
@given(TEXTS)
def test_any_text_comes_back_from_its_bytes(text: str) -> None:
    wanted = "".join("?" if "\ud800" <= each <= "\udfff" else each for each in text)
    for tokenizer in OF_BYTES.values():
        assert tokenizer.decode(encoded(tokenizer, text), clean=False) == wanted


@settings(max_examples=120, derandomize=True, deadline=None, database=None)
@given(TEXTS)
def test_any_text_has_ids_of_the_vocabulary(text: str) -> None:
    for tokenizer in OF_KINDS.values():
        ids = encoded(tokenizer, text)
        tokenizer.decode(ids).encode("utf-8")  # no halves of pairs
        stream, pieces = tokenizer.stream(), []
        for token in ids:
            pieces.append(stream.push(token))
        pieces.append(stream.finish())
        "".join(pieces).encode("utf-8")
        tokenizer.encode(text, add_special=True, parse_special=True)


def test_most_texts_are_known_to_have_many_tokens_before_they_are_made() -> None:
    for name, tokenizer in [*OF_BYTES.items(), ("llama", OF_KINDS["llama"]), ("rwkv", OF_KINDS["rwkv"])]:
        longest = max(tokenizer.vocabulary.texts, key=len)
        assert tokenizer.at_least("a" * 10_000) == -(-10_000 // len(longest)) or name == "rwkv"
        assert 10_000 / len(longest) <= tokenizer.at_least("a" * 10_000) <= 10_000
        assert tokenizer.at_least("") == 0


# -- long runs -----------------------------------------------------------------------------------------


def pieces(patterns: tuple[str, ...], text: str) -> list[str]:
    from tokenizers import Regex, pre_tokenizers

    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return [piece for piece, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]


def test_texts_that_are_composed_have_no_fewer_tokens_than_is_known_before() -> None:
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.normalizer.form": "NFC"}
    letters = {byte: letter for letter, byte in LETTERS.items()}
    first, second = (letters[byte] for byte in "\u01d5".encode())
    tokens = {"tokens": [*LETTERS, first + second], "merges": [f"{first} {second}"]}
    tokenizer = load_tokenizer(metadata | {f"tokenizer.ggml.{key}": value for key, value in tokens.items()})
    assert len(encoded(tokenizer, "U\u0308\u0304" * 100)) == 100


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("normalizer.form", "NFX"),
        ("token_strips", np.zeros(3, np.uint8)),
        ("ignore_merges", 1),
        ("prepend_scheme", "last"),
        ("normalized_token_ids", np.array([-1])),
        ("fixed_token_ids", np.array([-1])),
    ],
)
def test_odd_values_of_ggplugs_keys_are_named(key: str, value: Any) -> None:
    with pytest.raises(ModelError, match=f"tokenizer.ggml.{key} must be"):
        load_tokenizer(RECORDED.metadata("bytes", pre="gpt-2", **{key: value}))


@pytest.mark.parametrize(
    ("ours", "llama_cpps"),
    [
        (rows._THREES_FROM_THE_RIGHT, (r"\p{N}{1,3}(?=(?:\p{N}{3})*+(?!\p{N}))",)),
        ((r"\p{N}+", rows._ASCII_THREES), (r"\p{N}+", r"(?=([0-9]{3})+(?![0-9]))")),
    ],
    ids=["all numbers", "ASCII"],
)
def test_digits_are_cut_into_threes_from_the_right(ours: tuple[str, ...], llama_cpps: tuple[str, ...]) -> None:
    drawn = random.Random(1)
    for _ in range(3000):
        text = "".join(drawn.choices("123½３a .", [4, 4, 4, 1, 1, 1, 1, 1], k=drawn.randint(1, 16)))
        assert pieces(ours, text) == pieces(llama_cpps, text), text


@pytest.mark.parametrize("name", [*SPLITS, *KINDS])
@pytest.mark.parametrize("unit", ["1", "a", " ", "\n", "th"])
def test_a_run_of_a_hundred_thousand_characters_has_ids(name: str, unit: str) -> None:
    """Time that is quadratic in it would be minutes."""
    tokenizer: Any = OF_BYTES.get(name) or OF_KINDS[name]
    text = unit * (100_000 // len(unit))
    ids = tokenizer.encode(text)
    assert tokenizer.at_least(text) <= len(ids)
    if name in SPLITS:
        assert tokenizer.decode(ids, clean=False) == text
