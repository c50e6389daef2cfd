"""Tokenisers of GGUF files: the ids that llama.cpp gives, and the text back.

``tests/data/tokenizers.json.xz`` was recorded from llama.cpp (commit 0c1e570) by ``llama_tokenize``, with small
vocabularies: the first merges of GPT-2, in one file for each ``tokenizer.ggml.pre``; the beginnings of the vocabularies
of Llama 2, Phi-3 and BGE; a unigram vocabulary that SentencePiece made; one of RWKV's form; and one of random tokens
with equal scores.  The complete vocabularies are used where they are.
"""

from __future__ import annotations

import base64
import json
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import DATA

from ggplug.errors import ModelError, ParameterError
from ggplug.gguf import GGUFWriter
from ggplug_models import Tokenizer, load_tokenizer

pytest.importorskip("tokenizers")

COMPLETE = ["bert-bge", "gpt-2", "llama-spm", "phi-3", "qwen2"]
KINDS = ["bert", "llama", "phi-3", "rwkv", "t5", "t5-spaces", "ties"]


class Recording:
    """What llama.cpp gave.  ``split``: by ``tokenizer.ggml.pre``; ``ids``: by vocabulary."""

    def __init__(self, path: Path) -> None:
        made = json.loads(lzma.decompress(path.read_bytes()))
        self.texts: list[str] = made["texts"]
        self.split: dict[str, Any] = made["split"]
        self.split_ids: list[list[list[int]]] = made["split_ids"]
        self.ids: dict[str, Any] = made["ids"]
        self._vocabularies = made["vocabularies"]

    def metadata(self, name: str, **changed: Any) -> dict[str, Any]:
        """Metadata of a vocabulary; ``pre="x"`` changes ``tokenizer.ggml.pre``, and None takes a key away."""
        found = {key: _array(value) for key, value in self._vocabularies[name].items()}
        found |= {f"tokenizer.ggml.{key}": value for key, value in changed.items()}
        return {key: value for key, value in found.items() if value is not None}


