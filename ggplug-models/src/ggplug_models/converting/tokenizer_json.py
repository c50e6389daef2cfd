"""What a ``tokenizer.json`` of byte pairs says that llama.cpp has no keys for.

llama.cpp's converter ignores all of it.  Here it is written under keys of ggplug's, which llama.cpp ignores, or it is
refused, because the file would give other tokens for the same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.byte_pairs import FORM, FORMS, LETTERS, WHOLE_WORDS
from ggplug_models.tokenizers.vocabulary import SPACE, STRIPS, STRIPS_LEFT, STRIPS_RIGHT

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
    return {FORM: form, WHOLE_WORDS: model.boolean("ignore_merges", False), **_added(description, n_vocab)}


def of_text(description: Values, n_vocab: int) -> dict[str, Any]:
    """The keys of ggplug's of a tokenizer whose tokens are text, with U+2581 for spaces.  Raises ModelError."""
    _merges_alone(description.inner("model"))
    for step in normalizers(description):
        if step.text("type", one_of=("Prepend", "Replace")) == "Prepend":
            step.text("prepend", one_of=(SPACE,))
        else:
            step.inner("pattern").text("String", one_of=(" ",))
            step.text("content", one_of=(SPACE,))
    return _added(description, n_vocab)


def puts_space(description: Values) -> bool:
    """Whether a tokenizer whose tokens are text puts a space before texts."""
    if any(step.text("type", "") == "Prepend" for step in normalizers(description)):
        return True
    spaces = [step for step in _pre_tokenizers(description) if step.text("type", "") == "Metaspace"]
    return any(
        step.text("prepend_scheme", "always" if step.boolean("add_prefix_space", True) else "never") != "never"
        for step in spaces
    )


def drops_spaces(description: Values) -> bool:
    """Whether a tokenizer splits texts at white space, of which it keeps nothing but that there is some."""
    return any(step.text("type", "") == "WhitespaceSplit" for step in _pre_tokenizers(description))


def _pre_tokenizers(description: Values) -> Iterator[Values]:
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


def _added(description: Values, n_vocab: int) -> dict[str, Any]:
    """The white space that added tokens remove from the text around them, if any does."""
    strips = np.zeros(n_vocab, np.uint8)
    for entry in description.objects("added_tokens", []):
        token = entry.integer("id", at_least=0)
        if token >= n_vocab:
            continue  # the weights have no embedding for it
        if entry.boolean("single_word", False):
            raise entry.refused("single_word", "false: in GGUF files, tokens are also found within words")
        strips[token] = entry.boolean("lstrip", False) * STRIPS_LEFT + entry.boolean("rstrip", False) * STRIPS_RIGHT
    return {STRIPS: strips} if strips.any() else {}
