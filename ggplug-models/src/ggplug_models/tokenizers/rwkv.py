"""The tokenizer of RWKV's "World" models: the longest token at each position, over bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ggplug.errors import ModelError
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.kind import Kind
from ggplug_models.tokenizers.library import encodable
from ggplug_models.tokenizers.vocabulary import TOKENS, Defaults, Vocabulary

_ESCAPE = re.compile(rb"\\(x[0-9a-f]{2}|[^x])", re.DOTALL)
_NAMED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class LongestTokens(Kind):
    """Repeatedly takes the longest token that the rest of the text begins with."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self._pieces = [_unescaped(text) for text in vocabulary.texts]
        self._ids = {piece: n for n, piece in enumerate(self._pieces) if piece}
        self.longest = max(map(len, self._pieces)) or None
        # The lengths of tokens by their first two bytes, longest first.
        lengths: dict[bytes, set[int]] = {}
        for piece in self._ids:
            lengths.setdefault(piece[:2], set()).add(len(piece))
        self._lengths = {beginning: sorted(each, reverse=True) for beginning, each in lengths.items()}

    @classmethod
    def of(cls, values: Values) -> LongestTokens:
        """The tokenizer that the metadata describes; see :class:`Vocabulary`.  Raises ModelError."""
        return cls(Vocabulary(values, Defaults()))

    def encode(self, text: str, *, after_special: bool) -> Sequence[int]:
        """The ids of a text; see :meth:`Kind.encode`."""
        data = encodable(text).encode("utf-8")
        ids, lengths = self._ids, self._lengths
        found, place = [], 0
        while place < len(data):
            for length in lengths.get(data[place : place + 2], ()):
                token = ids.get(data[place : place + length])
                if token is not None:
                    break
            else:
                length = 1
                token = ids.get(data[place : place + 1], self.vocabulary.special.get("unk"))
                if token is None:
                    raise ModelError(f"{TOKENS} has no token for the byte 0x{data[place]:02X}", got=data[place])
            found.append(token)
            place += length
        return found

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        return self._pieces[token]


def _unescaped(text: str) -> bytes:
    """The bytes of a token; files have them in Python's notation for bytes."""

    def meant(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        return bytes.fromhex(escape[1:].decode()) if len(escape) == 3 else _NAMED.get(escape, escape)

    return _ESCAPE.sub(meant, text.encode("utf-8", "replace"))
