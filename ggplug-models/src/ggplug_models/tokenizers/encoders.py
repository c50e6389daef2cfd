"""Tokenizers for embedding: token ids with special tokens, truncated to the context length.

For encoders with WordPiece, or with a complete ``tokenizer.json``, :class:`TextTokenizer` does what the models' own
tokenizers do, with the Hugging Face library ``tokenizers``.  The library is imported when a tokenizer is created; token
ids can be embedded without it.  For other models, :class:`VocabularyTokenizer` uses :func:`.load_tokenizer`.

WordPiece has both, because they differ: llama.cpp, which ``load_tokenizer`` follows, keeps only the first letter of
each Hangul syllable, splits words of more than 100 letters, and reads ``[CLS]`` within a text as three words.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ggplug.errors import ContextFullError, ModelError
from ggplug_models.checks.requirements import required
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.library import CallerFailed, library
from ggplug_models.tokenizers.long_text import LONG, LongText, Words, around, pieces_of
from ggplug_models.tokenizers.tokenizer import Tokenizer as Vocabularies
from ggplug_models.tokenizers.tokenizer import load_tokenizer
from ggplug_models.tokenizers.vocabulary import MODEL, TOKENS

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

WORD_START = "\u2581"
"""The mark of tokens that start a word in GGUF; WordPiece vocabularies mark the other tokens, with ``##``."""

HF_JSON = "tokenizer.huggingface.json"
"""The key of a complete ``tokenizer.json`` in a GGUF file; it takes precedence over the vocabulary."""

CONTROL = 3
"""The token type of control tokens, such as ``[CLS]``."""


TOGETHER = 1 << 18
"""Characters that the library gets at once, because it keeps all tokens in memory, also those that it truncates."""


ONE_SEPARATOR = "[SEP]"
"""The separator of BERT's family, of which one is between two texts; of RoBERTa's, ``</s>``, there are two."""


class TextTooLongError(ContextFullError):
    """The text number ``position`` has ``got`` tokens with the special ones; the model reads at most ``wanted``."""

    position: int


def _too_long(position: int, got: int, wanted: int) -> TextTooLongError:
    message = f"texts[{position}] has {got} tokens; the model reads at most {wanted}"
    return TextTooLongError(message, position=position, got=got, wanted=wanted)


