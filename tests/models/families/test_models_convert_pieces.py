"""Folders with a SentencePiece model: its kind and its normaliser, and a ``tokenizer.json`` beside it.

The ids are those of the library ``sentencepiece`` (0.2.3) for the models that :func:`pieces` makes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from test_models_convert_families import FOLDERS, changed, made

import ggplug_models
from ggplug.errors import ModelError
from ggplug_models import load_tokenizer


def number(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + number(high) if high else bytes([low])


def field(place: int, value: int | float | bytes) -> bytes:
    """A field of a Protocol Buffers message."""
    if isinstance(value, float):
        return number(place << 3 | 5) + struct.pack("<f", value)
    return (
        number(place << 3 | 2) + number(len(value)) + value
        if isinstance(value, bytes)
        else number(place << 3) + number(value)
    )


def trainer(place: int, value: int) -> bytes:
    return field(2, field(place, value))


def normaliser(place: int, value: int | bytes) -> bytes:
    return field(3, field(place, value))


NAMED = {"<unk>": 2, "<s>": 3, "</s>": 3}
BYTES = {f"<0x{byte:02X}>": 6 for byte in range(256)}
WORDS = ("▁", "a", "b", "▁a", "ab", "▁ab", "ba", "aba")
UNIGRAM, CHARACTERS = trainer(3, 1), trainer(3, 4)
NO_SPACE, REMOVES = normaliser(3, 0), normaliser(4, 1)


def fixed(text: str) -> bytes:
    """A user-defined piece."""
    return field(1, field(1, text.encode()) + field(3, 4))


FIXED = fixed("Ab")


def table() -> bytes:
    """The table of the folder t5, which makes A, B and C lowercase: its only field of more than a thousand bytes."""
    content = (FOLDERS / "t5" / "spiece.model").read_bytes()
    begin = content.index(b"\x12\x8a\x08") + 3
    return content[begin : begin + 1034]


LOWERCASE = normaliser(2, table())


def pieces(*rules: bytes, spells: bool = True, words: Sequence[str] = WORDS) -> bytes:
    """A model of byte pairs that puts a space before texts and keeps all; later rules replace these.

    ``spells``: with tokens of bytes.
    """
    typed = {**NAMED, **(BYTES if spells else {})}
    scored = [
        *((text, 0.0, kind) for text, kind in typed.items()),
        *((text, -1.0 - n, 1) for n, text in enumerate(words)),
    ]
    listed = [field(1, field(1, text.encode()) + field(2, score) + field(3, kind)) for text, score, kind in scored]
    return b"".join([*listed, trainer(3, 2), trainer(35, int(spells)), normaliser(3, 1), normaliser(4, 0), *rules])


def folder_of(model: bytes, tmp_path: Path, **settings: Any) -> Path:
    folder = made("llama2", tmp_path)
    (folder / "tokenizer.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


TEXT = "Abab  ba éx ▁"


@pytest.mark.parametrize(
    ("rules", "spells", "of_text", "of_spaces"),
    [
        ((), True, "▁ <0x41> b ab ▁ ▁ ba ▁ <0xC3> <0xA9> <0x78> ▁ ▁", "▁ ▁ ▁"),
        ((UNIGRAM,), True, "▁ <0x41> b ab ▁ ▁ b a ▁ <0xC3> <0xA9> <0x78> ▁ ▁", "▁ ▁ ▁"),
        ((NO_SPACE,), True, "<0x41> b ab ▁ ▁ ba ▁ <0xC3> <0xA9> <0x78> ▁ ▁", "▁ ▁"),
        ((REMOVES,), True, "▁ <0x41> b ab ▁ ba ▁ <0xC3> <0xA9> <0x78>", ""),
        ((LOWERCASE,), True, "▁ab ab ▁ ▁ ba ▁ <0xC3> <0xA9> <0x78> ▁ ▁", "▁ ▁ ▁"),
        ((), False, "▁ <unk> b ab ▁ ▁ ba ▁ <unk> ▁ ▁", "▁ ▁ ▁"),
        ((UNIGRAM,), False, "▁ <unk> b ab ▁ ▁ b a ▁ <unk> ▁ ▁", "▁ ▁ ▁"),
        ((UNIGRAM, NO_SPACE), True, "<0x41> b ab ▁ ▁ b a ▁ <0xC3> <0xA9> <0x78> ▁ ▁", "▁ ▁"),
        ((UNIGRAM, REMOVES), True, "▁ <0x41> b ab ▁ b a ▁ <0xC3> <0xA9> <0x78>", ""),
        ((UNIGRAM, NO_SPACE, REMOVES, LOWERCASE), True, "ab ab ▁ b a ▁ <0xC3> <0xA9> <0x78>", ""),
        ((FIXED, LOWERCASE), True, "▁ Ab ab ▁ ▁ ba ▁ <0xC3> <0xA9> <0x78> ▁ ▁", "▁ ▁ ▁"),
        ((FIXED, LOWERCASE, UNIGRAM), True, "▁ Ab ab ▁ ▁ b a ▁ <0xC3> <0xA9> <0x78> ▁ ▁", "▁ ▁ ▁"),
        ((fixed("▁▁"), UNIGRAM), True, "▁ <0x41> b ab ▁▁ b a ▁ <0xC3> <0xA9> <0x78> ▁▁", "▁ ▁▁"),
        ((fixed("▁▁"),), True, "▁ <0x41> b ab ▁▁ ba ▁ <0xC3> <0xA9> <0x78> ▁▁", "▁▁ ▁"),
        ((fixed("éx"), UNIGRAM), True, "▁ <0x41> b ab ▁ ▁ b a ▁ éx ▁ ▁", "▁ ▁ ▁"),
        ((fixed("▁b"), UNIGRAM), True, "▁ <0x41> b ab ▁ ▁b a ▁ <0xC3> <0xA9> <0x78> ▁ ▁", "▁ ▁ ▁"),
        ((fixed("▁▁b"), UNIGRAM), True, "▁ <0x41> b ab ▁▁b a ▁ <0xC3> <0xA9> <0x78> ▁ ▁", "▁ ▁ ▁"),
    ],
)
def test_texts_have_the_tokens_of_sentencepiece(
    rules: tuple[bytes, ...], spells: bool, of_text: str, of_spaces: str, tmp_path: Path
) -> None:
    folder = folder_of(pieces(*rules, spells=spells), tmp_path)
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    texts = ours.vocabulary.texts
    assert [texts[token] for token in ours.encode(TEXT)] == of_text.split()
    assert [texts[token] for token in ours.encode("  ")] == of_spaces.split()
    assert [texts[token] for token in ours.encode("a", add_special=True)][:1] == ["<s>"]
    assert ours.encode("ab") + ours.encode(" ab", begins=False) == ours.encode("ab ab")
    assert ours.at_least(TEXT) <= len(ours.encode(TEXT))


def test_a_model_of_characters_has_a_token_for_each(tmp_path: Path) -> None:
    folder = folder_of(pieces(CHARACTERS, words="▁ab"), tmp_path)
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    assert ours.encode("ab  b") == [259, 260, 261, 259, 259, 261]


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ((trainer(3, 3),), r"trainer_spec\.model_type must be one of 1 \(unigrams\), .*, got 3"),
        ((trainer(24, 1),), r"trainer_spec\.treat_whitespace_as_suffix must be false, .*, got True"),
        ((normaliser(5, 0),), r"normalizer_spec\.escape_whitespaces must be true, .*, got False"),
        (
            (REMOVES, field(1, field(1, b"  ") + field(3, 4))),
            r"normalizer_spec\.remove_extra_whitespaces must be false, because .* piece '  ' has such spaces",
        ),
    ],
)
def test_rules_of_sentencepiece_that_files_cannot_say_are_refused(
    rules: tuple[bytes, ...], named: str, tmp_path: Path
) -> None:
    folder = folder_of(pieces(*rules), tmp_path)
    with pytest.raises(ModelError, match=rf"tokenizer\.model: {named}"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


def test_unigrams_of_t5_are_no_byte_pairs(tmp_path: Path) -> None:
    folder = made("t5", tmp_path)
    (folder / "spiece.model").write_bytes(pieces())
    with pytest.raises(ModelError, match=r"spiece\.model: .*model_type must be one of 1 \(unigrams\), got 2"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")


# -- a tokenizer.json beside it ----------------------------------------------------------------------

FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
LEFT, RIGHT = {"lstrip": True}, {"rstrip": True}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
PREPEND = {"type": "Prepend", "prepend": "▁"}
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
LEGACY = {"type": "Sequence", "normalizers": [PREPEND, SPACES]}


def beside(folder: Path, flags: dict[str, Any], **says: Any) -> tokenizers.Tokenizer:
    """Writes the ``tokenizer.json`` of :func:`pieces` with an added token, and returns it."""
    texts = [*NAMED, *BYTES, *WORDS, "<tool>"]
    model = {"type": "BPE", "byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    model |= {"vocab": {text: n for n, text in enumerate(texts)}}
    model |= {"merges": ["▁ a", "a b", "▁a b", "▁ ab", "b a", "ab a", "a ba"]}
    added = [{**FLAGS, "id": len(texts) - 1, "content": "<tool>", **flags}]
    whole = {"version": "1.0", "model": model, "normalizer": None, "pre_tokenizer": None, "added_tokens": added, **says}
    (folder / "tokenizer.json").write_text(json.dumps(whole), "utf-8")
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("says", [{"normalizer": LEGACY}, {"pre_tokenizer": METASPACE}, {"normalizer": SPACES}])
@pytest.mark.parametrize("flags", [{}, LEFT, RIGHT])
def test_spaces_are_those_of_the_tokenizer_beside_it(says: Any, flags: dict[str, Any], tmp_path: Path) -> None:
    folder = folder_of(pieces(REMOVES), tmp_path)
    theirs = beside(folder, flags, **says)
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    for text in (TEXT, "<tool> ab", "ab <tool>", " <tool> <tool>ba", "  ", "é<tool>"):
        assert ours.encode(text, parse_special=True) == theirs.encode(text).ids


@pytest.mark.parametrize(("flags", "settings"), [({}, RIGHT), (RIGHT, {}), (RIGHT, LEFT), (None, RIGHT)])
def test_the_settings_of_a_token_replace_those_in_the_tokenizer(
    flags: dict[str, Any] | None, settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = folder_of(pieces(), tmp_path)
    theirs = beside(folder, settings, normalizer=LEGACY)
    if flags is None:
        (folder / "tokenizer.json").unlink()
    else:
        beside(folder, flags, normalizer=LEGACY)
    token = theirs.token_to_id("<tool>")
    changed(folder, "tokenizer_config.json", added_tokens_decoder={token: {**FLAGS, "content": "<tool>", **settings}})
    ours = load_tokenizer(ggplug_models.convert(folder, tmp_path / "out.gguf"))
    assert ours.encode("ab <tool> ab") == theirs.encode("ab <tool> ab").ids


def test_what_a_tokenizer_beside_it_cannot_say_is_refused(tmp_path: Path) -> None:
    folder = folder_of(pieces(), tmp_path)
    beside(folder, {"single_word": True}, normalizer=LEGACY)
    with pytest.raises(ModelError, match=r"tokenizer\.json: added_tokens\[0\]: single_word must be false"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")
    (folder / "tokenizer.model").write_bytes(pieces(UNIGRAM))
    with pytest.raises(ModelError, match=r"tokenizer\.json: model: type must be one of Unigram, got 'BPE'"):
        ggplug_models.convert(folder, tmp_path / "out.gguf")
