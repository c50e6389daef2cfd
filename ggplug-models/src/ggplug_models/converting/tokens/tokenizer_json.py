"""What a ``tokenizer.json`` says that llama.cpp has no keys for.

llama.cpp's converter ignores all of it.  Here it is written under keys of ggplug's, which llama.cpp ignores, or it is
refused, because the file would give other tokens for the same text.
"""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np

from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.byte_pairs import FORM, FORMS, LETTERS, WHOLE_WORDS
from ggplug_models.tokenizers.charsmap import CHARSMAP
from ggplug_models.tokenizers.unigram import BYTES
from ggplug_models.tokenizers.vocabulary import (
    LATE,
    MERGING,
    PREPENDS,
    SPACE,
    SPACE_PREFIX,
    STRIPS,
    STRIPS_LEFT,
    STRIPS_RIGHT,
    TRIMS,
)

_NEVER_IN_UTF_8 = {0xC0, 0xC1, *range(0xF5, 0x100)}


def of_bytes(description: Values, n_vocab: int) -> dict[str, Any]:
    """The keys of ggplug's of a tokenizer whose tokens are bytes.  Raises ModelError."""
    model = description.inner("model")
    _merges_alone(model)
    words = model.inner("vocab").values
    if any(letter not in words for letter, byte in LETTERS.items() if byte not in _NEVER_IN_UTF_8):
        _unset(model, "unk_token", "null, because not every byte is a token, and GGUF has no other token for them")
    steps = list(normalizers(description))
    for step in steps:
        step.text("type", one_of=FORMS)
    if len(steps) > 1:
        raise description.refused("normalizer", f"one of {', '.join(FORMS)} alone")
    form = steps[0].text("type") if steps else None
    for _, entry in added_tokens(description, n_vocab):
        text = entry.text("content")
        if text in words and LETTERS.keys() >= set(text) and not text.isascii():
            raise entry.refused("content", "no token of the vocabulary, whose letters stand for other bytes")

    def changes(entry: Values) -> bool:
        """Whether a token is found elsewhere in texts of the form than in texts as they are."""
        text = entry.text("content")
        return form in ("NFKC", "NFKD") or (form in FORMS and unicodedata.normalize(form, text) != text)  # type: ignore[arg-type]

    added = _added(description, n_vocab, changes, follows=True)
    return {FORM: form, WHOLE_WORDS: model.boolean("ignore_merges", False), **added}


def of_merges(description: Values, n_vocab: int, made: Iterable[str]) -> dict[str, Any]:
    """As :func:`of_text`, for tokens that merges make.  Raises ModelError."""
    model = description.inner("model")
    if model.boolean("ignore_merges", False):
        raise model.refused("ignore_merges", "false: GGUF files whose tokens are text have no key for it")
    check_bytes(model, model.inner("vocab").values)
    return of_text(description, n_vocab, made)


def check_bytes(model: Values, texts: Collection[str]) -> None:
    """Raises ModelError if a byte has neither a token of its own nor one as a character."""
    spelt = (byte for byte in range(256) if byte not in _NEVER_IN_UTF_8 and not (byte < 0x80 and chr(byte) in texts))
    missing = next((byte for byte in spelt if f"<0x{byte:02X}>" not in texts), None)
    if missing is not None:
        raise model.refused("vocab", f"one with a token for each byte, of which <0x{missing:02X}> is missing")


