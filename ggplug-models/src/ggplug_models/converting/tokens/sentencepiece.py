"""Reads the pieces and the rules of a ``tokenizer.model``, which is a Protocol Buffers message.

``ModelProto.pieces`` is field 1; of a piece, field 1 is the text, 2 the score (float), 3 the type, by default normal.
``trainer_spec`` is field 2 and ``normalizer_spec`` field 3; for their fields see ``_RULES``
(https://github.com/google/sentencepiece, ``src/sentencepiece_model.proto``; wire format:
https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug.errors import ModelError
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.charsmap import CHARSMAP
from ggplug_models.tokenizers.unigram import BYTES
from ggplug_models.tokenizers.vocabulary import EVERY, PREPENDS, SPACE_PREFIX, TRIMS

PIECES = "tokenizer.model"
UNIGRAM_PIECES = "spiece.model"
"""The name of the same file next to T5."""


class SentencePiece(NamedTuple):
    """A piece.  ``type``: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte, as in GGUF."""

    text: str
    score: float
    type: int


def pieces(content: bytes, path: Path) -> list[SentencePiece]:
    """The pieces in a file's ``content``.  Raises ModelError if it is not such a message, or has no pieces."""
    try:
        found = [_piece(value) for field, value in _fields(content) if field == 1 and isinstance(value, bytes)]
    except (ValueError, IndexError, struct.error) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not found:
        raise ModelError(f"{path} cannot be read: it has no pieces")
    return found


MODEL_TYPE, BYTE_FALLBACK = "trainer_spec.model_type", "trainer_spec.byte_fallback"
TABLE = "normalizer_spec.precompiled_charsmap"
ADDS_SPACE = "normalizer_spec.add_dummy_prefix"
REMOVES_SPACES = "normalizer_spec.remove_extra_whitespaces"

_SUFFIX, _ESCAPES = "trainer_spec.treat_whitespace_as_suffix", "normalizer_spec.escape_whitespaces"

_RULES: dict[tuple[int, int], tuple[str, bool | int | bytes]] = {
    (2, 3): (MODEL_TYPE, 1),
    (2, 24): (_SUFFIX, False),
    (2, 35): (BYTE_FALLBACK, False),
    (3, 2): (TABLE, b""),
    (3, 3): (ADDS_SPACE, True),
    (3, 4): (REMOVES_SPACES, True),
    (3, 5): (_ESCAPES, True),
}
"""The names and the defaults of what decides about tokens, by their fields."""

UNIGRAM, BPE, CHARACTERS = 1, 2, 4
"""Types of models."""


def rules(content: bytes, path: Path, types: Collection[int] = (UNIGRAM, BPE, CHARACTERS)) -> Values:
    """What decides about the tokens of a text beside the pieces, by the names above.

    ``types``: those of models that are supported.  Raises ModelError for a file that is not such a message, and for
    rules that no tokenizer has.
    """
    found = dict(_RULES.values())
    try:
        for field, value in _fields(content):
            for inner, part in _fields(value) if field in (2, 3) and isinstance(value, bytes) else ():
                name, default = _RULES.get((field, inner), ("", b""))
                if name and isinstance(part, bytes if isinstance(default, bytes) else int):
                    found[name] = bool(part) if isinstance(default, bool) else part
    except (ValueError, IndexError, struct.error) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    says = Values(found, where=str(path))
    if found[MODEL_TYPE] not in types:
        raise says.refused(MODEL_TYPE, "one of " + ", ".join(f"{number} ({_NAMES[number]})" for number in types))
    if found[_SUFFIX]:
        raise says.refused(_SUFFIX, "false, because GGUF files have no key for it")
    if not found[_ESCAPES]:
        raise says.refused(_ESCAPES, "true, because GGUF files have no key for it")
    return says


_NAMES = {UNIGRAM: "unigrams", BPE: "byte pairs", CHARACTERS: "characters"}


def for_pairs(says: Values) -> dict[str, Any]:
    """The keys of what :func:`rules` says about merged pieces, where llama.cpp's default is something else.

    llama.cpp knows the first of them for this kind.
    """
    return {
        SPACE_PREFIX: None if says.boolean(ADDS_SPACE) else False,
        TRIMS: says.boolean(REMOVES_SPACES) or None,
        CHARSMAP: _table(says),
    }


def for_unigrams(says: Values) -> dict[str, Any]:
    """The keys of what :func:`rules` says about unigrams."""
    adds, removes = says.boolean(ADDS_SPACE), says.boolean(REMOVES_SPACES)
    return {
        SPACE_PREFIX: adds,
        TRIMS: removes,
        PREPENDS: None if adds == removes else EVERY,
        BYTES: says.boolean(BYTE_FALLBACK) or None,
        CHARSMAP: _table(says),
    }


def _table(says: Values) -> npt.NDArray[np.uint8] | None:
    return np.frombuffer(says.values[TABLE], np.uint8) if says.values[TABLE] else None


def _piece(message: bytes) -> SentencePiece:
    text, score, kind = "", 0.0, 1
    for field, value in _fields(message):
        if field == 1 and isinstance(value, bytes):
            text = value.decode("utf-8")
        elif field == 2 and isinstance(value, float):
            score = value
        elif field == 3 and isinstance(value, int):
            kind = value
    if not 1 <= kind <= 6:
        raise ValueError(f"a piece has the unknown type {kind}")
    return SentencePiece(text, score, kind)


def _fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yields the fields of a message: their numbers, and values as int, float or bytes."""
    at = 0
    while at < len(message):
        tag, at = _number(message, at)
        field, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _number(message, at)
            yield field, value
        elif wire == 2:
            size, at = _number(message, at)
            if at + size > len(message):
                raise ValueError("the message is truncated")
            yield field, message[at : at + size]
            at += size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            yield field, float(struct.unpack_from("<d" if wire == 1 else "<f", message, at)[0])
            at += size
        else:
            raise ValueError("it is not a Protocol Buffers message")


def _number(message: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number is longer than 64 bits")
