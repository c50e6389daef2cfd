"""Tokenizes long texts in pieces, up to the number of tokens that the model reads, in constant memory.

The library tokenizes a whole text before it truncates it, which takes about sixty bytes of memory per character.  But a
BERT tokenizer processes words independently: its normaliser looks at single characters, except for the order of
combining ones; its pre-tokenizer splits at spaces and around punctuation; and its model makes at least one token of
each word, and exactly one of a word above a maximum length.  So the words of a long text are split off piece by piece,
with the tokenizer's own components, until there are enough tokens.  The rest of a word that is too long is dropped.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ggplug.errors import ParameterError
from ggplug_models.checks.arguments import check_callable
from ggplug_models.metadata.values import short_repr

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LONG = 1 << 14
"""A text with more characters is long; about this many are processed together."""

LONGEST_WORD = 1 << 12
"""Largest supported maximum length of words and of special tokens, in characters."""


class LongText:
    """A text that is read in pieces, such as a long line of a file.

    ``pieces``: a function that returns the pieces from the beginning; it is called for each reading.  Raises
    ParameterError if it is not callable.
    """

    def __init__(self, pieces: Callable[[], Iterable[str]]) -> None:
        check_callable("pieces", pieces, "a function that returns the pieces of the text, as strings")
        self.pieces = pieces

    def read(self) -> Iterator[str]:
        """Yields the pieces.  Raises ParameterError for pieces that are not strings, and what ``pieces`` raises."""
        found = self.pieces()
        for piece in found if isinstance(found, Iterable) else (found,):
            if not isinstance(piece, str):
                raise ParameterError(f"the pieces of a LongText must be strings, got {short_repr(piece)}", got=piece)
            yield piece


class Words:
    """Splits texts into words as a BERT tokenizer does.

    Use :meth:`of`, which checks that the components of the tokenizer work as described above.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._normalizer = tokenizer.normalizer
        self._splitter = tokenizer.pre_tokenizer
        self._longest: int = tokenizer.model.max_input_chars_per_word
        added = tokenizer.get_added_tokens_decoder()
        self._special_ids: dict[str, int] = {token.content: number for number, token in added.items() if token.content}
        special = self._special_ids.keys()
        self._reach = max(map(len, special), default=0)
        # Of several that begin at the same position, the tokenizer takes the longest.
        self._special = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        self._decomposes = self._normalizer is not None and (
            self._normalizer.lowercase if self._normalizer.strip_accents is None else self._normalizer.strip_accents
        )

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Words | None:
        """The words of a tokenizer; None if it does not process words independently."""
        from tokenizers import models, normalizers, pre_tokenizers

        known = (
            isinstance(tokenizer.model, models.WordPiece)
            and isinstance(tokenizer.normalizer, (normalizers.BertNormalizer, type(None)))
            and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
            and tokenizer.model.max_input_chars_per_word <= LONGEST_WORD
            and all(len(t.content) <= LONGEST_WORD for t in tokenizer.get_added_tokens_decoder().values())
            # Such tokens depend on the text around them, or are found after normalisation.
            and not any(t.single_word or t.normalized for t in tokenizer.get_added_tokens_decoder().values())
        )
        return cls(tokenizer) if known else None

    def ids(self, pieces: Iterable[str], count: int) -> list[int]:
        """The first ``count`` token ids of a text, without the special tokens before and after it."""
        found: list[int] = []
        for word, special in self._words(pieces):
            if special:
                found.append(self._special_ids[word])
            else:
                found.extend(token.id for token in self._tokenizer.model.tokenize(word))
            if len(found) >= count:
                break
        return found[:count]

    def _words(self, pieces: Iterable[str]) -> Iterator[tuple[str, bool]]:
        """Yields normalised words with False, and special tokens with True."""
        begun = ""
        for part in self._parts(pieces):
            if part.special:
                if begun:
                    yield begun, False
                begun = ""
                yield part.text, True
                continue
            text = begun + (part.text if self._normalizer is None else self._normalizer.normalize_str(part.text))
            begun = ""
            words = self._splitter.pre_tokenize_str(text)
            if words and words[-1][1][1] == len(text):  # it may go on in the next part
                begun = words.pop()[0][: self._longest + 1]
            for word, _ in words:
                yield word[: self._longest + 1], False
        if begun:
            yield begun, False

    def _parts(self, pieces: Iterable[str]) -> Iterator[_Part]:
        """Splits a text into parts that can be normalised independently, and special tokens."""
        waiting = ""
        for piece in pieces:
            waiting += piece
            if len(waiting) <= LONG:
                continue
            # A special token that begins after this position may end in the next piece, or be part of a longer one.
            end = len(waiting) - max(self._reach, 1)
            begin = 0
            while (match := self._special.search(waiting, begin)) is not None and match.start() < end:
                yield _Part(waiting[begin : match.start()], False)
                yield _Part(match[0], True)
                begin = match.end()
            cut = self._border(waiting, begin, end)
            if cut > begin:
                yield _Part(waiting[begin:cut], False)
                waiting = waiting[cut:]
            elif end > begin:
                waiting = waiting[begin] + self._without_marks(waiting[begin + 1 : end]) + waiting[end:]
            else:
                waiting = waiting[begin:]
        position = 0
        for match in self._special.finditer(waiting):
            yield _Part(waiting[position : match.start()], False)
            yield _Part(match[0], True)
            position = match.end()
        yield _Part(waiting[position:], False)

    def _border(self, text: str, begin: int, end: int) -> int:
        """The last position from ``begin`` to ``end`` that the reordering of combining characters does not cross."""
        if not self._decomposes:
            return end
        return next((place for place in range(end, begin, -1) if _begins(text[place])), begin)

    def _without_marks(self, marks: str) -> str:
        """A run of combining marks without those that have no effect."""
        kept = {mark for mark in set(marks) if self._normalizer.normalize_str(mark)}
        # All are in one word; if there are more than a word may have, their order and number do not matter.
        return "".join(mark for mark in marks if mark in kept)[: self._longest + 1]


class _Part(NamedTuple):
    text: str
    special: bool


def _begins(character: str) -> bool:
    """Whether the reordering of combining characters never moves this character before an earlier one."""
    if character.isascii():
        return True
    first = unicodedata.normalize("NFD", character)[0]
    return not unicodedata.combining(first) and unicodedata.category(first) != "Cn"


def pieces_of(text: str | LongText) -> Iterator[str]:
    """Yields pieces of at most :data:`LONG` characters, with lone surrogates replaced by ``?``."""
    for whole in (text,) if isinstance(text, str) else text.read():
        for start in range(0, len(whole), LONG):
            yield whole[start : start + LONG].encode("utf-8", "replace").decode("utf-8")


def around(tokenizer: Tokenizer) -> tuple[Sequence[int], Sequence[int]] | None:
    """The ids that a tokenizer adds before and after a text; None if it does something else."""
    encoding = tokenizer.encode("a")
    mask = encoding.special_tokens_mask
    if 0 not in mask:
        return None
    first, last = mask.index(0), len(mask) - 1 - mask[::-1].index(0)
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    if any(mask[first : last + 1]) or encoding.ids[first : last + 1] != plain:
        return None
    return encoding.ids[:first], encoding.ids[last + 1 :]
