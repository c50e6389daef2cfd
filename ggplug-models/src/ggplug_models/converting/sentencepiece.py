"""Reads the pieces of a ``tokenizer.model``, which is a Protocol Buffers message.

``ModelProto.pieces`` is field 1; of a piece, field 1 is the text, 2 the score (float), 3 the type, by default normal.
``trainer_spec`` is field 2, of which field 3 is the type of the model, by default unigram; ``normalizer_spec`` is field
3, of which field 2 is the table of characters, 3 and 4 are whether a space is put before texts, and whether further
spaces are removed, by default both (https://github.com/google/sentencepiece, ``src/sentencepiece_model.proto``; wire
format: https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ggplug.errors import ModelError

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


class Normalisation(NamedTuple):
    """What SentencePiece does with a text first, and the type of its model: 1 unigram, 2 BPE, 3 words, 4 characters."""

    table: bytes
    adds_space: bool
    removes_spaces: bool
    model: int


def normalisation(content: bytes, path: Path) -> Normalisation:
    """The normalisation in a file's ``content``.  Raises ModelError if it is not such a message."""
    table, flags, model = b"", {3: True, 4: True}, 1
    try:
        for field, value in _fields(content):
            for inner, part in _fields(value) if field in (2, 3) and isinstance(value, bytes) else ():
                if (field, inner) == (2, 3) and isinstance(part, int):
                    model = part
                elif (field, inner) == (3, 2) and isinstance(part, bytes):
                    table = part
                elif field == 3 and inner in flags:
                    flags[inner] = bool(part)
    except (ValueError, IndexError, struct.error) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    return Normalisation(table, flags[3], flags[4], model)


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