def _array(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "base64" in value:
        return np.frombuffer(base64.b64decode(value["base64"]), value["dtype"])
    return np.array(value["values"], value["dtype"])


@pytest.fixture(scope="module")
def recorded() -> Recording:
    return Recording(DATA / "tokenizers.json.xz")


def names_of_pre() -> list[str]:
    return sorted(Recording(DATA / "tokenizers.json.xz").split)


# -- the ids of llama.cpp ------------------------------------------------------------------------------


@pytest.mark.parametrize("pre", names_of_pre())
def test_each_way_of_splitting_gives_the_ids_of_llama_cpp(recorded: Recording, pre: str) -> None:
    recording = recorded.split[pre]
    tokenizer = load_tokenizer(recorded.metadata(recording["vocabulary"], pre=pre, model=recording["model"]))
    for text, ids, which in zip(recorded.texts, recorded.split_ids, recording["which"], strict=True):
        assert tokenizer.encode(text) == ids[which], text
    assert tokenizer.vocabulary.add_bos == recording["add_bos"]
    assert (-1 if tokenizer.bos is None else tokenizer.bos) == recording["bos"]


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_tokeniser_gives_the_ids_of_llama_cpp(recorded: Recording, name: str) -> None:
    recording = recorded.ids[name]
    tokenizer = load_tokenizer(recorded.metadata(name))
    texts = [*([] if name == "ties" else recorded.texts), *recording["own"]]
    for text, plain, special in zip(texts, recording["plain"], recording["special"], strict=True):
        assert tokenizer.encode(text) == plain, text
        assert tokenizer.encode(text, add_special=True, parse_special=True) == special, text
    info = recording["info"]
    assert sorted(tokenizer.ends) == info["eog"]
    assert [-1 if n is None else n for n in (tokenizer.bos, tokenizer.eos)] == [info["bos"], info["eos"]]
    # Of several tokens that could be it llama.cpp takes any one.
    assert tokenizer.eot in tokenizer.ends if info["eot"] >= 0 else tokenizer.eot is None
    assert (tokenizer.vocabulary.add_bos, tokenizer.vocabulary.add_eos) == (info["add_bos"], info["add_eos"])


@pytest.mark.parametrize("name", COMPLETE)
def test_the_complete_vocabularies_give_the_ids_that_were_recorded(shared: Path | None, name: str) -> None:
    if shared is None:
        pytest.skip("needs the complete recorded data")
    path = shared / "goldens" / "vocab" / f"ggml-vocab-{name}.gguf"
    tokenizer = load_tokenizer(path)
    texts = path.with_suffix(".gguf.inp").read_text("utf-8").split("\n__ggml_vocab_test__\n")[:-1]
    lines = path.with_suffix(".gguf.out").read_text("utf-8").split("\n")
    lossless = tokenizer.encode("A") != tokenizer.encode("a")
    for text, line in zip(texts, lines, strict=False):
        ids = [int(each) for each in line.split()]
        assert tokenizer.encode(text) == ids, text
        assert not lossless or tokenizer.decode(ids) == text
    extra = json.loads((path.parent / "extra.json").read_text("utf-8"))
    recording = extra["vocab"][path.name]
    for text, plain, special in zip(extra["texts"], recording["plain"], recording["special"], strict=True):
        assert tokenizer.encode(text) == plain, text
        assert tokenizer.encode(text, add_special=True, parse_special=True) == special, text
        assert not lossless or "\u2581" in text or tokenizer.decode(plain) == text


def test_a_tokenizer_is_loaded_from_a_file_with_only_a_vocabulary(recorded: Recording, tmp_path: Path) -> None:
    with GGUFWriter(tmp_path / "words.gguf") as writer:
        for key, value in recorded.metadata("llama").items():
            writer.add(key, value)
    tokenizer = load_tokenizer(tmp_path / "words.gguf")
    assert tokenizer.encode(recorded.texts[5]) == recorded.ids["llama"]["plain"][5]


def test_white_space_next_to_special_tokens_of_phi_3_belongs_to_them(recorded: Recording) -> None:
    tokenizer = load_tokenizer(recorded.metadata("phi-3"))
    end = tokenizer.encode("<|end|>", parse_special=True)
    assert tokenizer.encode("<|end|> \n", parse_special=True) == end
    other = load_tokenizer({**recorded.metadata("phi-3"), "general.name": "another"})
    assert len(other.encode("<|end|> \n", parse_special=True)) > len(end)


def test_halves_of_surrogate_pairs_count_as_question_marks(recorded: Recording) -> None:
    for name in KINDS:
        tokenizer = load_tokenizer(recorded.metadata(name))
        if name != "ties":
            assert tokenizer.encode("a\ud800b") == tokenizer.encode("a?b")


# -- text of tokens ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "phi-3", "rwkv", "bytes"])
def test_the_text_comes_back(recorded: Recording, name: str) -> None:
    tokenizer = load_tokenizer(recorded.metadata(name))
    for text in recorded.texts:
        assert "\u2581" in text or tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("name", ["llama", "bytes", "rwkv"])
def test_a_stream_of_tokens_never_splits_a_character(recorded: Recording, name: str) -> None:
    tokenizer = load_tokenizer(recorded.metadata(name))
    for text in recorded.texts:
        if "\u2581" in text or "\ufffd" in text:
            continue
        stream = tokenizer.stream()
        parts = [stream.push(token) for token in tokenizer.encode(text)]
        assert "".join(parts) == text
        assert not any("\ufffd" in part for part in parts)
        assert stream.finish() == ""


def test_a_stream_that_ends_within_a_character_says_so_at_its_end(recorded: Recording) -> None:
    tokenizer = load_tokenizer(recorded.metadata("bytes"))
    *ids, _ = tokenizer.encode("x\U0001f917")
    stream = tokenizer.stream()
    assert "".join(stream.push(token) for token in ids) == "x"
    assert stream.finish() == "\ufffd"


def test_what_continues_a_prompt_keeps_its_space(recorded: Recording) -> None:
    tokenizer = load_tokenizer(recorded.metadata("llama"))
    ids = tokenizer.encode("the")
    assert tokenizer.stream().push(ids[0]) == "the"
    assert tokenizer.stream(begins=False).push(ids[0]) == " the"


def test_what_continues_a_text_gets_no_space_before_it(recorded: Recording) -> None:
    tokenizer = load_tokenizer(recorded.metadata("llama"))
    ids = tokenizer.encode("the", begins=False)
    assert ids != tokenizer.encode("the")
    assert b"".join(map(tokenizer.piece, ids)) == b"the"


def test_control_tokens_are_omitted_on_request(recorded: Recording) -> None:
    tokenizer = load_tokenizer(recorded.metadata("phi-3"))
    ids = tokenizer.encode("<|user|>Hi<|end|>", add_special=True, parse_special=True)
    assert tokenizer.decode(ids, skip_special=True) == "Hi"
    assert tokenizer.decode(ids) == "<s><|user|> Hi<|end|>"


def test_spaces_are_removed_by_llama_cpps_rules_on_request(recorded: Recording) -> None:
    tokenizer = load_tokenizer(recorded.metadata("bytes"))
    ids = tokenizer.encode("Hi , it 's we 're ' x ' you 't . ok ?")
    assert tokenizer.decode(ids, clean=True) == "Hi, it's we're'x'you 't. ok?"


# -- hostile vocabularies ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("llama", {"tokens": None}, r"tokens is missing; it must be an array of at least 1 strings"),
        ("llama", {"tokens": np.arange(5)}, r"tokens must be an array of at least 1 strings"),
        ("llama", {"tokens": []}, r"tokens must be an array of at least 1 strings"),
        ("llama", {"tokens": ["a", "b"] * 2000}, r"tokens has duplicates: \[0\] and \[3998\] are both 'a'"),
        ("llama", {"token_type": np.ones(3, np.int32)}, r"token_type must be an array of 4000 integers"),
        ("llama", {"token_type": "normal"}, r"token_type must be an array of 4000 integers"),
        ("llama", {"token_type": np.full(4000, 6, np.int32)}, r"tokens\[0\] has the type byte, .*, got '<unk>'"),
        ("llama", {"scores": np.ones(3, np.float32)}, r"scores must be an array of 4000 finite numbers"),
        ("llama", {"scores": np.full(4000, np.nan, np.float32)}, r"scores must be an array of 4000 finite numbers"),
        ("llama", {"scores": ["high"] * 4000}, r"scores must be an array of 4000 finite numbers"),
        ("llama", {"model": None}, r"model is missing"),
        ("llama", {"model": "plan9"}, r"model is 'plan9', which is not known as a kind of tokenizer"),
        ("llama", {"bos_token_id": "one"}, r"bos_token_id must be an integer"),
        ("llama", {"add_bos_token": 1.5}, r"add_bos_token must be a boolean"),
        ("rwkv", {"model": "gpt2", "merges": ["a b"], "add_bos_token": True, "pre": "glm4"}, r"merges|no BOS token"),
        ("bytes", {"merges": None}, r"merges is missing"),
        ("bytes", {"merges": [1, 2]}, r"merges must be an array of at least 0 strings"),
        ("bytes", {"merges": ["t h", "Q7 xx"]}, r"merges\[1\] must be two tokens .*, got 'Q7 xx'"),
        ("bytes", {"merges": ["th"]}, r"merges\[0\] must be two tokens .*, got 'th'"),
        ("bytes", {"merges": ["Q Z"]}, r"merges\[0\] must be two tokens .*, got 'Q Z'"),
        ("bytes", {"pre": "my-own"}, r"pre is 'my-own', which is not known as a pre-tokenizer"),
        ("bytes", {"pre": 7}, r"pre must be a string"),
        ("t5", {"precompiled_charsmap": np.zeros(3, np.uint8)}, r"precompiled_charsmap has 3 bytes"),
        ("t5", {"precompiled_charsmap": np.full(99, 255, np.uint8)}, r"precompiled_charsmap has 99 bytes"),
        ("t5", {"precompiled_charsmap": "map"}, r"precompiled_charsmap must be an array of bytes"),
        (
            "bert",
            {"tokens": ["a"], "token_type": None, "unknown_token_id": None, "add_bos_token": False},
            r"unknown_token_id must be the id of a token",
        ),
    ],
)
def test_a_vocabulary_that_makes_no_sense_is_an_error_that_names_its_key(
    recorded: Recording, name: str, changed: dict[str, Any], message: str
) -> None:
    metadata = recorded.metadata(name, **{"pre": "gpt-2", **changed})
    with pytest.raises(ModelError, match=message):
        load_tokenizer(metadata)