class TextTokenizer:
    """Tokenizes with the library ``tokenizers``, and truncates to the context length.

    ``max_length``: maximum number of tokens of a text, with special ones.  ``n_vocab``: size of the model's vocabulary.
    ``source``: the metadata key of the tokenizer, for errors.  Raises ModelError.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int, n_vocab: int, source: str) -> None:
        tokenizer.no_padding()
        held = tokenizer.truncation
        self.max_length = min(held["max_length"], max_length) if held else max_length
        self.n_vocab = n_vocab
        self.source = source
        self._tokenizer = tokenizer
        around_texts = tokenizer.num_special_tokens_to_add(False)
        if self.max_length <= around_texts:
            # The library would not truncate at all.
            raise ModelError(
                f"the maximum length of {self.max_length} tokens ({source}, or context_length) must be more than the "
                f"{around_texts} special tokens of each text",
                got=self.max_length,
            )
        with library(source):
            tokenizer.enable_truncation(self.max_length)
            self._around = around(tokenizer)
            self._words = None if self._around is None else Words.of(tokenizer)
        _check_ids([tokenizer.encode("").ids], n_vocab, source)

    def encode(self, texts: Sequence[str | LongText]) -> list[list[int]]:
        """Token ids with special tokens, at most ``max_length`` each.

        With a tokenizer of BERT, a long text needs no more memory than a short one; others read it as a whole.  Raises
        ModelError if the tokenizer fails, or returns ids outside of the vocabulary; and what the callable of a long
        text raises.
        """
        return self._encoded(texts, whole=False)

    def encode_whole(self, texts: Sequence[str]) -> list[list[int]]:
        """As :meth:`encode`, but raises TextTooLongError instead of truncating a text."""
        return self._encoded(texts, whole=True)

    def plain(self, text: str) -> list[int]:
        """Token ids without special tokens, truncated to the context length.  Raises ModelError."""
        with library(self.source):
            found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        _check_ids([found], self.n_vocab, self.source)
        return found

    def pair(self, first: str, second: str) -> list[int]:
        """Token ids of two texts with the special tokens around them, as rerankers read them.

        Raises TextTooLongError if they are longer than the context length together; ModelError.
        """
        texts = ["".join(_read(text)) for text in (first, second)]
        with library(self.source):
            # One by one: of a pair that is too long the library makes every pair of a piece of one and of the other.
            both = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            count = sum(map(_length, both)) + self._tokenizer.num_special_tokens_to_add(True)
            if count > self.max_length:
                raise _too_long(1, count, self.max_length)
            found: list[int] = self._tokenizer.post_process(both[0], both[1]).ids
        _check_ids([found], self.n_vocab, self.source)
        return found

    def at_least(self, text: str) -> int:
        """See :meth:`.Tokenizer.at_least`; always 0."""
        return 0

    def _encoded(self, texts: Sequence[str | LongText], *, whole: bool) -> list[list[int]]:
        found: list[list[int]] = [[]] * len(texts)
        waiting: dict[int, str] = {}
        size = 0
        with library(self.source):
            for position, text in enumerate(texts):
                if self._words is not None and (isinstance(text, LongText) or len(text) > LONG):
                    found[position] = self._long(self._words, text, position, whole=whole)
                    continue
                waiting[position] = "".join(_read(text))
                size += len(waiting[position])
                if size > TOGETHER:
                    self._short(waiting, found, whole=whole)
                    waiting, size = {}, 0
            self._short(waiting, found, whole=whole)
        _check_ids(found, self.n_vocab, self.source)
        return found

    def _short(self, texts: Mapping[int, str], found: list[list[int]], *, whole: bool) -> None:
        encodings = self._tokenizer.encode_batch_fast(list(texts.values()))
        for position, encoding in zip(texts, encodings, strict=True):
            found[position] = encoding.ids
            if whole and encoding.overflowing:
                special = len(encoding.ids) - encoding.special_tokens_mask.count(0)
                raise _too_long(position, _length(encoding) + special, self.max_length)

    def _long(self, words: Words, text: str | LongText, position: int, *, whole: bool) -> list[int]:
        assert self._around is not None
        before, behind = self._around
        most = self.max_length - len(before) - len(behind)
        ids = words.ids(_read(text), sys.maxsize if whole else most)
        if len(ids) > most:
            raise _too_long(position, len(before) + len(ids) + len(behind), self.max_length)
        return [*before, *ids, *behind]


class VocabularyTokenizer:
    """Tokenizes with the vocabulary of a file, and truncates to the context length, but keeps special tokens at the
    end.

    ``max_length``, ``n_vocab``: as for :class:`TextTokenizer`.
    """

    def __init__(self, tokenizer: Vocabularies, max_length: int, n_vocab: int) -> None:
        self.max_length = max_length
        self.n_vocab = n_vocab
        self._tokenizer = tokenizer
        self._behind = tokenizer.encode("", add_special=True)[len(tokenizer.vocabulary.before) :]
        longest = max(map(len, tokenizer.vocabulary.texts))
        self._characters = 2 * max_length * longest

    def encode(self, texts: Sequence[str | LongText]) -> list[list[int]]:
        """Token ids with special tokens, at most ``max_length`` each.

        Of a long text, only twice as many characters are read as ``max_length`` of the longest tokens have.  Raises
        ModelError as :meth:`TextTokenizer.encode` does, and what the callable of a long text raises.
        """
        found = [self._ids(text) for text in texts]
        _check_ids(found, self.n_vocab, TOKENS)
        return found

    def encode_whole(self, texts: Sequence[str]) -> list[list[int]]:
        """As :meth:`encode`, but raises TextTooLongError instead of truncating a text."""
        found = []
        for position, text in enumerate(texts):
            ids = self._tokenizer.encode(text, add_special=True, parse_special=True)
            if len(ids) > self.max_length:
                raise _too_long(position, len(ids), self.max_length)
            found.append(ids)
        _check_ids(found, self.n_vocab, TOKENS)
        return found

    def plain(self, text: str) -> list[int]:
        """Token ids without special tokens.  Raises ModelError."""
        return self._tokenizer.encode(text, parse_special=True)

    def pair(self, first: str, second: str) -> list[int]:
        """Token ids of two texts with the special tokens around them; raises as :meth:`TextTokenizer.pair` does."""
        special = self._tokenizer.vocabulary.special
        between = [special["sep"]] if "sep" in special else []
        if between and between == self._behind and self._tokenizer.vocabulary.texts[between[0]] == ONE_SEPARATOR:
            between = []  # the one at the end of the first text
        whole = self._tokenizer.encode(first, add_special=True, parse_special=False)
        return self._fitting([*whole, *between, *self._tokenizer.encode(second), *self._behind])

    def prompt(self, text: str) -> list[int]:
        """Token ids of a prompt that names its special tokens; raises as :meth:`TextTokenizer.pair` does."""
        return self._fitting(self._tokenizer.encode(text, parse_special=True))

    def _fitting(self, found: list[int]) -> list[int]:
        if len(found) > self.max_length:
            raise _too_long(1, len(found), self.max_length)
        _check_ids([found], self.n_vocab, TOKENS)
        return found

    def at_least(self, text: str) -> int:
        """See :meth:`.Tokenizer.at_least`."""
        return self._tokenizer.at_least(text)

    def _ids(self, text: str | LongText) -> list[int]:
        ids = self._tokenizer.encode(self._beginning(text), add_special=True, parse_special=True)
        if len(ids) <= self.max_length:
            return ids
        return [*ids[: max(self.max_length - len(self._behind), 0)], *self._behind][: self.max_length]

    def _beginning(self, text: str | LongText) -> str:
        held, size = [], 0
        for piece in pieces_of(text):
            held.append(piece)
            size += len(piece)
            if size > self._characters:
                break
        return "".join(held)[: self._characters]


def _check_ids(found: Sequence[Sequence[int]], n_vocab: int, source: str) -> None:
    """Raises ModelError for an id outside of the model's vocabulary."""
    largest = max((max(ids, default=0) for ids in found), default=0)
    if largest >= n_vocab:
        raise ModelError(
            f"{source} has the token id {largest}, but the model's vocabulary has {n_vocab} tokens",
            got=largest,
            wanted=n_vocab,
        )


