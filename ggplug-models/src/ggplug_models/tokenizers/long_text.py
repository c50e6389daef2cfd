"""Long texts to token ids in pieces: as many as the model takes, whatever the length of the text.

A tokeniser makes tokens of a whole text before it cuts them off, some sixty bytes of memory for each character.  A BERT
tokeniser, though, works on one word after the other: its normaliser looks at single characters, but for the order of
combining ones; its pre-tokeniser splits at spaces and around punctuation; its model makes at least one token of each
word, and one token of any word that is longer than a limit.  So the words of a long text are listed piece by piece, by
the tokeniser's own parts, until there are enough of them.  Nothing is kept of the rest of a word that is too long.
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
"""Characters from which on a text is long, and about as many as are looked at together."""

LONGEST_WORD = 1 << 12
"""Characters of a word that is looked up, or of a token that stands for itself, at most."""


class LongText:
    """A text that is read in pieces, such as a line of a file.

    ``pieces``: called for each reading, for the pieces from the beginning.  Raises ParameterError if it cannot be.
    """

    def __init__(self, pieces: Callable[[], Iterable[str]]) -> None:
        check_callable("pieces", pieces, "a function that returns the strings that the text is made of")
        self.pieces = pieces

    def read(self) -> Iterator[str]:
        """The pieces.  Raises ParameterError for what are no strings, and what ``pieces`` does."""
        found = self.pieces()
        for piece in found if isinstance(found, Iterable) else (found,):
            if not isinstance(piece, str):
                raise ParameterError(f"the pieces of a LongText must be strings, got {short_repr(piece)}", got=piece)
            yield piece


class Words:
    """The words of texts, as a BERT tokeniser sees them.

    Made by :meth:`of`, for tokenisers whose parts are known to work as described above.
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
        # Of several that begin at one place the tokeniser takes the longest.
        self._special = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        self._decomposes = self._normalizer is not None and (
            self._normalizer.lowercase if self._normalizer.strip_accents is None else self._normalizer.strip_accents
        )

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Words | None:
        """For a tokeniser; None if it does not work by words in the way that this needs."""
        from tokenizers import models, normalizers, pre_tokenizers

        known = (
            isinstance(tokenizer.model, models.WordPiece)
            and isinstance(tokenizer.normalizer, (normalizers.BertNormalizer, type(None)))
            and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
            and tokenizer.model.max_input_chars_per_word <= LONGEST_WORD
            and all(len(t.content) <= LONGEST_WORD for t in tokenizer.get_added_tokens_decoder().values())
            # Such tokens are found by what is around them, or after normalisation.
            and not any(t.single_word or t.normalized for t in tokenizer.get_added_tokens_decoder().values())
        )
        return cls(tokenizer) if known else None

    def ids(self, pieces: Iterable[str], count: int) -> list[int]:
        """The first ``count`` token ids of a text, without those that stand around it."""
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
        """Words in normal form, and tokens that stand for themselves with True."""
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
        """The text in parts that can be normalised one by one, and the tokens that stand for themselves."""
        waiting = ""
        for piece in pieces:
            waiting += piece
            if len(waiting) <= LONG:
                continue
            # A token that begins behind this place might end in the next piece, or be the beginning of a longer one.
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
        """The last place from ``begin`` to ``end`` that no character crosses when combining ones are put in order."""
        if not self._decomposes:
            return end
        return next((place for place in range(end, begin, -1) if _begins(text[place])), begin)

    def _without_marks(self, marks: str) -> str:
        """A run of combining marks alone, as far as they make a difference."""
        kept = {mark for mark in set(marks) if self._normalizer.normalize_str(mark)}
        # They are all in one word; where there are more than it may have, their order and number do not matter.
        return "".join(mark for mark in marks if mark in kept)[: self._longest + 1]


class _Part(NamedTuple):
    text: str
    special: bool


def _begins(character: str) -> bool:
    """Whether a character stays behind all that come before it when combining characters are put in order."""
    if character.isascii():
        return True
    first = unicodedata.normalize("NFD", character)[0]
    return not unicodedata.combining(first) and unicodedata.category(first) != "Cn"


def pieces_of(text: str | LongText) -> Iterator[str]:
    """Pieces of at most :data:`LONG` characters; halves of surrogate pairs, which have no UTF-8 form, as ``?``."""
    for whole in (text,) if isinstance(text, str) else text.read():
        for start in range(0, len(whole), LONG):
            yield whole[start : start + LONG].encode("utf-8", "replace").decode("utf-8")


def around(tokenizer: Tokenizer) -> tuple[Sequence[int], Sequence[int]] | None:
    """The ids that a tokeniser puts before and behind a text; None if it does something else."""
    encoding = tokenizer.encode("a")
    mask = encoding.special_tokens_mask
    if 0 not in mask:
        return None
    first, last = mask.index(0), len(mask) - 1 - mask[::-1].index(0)
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    if any(mask[first : last + 1]) or encoding.ids[first : last + 1] != plain:
        return None
    return encoding.ids[:first], encoding.ids[last + 1 :]
