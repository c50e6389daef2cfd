"""Whether the vocabulary of a file splits texts as the folder's ``tokenizer.json`` does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer as Whole

from ggplug.errors import ModelError
from ggplug_models.checks.ids import in_common
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.tokens.special import content
from ggplug_models.converting.tokens.tokenizer_json import added_tokens
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers import load_tokenizer
from ggplug_models.tokenizers.library import library
from ggplug_models.tokenizers.vocabulary import MODEL, TOKENS

NAME = "tokenizer.json"

_TEXTS = (
    "The quick brown fox can't jump over 12345 lazy dogs, twice!",
    " two  spaces   three ",
    "first line\n\n\tsecond = [1, 2.5] # line",
    "naïve Straße ÀÉ 日本語 हिन्दी Привет 🙂",
)
"""Texts with what tokenizers differ in: spaces, numbers, marks, lines, capitals, other alphabets."""

_SPACED = ("GPT2Tokenizer", "Qwen2Tokenizer")
"""The classes of byte pairs whose settings put a space before texts, whatever ``tokenizer.json`` says."""

_MOST = 4
"""How many added tokens of each kind stand in texts: vocabularies may have thousands that are alike."""

_SHOWN = 4
"""How many tokens an error shows."""


def check(folder: Folder, description: Values, metadata: Mapping[str, Any]) -> None:
    """Raises ModelError for a text that the file's vocabulary splits in another way.

    ``description``: ``tokenizer.json``; ``metadata``: of the file.  What is put around texts is not compared.
    """
    settings = folder.optional_json("tokenizer_config.json") or Values({})
    decoder = settings.inner("added_tokens_decoder", Values({}))
    listed = added_tokens(description, len(metadata[TOKENS]))  # the others are in neither
    added = [{**each.values, **decoder.inner(f"{token}", Values({})).values} for token, each in listed]
    with library(NAME):
        theirs = Whole.from_str(json.dumps({**description.values, "added_tokens": added}))
        theirs.no_padding()
        theirs.no_truncation()
    if settings.boolean("split_special_tokens", False):
        raise settings.refused("split_special_tokens", "false: with GGUF files special tokens of a prompt are tokens")
    spaced = settings.text("tokenizer_class", "").removesuffix("Fast") in _SPACED
    if spaced and metadata[MODEL] == "gpt2" and settings.boolean("add_prefix_space", False):
        raise settings.refused("add_prefix_space", "false: GGUF files of byte pairs have no key for it")
    if theirs.get_vocab_size() < len(metadata[TOKENS]):
        _check_named(folder, settings, theirs, {*metadata[TOKENS]})
    ours = load_tokenizer(metadata)
    for text in (*_TEXTS, *_with_tokens(added)):
        wanted = theirs.encode(text, add_special_tokens=False).ids
        found = [*ours.encode(text, parse_special=True)]
        if found != wanted:
            same = in_common(found, wanted)
            raise ModelError(
                f"{folder.path / NAME} splits texts in a way that GGUF files cannot say: after {same} tokens of "
                f"{text!r} come {wanted[same : same + _SHOWN]} there, and {found[same : same + _SHOWN]} with the file",
                got=found,
                wanted=wanted,
                remedy="docs/models.md says what files follow; another form of the same tokenizer may convert",
            )


def _check_named(folder: Folder, settings: Values, theirs: Whole, known: Collection[str]) -> None:
    """Raises ModelError for a token that only other files name, which transformers adds behind the others.

    ``known``: the tokens of the file.
    """
    extra = folder.optional_json("added_tokens.json") or Values({})
    left_out = next((name for name in extra.values if name not in known), None)
    if left_out is not None:
        raise extra.refused(left_out, f"a token of {NAME}, too")
    named = {f"{kind}_token": [content(settings, f"{kind}_token")] for kind in ("bos", "eos")}
    for key in ("additional_special_tokens", "extra_special_tokens"):
        listed = settings.values.get(key) or ()
        texts = listed.values() if isinstance(listed, Mapping) else listed
        named[key] = [each.get("content") if isinstance(each, Mapping) else each for each in texts]
    for key, names in named.items():
        missing = next((each for each in names if isinstance(each, str) and theirs.token_to_id(each) is None), None)
        if missing is not None:
            raise settings.refused(key, f"made of tokens of {NAME}, which has no {missing!r}")


def _with_tokens(added: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Texts with added tokens in them."""
    kinds = Counter[tuple[Any, ...]]()
    for token in added:
        kind = tuple(value for key, value in token.items() if key not in ("id", "content"))
        kinds[kind] += 1
        if kinds[kind] <= _MOST:
            name = token["content"]
            yield f"{name}the end {name} of it {name}\n{name}"