def _length(encoding: Encoding) -> int:
    """The number of tokens of a text, without special tokens and with those that were cut off."""
    return sum(each.special_tokens_mask.count(0) for each in (encoding, *encoding.overflowing))


def _read(text: str | LongText) -> Iterator[str]:
    try:
        yield from pieces_of(text)
    except Exception as error:
        raise CallerFailed(error) from error


def from_metadata(metadata: Mapping[str, Any], max_length: int, n_vocab: int) -> TextTokenizer | VocabularyTokenizer:
    """The tokenizer for embedding that the metadata of a GGUF file describes.

    Raises ModelError, also if the library ``tokenizers`` is needed and not installed.
    """
    values = Values(metadata)
    if HF_JSON not in values and values.text(MODEL) != "bert":
        return VocabularyTokenizer(load_tokenizer(metadata), max_length, n_vocab)
    with required("tokenizers", "making token ids of texts"):
        from tokenizers import Tokenizer
    whole = values.text(HF_JSON, None)
    if whole is not None:
        with library(HF_JSON):
            return TextTokenizer(Tokenizer.from_str(whole), max_length, n_vocab, HF_JSON)
    with library(TOKENS):
        return TextTokenizer(_word_piece(values), max_length, n_vocab, TOKENS)


def _word_piece(values: Values) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokens = values.texts(TOKENS, at_least=1)
    types = values.integers("tokenizer.ggml.token_type", None, length=len(tokens))
    special = set() if types is None else {i for i, kind in enumerate(types.tolist()) if kind == CONTROL}
    vocabulary: dict[str, int] = {}
    for position, token in enumerate(tokens):
        if position in special or (token.startswith("[") and token.endswith("]")):
            vocabulary[token] = position
        elif token.startswith(WORD_START):
            vocabulary[token[len(WORD_START) :]] = position
        else:
            vocabulary[f"##{token}"] = position

    def named(name: str, default: str) -> str:
        key = f"tokenizer.ggml.{name}_token_id"
        position = values.integer(key, None, at_least=0, at_most=len(tokens) - 1)
        token = default if position is None else tokens[position]
        if token not in vocabulary:
            if position is not None:
                raise values.refused(key, f"the id of a control token such as {default}")
            raise values.refused(TOKENS, f"a vocabulary that contains {default}, or {key} must be set")
        return token

    unknown, cls, sep = named("unknown", "[UNK]"), named("cls", "[CLS]"), named("seperator", "[SEP]")
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    # GGUF does not say whether text is lowercased: it is if no word of the vocabulary begins with a capital letter.
    lowercase = not any("A" <= token[1:2] <= "Z" for token in tokens if token.startswith(WORD_START))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[cls, "$A", sep],
        pair=[cls, "$A", sep, "$B:1", f"{sep}:1"],
        special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
    )
    tokenizer.add_special_tokens([token for token in vocabulary if token.startswith("[") and token.endswith("]")])
    return tokenizer
