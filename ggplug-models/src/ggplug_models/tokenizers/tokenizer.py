"""The tokenizer of a GGUF file, with the same token ids as llama.cpp."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from ggplug import gguf
from ggplug.errors import ModelError, ParameterError
from ggplug.system.copying import Unique
from ggplug_models.by_name.lookup import path_of
from ggplug_models.metadata.values import Values, short_repr
from ggplug_models.tokenizers.byte_pairs import BytePairs
from ggplug_models.tokenizers.fragments import Fragments
from ggplug_models.tokenizers.kind import Kind
from ggplug_models.tokenizers.plamo2 import ProbableTokens
from ggplug_models.tokenizers.rwkv import LongestTokens
from ggplug_models.tokenizers.sentence_pieces import SentencePieces
from ggplug_models.tokenizers.streaming import StreamDecoder
from ggplug_models.tokenizers.unigram import Unigrams
from ggplug_models.tokenizers.vocabulary import FOUND_IN_TEXT, MODEL, PARSED, Attribute
from ggplug_models.tokenizers.word_piece import WordPieces

KINDS: Mapping[str, Callable[[Values], Kind]] = {
    "bert": WordPieces.of,
    "gemma4": BytePairs.of,
    "gpt2": BytePairs.of,
    "llama": SentencePieces.of,
    "plamo2": ProbableTokens.of,
    "rwkv": LongestTokens.of,
    "t5": Unigrams.of,
    "whitespace": BytePairs.of,
}
"""The kinds of tokenizers, by ``tokenizer.ggml.model``."""


class Tokenizer(Unique):
    """Converts text to token ids and back.

    ``vocabulary``: its tokens and special ids (:class:`~ggplug_models.tokenizers.vocabulary.Vocabulary`).
    Several threads may use it.
    """

    _INSTEAD = "load it again from its file"

    def __init__(self, kind: Kind) -> None:
        self.vocabulary = kind.vocabulary
        self._kind = kind
        names = {n: self.vocabulary.texts[n] for n in self.vocabulary.having(FOUND_IN_TEXT)}
        late = {n: kind.normal(names[n], after_special=True) for n in names if n in self.vocabulary.late}
        self._fragments = Fragments(kind.vocabulary, {n: name for n, name in names.items() if n not in late})
        self._late = Fragments(kind.vocabulary, late) if late else None
        self._word_pieces = isinstance(kind, WordPieces)
        self._adds = not isinstance(kind, LongestTokens)
        self._only_first = kind.vocabulary.prepend_scheme == "first"
        self._pieces: dict[int, bytes] = {}
        strips = Attribute.STRIPS_LEFT | Attribute.STRIPS_RIGHT
        self._longest = None if late or self.vocabulary.having(strips) else kind.longest
        for name, adds in (("bos", self.vocabulary.add_bos), ("eos", self.vocabulary.add_eos)):
            if adds and self._adds and name not in self.vocabulary.special:
                raise ModelError(f"tokenizer.ggml.add_{name}_token is true, but the file has no {name.upper()} token")

    @property
    def n_vocab(self) -> int:
        """The number of tokens; their ids are 0 to ``n_vocab - 1``."""
        return len(self.vocabulary)

    @property
    def bos(self) -> int | None:
        """The token at the beginning of texts; None if there is none."""
        return self.vocabulary.special.get("bos")

    @property
    def eos(self) -> int | None:
        """The token at the end of texts; None if there is none."""
        return self.vocabulary.special.get("eos")

    @property
    def eot(self) -> int | None:
        """The token at the end of a turn of a chat; None if there is none."""
        return self.vocabulary.special.get("eot")

    @property
    def ends(self) -> frozenset[int]:
        """The end tokens of a generation, which include EOS and EOT."""
        return self.vocabulary.ends

    def encode(
        self, text: str, add_special: bool = False, parse_special: bool = False, *, begins: bool = True
    ) -> list[int]:
        """The token ids of a text.

        ``add_special``: add what the file says around texts, mostly BOS and EOS.  ``parse_special``: names of control
        tokens in the text, such as ``<|im_start|>``, become these tokens; otherwise they are plain text.  ``begins``:
        False if the text continues another one, so that no space is added before it.  Lone surrogates are replaced by
        ``?``.

        Raises ParameterError if ``text`` is not a string, ModelError if the vocabulary has no token for it.
        """
        if not isinstance(text, str):
            raise ParameterError(f"the text to encode must be a string, got {type(text).__name__}", got=type(text))
        add_special = add_special and self._adds
        special = self.vocabulary.special
        found: list[int] = [*self.vocabulary.before] if add_special else []
        after_special = begins
        for part in self._fragments.of(text, special=parse_special):
            if isinstance(part, int):
                found.append(part)
                after_special = not self._only_first
            else:
                found += self._of_text(part, after_special=after_special, parse_special=parse_special)
                after_special = False
        if add_special and self._word_pieces and "sep" in special:
            found.append(special["sep"])
        elif add_special:
            found += self.vocabulary.after
        return found

    def _of_text(self, text: str, *, after_special: bool, parse_special: bool) -> Sequence[int]:
        """The ids of a text without tokens that are found before it is normalised."""
        if self._late is None:
            return self._kind.encode(text, after_special=after_special)
        found: list[int] = []
        for part in self._late.of(self._kind.normal(text, after_special=after_special), special=parse_special):
            found += [part] if isinstance(part, int) else self._kind.encode(part, after_special=False)
        return found

    def prompt(self, text: str) -> list[int]:
        """The token ids of a prompt.

        Names of control tokens become these tokens.  BOS, or what else the file says, is at the beginning, and only
        once if the text begins with it, too.  Nothing is added after the text.  Raises as :meth:`encode` does.
        """
        before = self.vocabulary.before if self._adds and isinstance(text, str) else []
        rest = text
        for token in before:
            rest = rest.removeprefix(self.vocabulary.texts[token])
        begins = rest == text or not (self._only_first or self.vocabulary.late.intersection(before))
        return [*before, *self.encode(rest, parse_special=True, begins=begins)]  # raises if it is not a string

    def at_least(self, text: str) -> int:
        """A lower bound of the number of tokens of a text, computed without tokenizing it; 0 if unknown."""
        return 0 if self._longest is None else -(-len(text) // self._longest)

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; of a special token, its name.

        Raises ParameterError for an id that no token has.
        """
        known = self._checked(token)
        piece = self._pieces.get(known)
        if piece is None:
            piece = self._pieces[known] = self._kind.piece(known)
        return piece

    def is_control(self, token: int) -> bool:
        """Whether a token is not text: BOS, the end of a turn, or unknown.  Raises ParameterError."""
        return bool(self.vocabulary.attributes[self._checked(token)] & PARSED)

    def decode(self, tokens: Iterable[int], *, skip_special: bool = False, clean: bool | None = None) -> str:
        """The text of token ids.

        The space that :meth:`encode` added before the text is removed; invalid UTF-8 becomes U+FFFD.  ``skip_special``:
        omit control tokens.  ``clean``: remove spaces before punctuation and contractions, as llama.cpp does for some
        models; by default only for WordPiece, which does not preserve spaces.

        Raises ParameterError for an id outside of the vocabulary.
        """
        ids = list(tokens)
        skip_space = self._word_pieces or self.vocabulary.add_space_prefix
        if skip_special and skip_space and ids and ids[0] == self.bos and self.vocabulary.add_bos:
            del ids[0]
        decoder = self.stream(skip_special=skip_special)
        text = "".join(map(decoder.push, ids)) + decoder.finish()
        return _cleaned(text) if (self._word_pieces if clean is None else clean) else text

    def stream(self, *, skip_special: bool = False, begins: bool = True, keep: Collection[int] = ()) -> StreamDecoder:
        """A decoder for tokens that come one by one.

        ``skip_special``: as for :meth:`decode`.  ``begins``: whether the tokens are at the beginning of a text, where
        the space that :meth:`encode` adds is removed; False if they continue a prompt.  ``keep``: control tokens that
        are not skipped.
        """
        skip_space = begins and (self._word_pieces or self.vocabulary.add_space_prefix)
        if not skip_special:
            return StreamDecoder(self.piece, skip_space=skip_space)
        kept = frozenset(keep)
        piece = (lambda token: self.piece(token) if token in kept else self._text_piece(token)) if kept else None
        return StreamDecoder(piece or self._text_piece, skip_space=skip_space)

    def _text_piece(self, token: int) -> bytes:
        return b"" if self.is_control(token) else self.piece(token)

    def _checked(self, token: int) -> int:
        if not isinstance(token, Integral) or not 0 <= token < len(self.vocabulary):
            raise ParameterError(f"token ids are 0 to {len(self.vocabulary) - 1}, got {short_repr(token)}", got=token)
        return int(token)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {type(self._kind).__name__}: {self.n_vocab} tokens>"