def test_an_unknown_way_of_splitting_is_answered_with_the_known_ones(recorded: Recording) -> None:
    with pytest.raises(ModelError, match=r"supported are .*llama-bpe.*qwen2") as caught:
        load_tokenizer(recorded.metadata("bytes", pre="my-own"))
    assert caught.value.got == "my-own"


def test_a_table_of_replacements_that_leads_nowhere_is_an_error_when_it_is_used(recorded: Recording) -> None:
    table = recorded.metadata("t5")["tokenizer.ggml.precompiled_charsmap"].copy()
    table[4:8] = 255
    tokenizer = load_tokenizer(recorded.metadata("t5", precompiled_charsmap=table))
    with pytest.raises(ModelError, match=r"precompiled_charsmap is damaged: it refers to the entry \d+"):
        tokenizer.encode("a")


def test_special_ids_that_no_token_has_count_as_absent(recorded: Recording) -> None:
    tokenizer = load_tokenizer(recorded.metadata("llama", padding_token_id=4294967295, eos_token_id=-1))
    assert "pad" not in tokenizer.vocabulary.special
    assert tokenizer.eos == 2


def test_scores_may_be_absent(recorded: Recording) -> None:
    tokenizer = load_tokenizer(recorded.metadata("llama", scores=None))
    assert tokenizer.decode(tokenizer.encode("the text")) == "the text"


