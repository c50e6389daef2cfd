"""Splits texts at special tokens, as llama.cpp does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ggplug_models.tokenizers.vocabulary import PARSED, Attribute, Vocabulary


class Fragments:
    """Splits texts at special tokens of a vocabulary.  ``texts``: what is searched, by the ids of the tokens.

    The longest token is searched first, in the whole text, then the next in the remaining fragments.  User-defined
    tokens are always found, control tokens and the unknown token only if special tokens are parsed.
    """

    def __init__(self, vocabulary: Vocabulary, texts: Mapping[int, str]) -> None:
        attributes = vocabulary.attributes
        numbers = sorted(texts, key=lambda n: -len(texts[n].encode("utf-8", "replace")))
        self._tokens = [(n, texts[n], Attribute(attributes[n]), texts[n][:2]) for n in numbers]
        self._stripped = vocabulary.stripped
        self._beginnings = {beginning for *_, beginning in self._tokens}

    def of(self, text: str, *, special: bool) -> Sequence[str | int]:
        """Fragments of text and ids of special tokens, in order, without empty texts."""
        parts: list[str | int] = [text] if text else []
        there = {beginning for beginning in self._beginnings if beginning in text}
        if not there:
            return parts
        for number, token, attribute, beginning in self._tokens:
            if beginning in there and (special or not attribute & PARSED) and token in text:
                parts = [piece for part in parts for piece in _split(part, number, token, attribute, self._stripped)]
        return parts


def _split(part: str | int, number: int, token: str, attribute: Attribute, stripped: str) -> list[str | int]:
    if isinstance(part, int) or token not in part:
        return [part]
    pieces: list[str | int] = []
    left, *rest = part.split(token)
    for right in rest:
        pieces += [left.rstrip(stripped) if attribute & Attribute.STRIPS_LEFT else left, number]
        left = right.lstrip(stripped) if attribute & Attribute.STRIPS_RIGHT else right
    pieces.append(left)
    return [piece for piece in pieces if piece != ""]