def _cleaned(text: str) -> str:
    """Removes spaces before punctuation, around a single apostrophe, and before contractions, as llama.cpp does."""
    text = re.sub(r"(?<=.) (?=[?!.,])", "", text, flags=re.DOTALL)
    text = re.sub(r" ' ", "'", text)
    return re.sub(r" (?='(?:[sm]|re|ve))", "", text)


def load_tokenizer(source: str | os.PathLike[str] | Mapping[str, Any]) -> Tokenizer:
    """Loads the tokenizer of a GGUF file, which may contain only a vocabulary, or from the metadata of a file.

    ``source``: a path, a name as for :func:`ggplug_models.load`, or the metadata.

    Raises GGUFError, OSError; ModelError for an unknown kind of tokenizer or pre-tokenizer (``tokenizer.ggml.pre``),
    for an invalid vocabulary, or if the library ``tokenizers`` is needed and missing.
    """
    if isinstance(source, Mapping):
        return _of(source)
    with gguf.GGUFReader(path_of(source)) as reader:
        return _of(reader.metadata)


def _of(metadata: Mapping[str, Any]) -> Tokenizer:
    values = Values(metadata)
    return Tokenizer(values.entry(MODEL, KINDS, "a kind of tokenizer")(values))


__all__ = ["KINDS", "Attribute", "Tokenizer", "load_tokenizer"]