def of_text(description: Values, n_vocab: int, made: Iterable[str]) -> dict[str, Any]:
    """The keys of a tokenizer whose tokens are text, with U+2581 for spaces, beyond the tokens.  Raises ModelError.

    ``made``: the tokens of several characters.
    """
    _merges_alone(description.inner("model"))
    kinds = []
    for step in normalizers(description):
        kinds.append(step.text("type", one_of=("Prepend", "Replace")))
        if kinds[-1] == "Prepend":
            step.text("prepend", one_of=(SPACE,))
        else:
            step.inner("pattern").text("String", one_of=(" ",))
            step.text("content", one_of=(SPACE,))
    if kinds.count("Prepend") > 1:
        raise description.refused("normalizer", "one that puts one space before texts")
    steps = [step for step in pre_tokenizers(description) if "Replace" not in kinds or not _splits_at_spaces(step)]
    if len(steps) > 1 or any(step.text("type") != "Metaspace" for step in steps):
        raise description.refused("pre_tokenizer", "null or Metaspace alone: GGUF files have no key for others")
    if not steps and "Replace" not in kinds:
        raise description.refused("pre_tokenizer", "Metaspace, because the normalizer replaces no spaces")
    if steps and _metaspace(steps[0]) and any(SPACE in token[1:] for token in made):
        raise steps[0].refused("split", "false, because some tokens have spaces within them")
    spaces = {SPACE_PREFIX: True} if "Prepend" in kinds else _prefix(steps)

    def changes(entry: Values) -> bool:
        """Whether the normalizer changes the spaces before a token, or those that the token removes."""
        strips = entry.boolean("lstrip", False) or entry.boolean("rstrip", False)
        return "Prepend" in kinds or ("Replace" in kinds and strips)

    return spaces | _added(description, n_vocab, changes, follows="Replace" in kinds and PREPENDS not in spaces)


def of_unigrams(description: Values, n_vocab: int, listed: Iterable[str]) -> dict[str, Any]:
    """The keys of a tokenizer of unigrams beyond the tokens, which are ``listed``.  Raises ModelError."""
    *before, spaces = list(pre_tokenizers(description)) or [Values({})]
    in_words = [step.text("type") for step in before] == ["WhitespaceSplit"]
    if not (in_words or not before) or spaces.text("type", None) != "Metaspace":
        raise description.refused("pre_tokenizer", "Metaspace, or WhitespaceSplit and Metaspace")
    steps = [step for step in normalizers(description) if not _keeps_all(step)]
    kinds = [step.text("type", one_of=("Precompiled", "Strip", "Replace")) for step in steps]
    table = {}
    if kinds[:1] == ["Precompiled"]:
        table, kinds = _table(steps.pop(0)), kinds[1:]
    if kinds not in ([], ["Strip", "Replace"], ["Replace"]):
        raise description.refused("normalizer", "Precompiled, or with Strip and Replace of several spaces behind it")
    for step in steps:
        if step.text("type") == "Replace":
            step.inner("pattern").text("Regex", one_of=(" {2,}",))
            step.text("content", one_of=(" ",) if in_words else (" ", SPACE))
        elif step.boolean("strip_left", False):
            raise step.refused("strip_left", "false: GGUF files of unigrams have no key for it")
    drops = in_words or kinds == ["Strip", "Replace"]
    crossing = f"[^{SPACE}]{SPACE}" if drops else f".{SPACE}"
    if _metaspace(spaces) and any(re.search(crossing, token, re.DOTALL) for token in listed):
        raise spaces.refused("split", "false, because some tokens have spaces within them")
    found = _prefix([spaces])
    if drops and found.get(PREPENDS) not in (("always",) if in_words else ("always", "first")):
        wanted = "'always', because WhitespaceSplit keeps no other spaces" if in_words else "'always' or 'first'"
        raise spaces.refused("prepend_scheme", wanted)
    if in_words:
        found[PREPENDS] = "words"
    elif kinds == ["Replace"]:
        if found.get(PREPENDS) != "always":
            raise spaces.refused("prepend_scheme", "'always', because the normalizer keeps spaces at the end")
        found[PREPENDS] = MERGING
    added = _added(description, n_vocab, lambda entry: False, follows=False)
    spells = description.inner("model").boolean("byte_fallback", False)
    return {**found, TRIMS: in_words or bool(kinds), **table, **added, BYTES: spells or None}


def _keeps_all(step: Values) -> bool:
    sides = ("strip_left", "strip_right")
    return step.text("type") == "Strip" and not any(step.boolean(side, False) for side in sides)


def _table(step: Values) -> dict[str, Any]:
    """The table of characters of a normaliser."""
    try:
        content = base64.b64decode(step.text("precompiled_charsmap"), validate=True)
    except ValueError:
        raise step.refused("precompiled_charsmap", "a table in base 64") from None
    return {CHARSMAP: np.frombuffer(content, np.uint8)}