def test_a_text_that_no_token_stands_for_is_an_error(recorded: Recording) -> None:
    metadata = recorded.metadata("llama", tokens=["a", "b"], token_type=None, scores=None, add_bos_token=False)
    tokenizer = load_tokenizer({**metadata, "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.bos_token_id": 1})
    assert tokenizer.encode("c")[-1] == 0
    rwkv = load_tokenizer(recorded.metadata("rwkv", tokens=["a", "b"], token_type=None))
    with pytest.raises(ModelError, match="no token for the byte 0x63"):
        rwkv.encode("c")


def test_what_is_no_text_or_no_token_is_refused(recorded: Recording) -> None:
    tokenizer = load_tokenizer(recorded.metadata("llama"))
    with pytest.raises(ParameterError, match="the text to encode must be a string, got bytes"):
        tokenizer.encode(b"text")  # type: ignore[arg-type]
    for wrong in (-1, 4000):
        with pytest.raises(ParameterError, match=f"token ids are 0 to 3999, got {wrong}"):
            tokenizer.decode([wrong])


def test_a_vocabulary_of_many_entries_is_loaded() -> None:
    many = 300_000
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"\u2581w{n}" for n in range(many))],
        "tokenizer.ggml.token_type": np.array([2, 3, 3, *[3, 4] * (many // 2)], np.int32),
    }
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.encode("\u2581w7") == [10]


def test_texts_of_one_repeated_character_take_no_longer_than_others(recorded: Recording) -> None:
    for name in ("llama", "bytes", "bert", "t5"):
        tokenizer = load_tokenizer(recorded.metadata(name))
        for character in "a 1\n=":
            assert tokenizer.encode(character * 20_000) is not None


def test_without_the_library_an_error_says_how_to_get_it(recorded: Recording, tmp_path: Path) -> None:
    path = tmp_path / "words.gguf"
    with GGUFWriter(path) as writer:
        for key, value in recorded.metadata("bytes").items():
            writer.add(key, value)
    code = f"""
import sys
sys.modules["tokenizers"] = None
import ggplug_models
try:
    ggplug_models.load_tokenizer({str(path)!r})
except ggplug_models.tokenizers.tokenizer.ModelError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install tokenizers" in done.stdout


def test_a_tokeniser_says_what_it_is(recorded: Recording) -> None:
    tokenizer = load_tokenizer(recorded.metadata("llama"))
    assert isinstance(tokenizer, Tokenizer)
    assert repr(tokenizer) == "<Tokenizer SentencePieces: 4000 tokens>"
    assert tokenizer.n_vocab == 4000


PLAMO = {
    "a": -3.597,
    "b": -2.135,
    "ab": -5.357,
    "abc": -2.705,
    "bc": -1.732,
    "c": -5.418,
    "ca": -11.098,
    "cab": -9.805,
    " ": -9.417,
    "  ": -3.441,
    " a": -6.903,
    " the": -4.044,
    "the": -2.899,
    "th": -2.168,
    "he": -3.358,
    "e": -11.202,
    "t": -10.118,
    "日": -9.873,
    "本": -9.805,
    "日本": -3.128,
    "本語": -4.408,
    "語": -7.897,
    "日本語": -9.051,
    "\n": -10.401,
    "\n\n": -10.681,
    "x": -1.954,
    "é": -7.664,
    "ée": -8.389,
    "🙂": -6.565,
    "ba": -2.956,
    "aba": -6.209,
    "bab": -1.983,
    " ab": -11.28,
    "1": -10.52,
    "12": -7.024,
    "123": -4.303,
    "23": -10.998,
    "3": -7.296,
    "<": -10.705,
    "|": -10.328,
}
"""Tokens of a small vocabulary of PLaMo 2 with their scores; before them are four special tokens and 256 bytes."""

OF_PLAMO: dict[str, list[int]] = {
    "abcab": [263, 262],
    "abcabcab cab": [263, 263, 262, 268, 267],
    "the the  the": [272, 271, 269, 272],
    "\u65e5\u672c\u8a9e\u65e5\u672c\u672c\u8a9e": [282, 279, 280],
    "\xe9e\xe9 \U0001f642\U0001f643": [287, 286, 268, 288, 244, 163, 157, 135],
    "\n\n\na b": [284, 283, 260, 268, 261],
    "12312323": [295, 295, 296],
    "\ufeffab": [262],
    "ababababab": [290, 291, 260, 291],
    "zzz": [126, 126, 126],
    "x<|y|>x": [285, 298, 299, 125, 299, 66, 285],
    " ": [268],
    " \xa0\u65e5": [268, 198, 164, 277],
    "the\xe9\xe9e<\u672c\xe9e\U0001f642 ahe": [272, 286, 287, 298, 278, 287, 288, 270, 274],
    "tabcabba": [276, 263, 262, 289],
    "\u65e5112\xfcaba\u8a9e  thebc\xe9the": [277, 293, 294, 199, 192, 290, 281, 269, 272, 264, 286, 272],
}
"""The ids that llama.cpp (of llama-cpp-python 0.3.36) makes of texts with it."""


def plamo(tokens: list[str]) -> Tokenizer:
    scores = [PLAMO.get(each, 0.0) for each in tokens]
    return load_tokenizer(
        {
            "tokenizer.ggml.model": "plamo2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.array([2, 3, 3, 3] + [6] * 256 + [1] * len(PLAMO), np.int32)[: len(tokens)],
            "tokenizer.ggml.scores": np.array(scores, np.float32),
        }
    )


def test_plamos_tokens_are_those_of_llama_cpp() -> None:
    special = ["<unk>", "<bos>", "<eos>", "<pad>"]
    tokenizer = plamo([*special, *(f"<0x{byte:02X}>" for byte in range(256)), *PLAMO])
    for text, ids in OF_PLAMO.items():
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == text.removeprefix("\ufeff")
    with pytest.raises(ModelError, match=r"has no token <0x03> for a byte"):
        plamo([*special, *(f"<0x{byte:02X}>" for byte in range(3))])