def _splits_at_spaces(step: Values) -> bool:
    """Whether a step only splits at spaces, of which there are none after a normalizer that replaces them."""
    if step.text("type") != "Split" or step.boolean("invert", False):
        return False
    return bool(step.inner("pattern").values.get("String") == " ")


def _metaspace(step: Values) -> bool:
    """Whether a step Metaspace splits texts before each space."""
    step.text("replacement", SPACE, one_of=(SPACE,))
    return step.boolean("split", True)


def _prefix(steps: Iterable[Values]) -> dict[str, Any]:
    """The keys of a space before texts, as the step Metaspace says, if there is one."""
    for step in steps:
        adds = step.boolean("add_prefix_space", True)
        scheme = step.text("prepend_scheme", "always" if adds else "never", one_of=("always", "first", "never"))
        if scheme != "never":
            return {SPACE_PREFIX: True, PREPENDS: scheme}
    return {SPACE_PREFIX: False}


def pre_tokenizers(description: Values) -> Iterator[Values]:
    """The steps of the pre-tokenizer."""
    return _steps(description, "pre_tokenizer", "pretokenizers")


def normalizers(description: Values) -> Iterator[Values]:
    """The steps of the normalizer."""
    return _steps(description, "normalizer", "normalizers")


def _steps(description: Values, key: str, inner: str) -> Iterator[Values]:
    if key in description:
        yield from _flat(description.inner(key), inner)


def _flat(step: Values, inner: str) -> Iterator[Values]:
    if step.text("type") != "Sequence":
        yield step
        return
    for each in step.objects(inner):
        yield from _flat(each, inner)


def _merges_alone(model: Values) -> None:
    """Checks that nothing but merges makes tokens of words."""
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        _unset(model, key, "null, because GGUF files have no key for it")
    if model.number("dropout", 0.0):
        raise model.refused("dropout", "null or 0: with another number tokens are random")


def _unset(model: Values, key: str, wanted: str) -> None:
    if model.text(key, None):
        raise model.refused(key, wanted)


def added_tokens(description: Values, n_vocab: int) -> Iterator[tuple[int, Values]]:
    """The ids and entries of the added tokens for which the weights have embeddings."""
    for entry in description.objects("added_tokens", []):
        if (token := entry.integer("id", at_least=0)) < n_vocab:
            yield token, entry


def _added(description: Values, n_vocab: int, changes: Callable[[Values], bool], *, follows: bool) -> dict[str, Any]:
    """The keys of added tokens: the white space that they remove, and which are searched in normalised texts.

    ``changes``: whether that makes a difference for such a token; it does, too, where another token is within its text.
    ``follows``: whether files can say it.  Raises ModelError.
    """
    late: list[int] = []
    early = {
        entry.text("content")
        for _, entry in added_tokens(description, n_vocab)
        if not entry.boolean("normalized", False)
    }
    different = False
    for token, entry in added_tokens(description, n_vocab):
        if entry.boolean("normalized", False):
            late.append(token)
            if changes(entry) or not early.isdisjoint(_within(entry.text("content"))):
                different = True
                if not follows:
                    raise entry.refused("normalized", "false: GGUF files have no key for it with such a normalizer")
    return strips(added_tokens(description, n_vocab), n_vocab) | (
        {LATE: np.array(late, np.uint32)} if different else {}
    )


def strips(entries: Iterable[tuple[int, Values]], n_vocab: int) -> dict[str, Any]:
    """The white space that added tokens, by their ids, remove from the text around them, if any does.

    Raises ModelError for one that is not found within words.
    """
    found = np.zeros(n_vocab, np.uint8)
    for token, entry in entries:
        if entry.boolean("single_word", False):
            raise entry.refused("single_word", "false: in GGUF files, tokens are also found within words")
        left, right = entry.boolean("lstrip", False), entry.boolean("rstrip", False)
        found[token] = left * STRIPS_LEFT + right * STRIPS_RIGHT
    return {STRIPS: found if found.any() else None}


def _within(text: str) -> Iterator[str]:
    return (text[begin:end] for begin in range(len(text)) for end in range(begin + 1, len(text) + 1))
