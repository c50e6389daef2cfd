"""Texts to token ids with those around them, cut off where the model ends: what models that embed texts need.

Encoders with WordPiece, or with a complete ``tokenizer.json``, do what the models' own tokenisers do, through the
Hugging Face ``tokenizers`` library (:class:`TextTokenizer`).  It is imported when a tokeniser is made: a model that is
given token ids needs none.  Others, and language models, have the tokens that :func:`.load_tokenizer` makes
(:class:`VocabularyTokenizer`).

Two ways for WordPiece, because they differ: llama.cpp, which ``load_tokenizer`` follows, keeps of each Hangul syllable
only the first letter, splits words of more than 100 letters, and takes ``[CLS]`` within a text for three words.
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
    from tokenizers import Tokenizer

WORD_START = "\u2581"
"""GGUF marks pieces that start a word with it, where WordPiece vocabularies mark the others with ``##``."""

HF_JSON = "tokenizer.huggingface.json"
"""Key under which a GGUF file carries a complete ``tokenizer.json``; it wins over the vocabulary."""

CONTROL = 3
"""The token type of what stands for itself, such as ``[CLS]``."""


TOGETHER = 1 << 18
"""Characters that the library is given at once: it keeps all tokens of all texts, also those that it cuts off."""


class TextTooLongError(ContextFullError):
    """A text has ``got`` tokens, with those around it, of which the model takes ``wanted``; ``position``: which one."""

    position: int


def _too_long(position: int, got: int, wanted: int) -> TextTooLongError:
    message = f"texts[{position}] has {got} tokens, and the model takes {wanted} of a text"
    return TextTooLongError(message, position=position, got=got, wanted=wanted)


class TextTokenizer:
    """Text to token ids, truncated to what the model takes.

    ``max_length``: tokens of a text, with those around it.  ``n_vocab``: ids that the model knows.  ``source``: the key
    that the tokeniser was made from, for errors.  Raises ModelError.
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
                f"texts of {self.max_length} tokens have no room for one beside the {around_texts} around them "
                f"({source}, or context_length)",
                got=self.max_length,
            )
        with library(source):
            tokenizer.enable_truncation(self.max_length)
            self._around = around(tokenizer)
            self._words = None if self._around is None else Words.of(tokenizer)
        _check_ids([tokenizer.encode("").ids], n_vocab, source)

    def encode(self, texts: Sequence[str | LongText]) -> list[list[int]]:
        """Token ids with special tokens, at most ``max_length`` each.

        A long text takes no more memory than a short one, if the tokeniser is one of BERT's; others see it as a whole.
        Raises ModelError if the tokeniser fails, or gives ids that the model does not know; and what the callable of a
        long text raises.
        """
        return self._encoded(texts, whole=False)

    def encode_whole(self, texts: Sequence[str]) -> list[list[int]]:
        """As :meth:`encode`, but texts are not cut: raises TextTooLongError for one that would be."""
        return self._encoded(texts, whole=True)

    def at_least(self, text: str) -> int:
        """As :meth:`.Tokenizer.at_least`: what this tokeniser makes of a text is not known before."""
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
                further = sum(each.special_tokens_mask.count(0) for each in encoding.overflowing)
                raise _too_long(position, len(encoding.ids) + further, self.max_length)

    def _long(self, words: Words, text: str | LongText, position: int, *, whole: bool) -> list[int]:
        assert self._around is not None
        before, behind = self._around
        room = self.max_length - len(before) - len(behind)
        ids = words.ids(_read(text), sys.maxsize if whole else room)
        if len(ids) > room:
            raise _too_long(position, len(before) + len(ids) + len(behind), self.max_length)
        return [*before, *ids, *behind]


class VocabularyTokenizer:
    """Text to token ids by a file's vocabulary, truncated to what the model takes; what ends a text stays at its end.

    ``max_length``, ``n_vocab``: as for :class:`TextTokenizer`.
    """

    def __init__(self, tokenizer: Vocabularies, max_length: int, n_vocab: int) -> None:
        self.max_length = max_length
        self.n_vocab = n_vocab
        self._tokenizer = tokenizer
        around_texts = tokenizer.encode("", add_special=True)
        begins = tokenizer.vocabulary.add_bos and around_texts[:1] == [tokenizer.bos]
        self._behind = around_texts[1 if begins else 0 :]
        longest = max(map(len, tokenizer.vocabulary.texts))
        self._characters = 2 * max_length * longest

    def encode(self, texts: Sequence[str | LongText]) -> list[list[int]]:
        """Token ids with special tokens, at most ``max_length`` each.

        Of a long text twice as much is read as so many of the longest tokens are.  Raises ModelError as
        :meth:`TextTokenizer.encode` does, and what the callable of a long text raises.
        """
        found = [self._ids(text) for text in texts]
        _check_ids(found, self.n_vocab, TOKENS)
        return found

    def encode_whole(self, texts: Sequence[str]) -> list[list[int]]:
        """As :meth:`encode`, but texts are not cut: raises TextTooLongError for one that would be."""
        found = []
        for position, text in enumerate(texts):
            ids = self._tokenizer.encode(text, add_special=True, parse_special=True)
            if len(ids) > self.max_length:
                raise _too_long(position, len(ids), self.max_length)
            found.append(ids)
        _check_ids(found, self.n_vocab, TOKENS)
        return found

    def at_least(self, text: str) -> int:
        """As :meth:`.Tokenizer.at_least`."""
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
    """Raises ModelError for an id that the model does not know."""
    largest = max((max(ids, default=0) for ids in found), default=0)
    if largest >= n_vocab:
        raise ModelError(
            f"{source} has a token {largest}, and the model knows {n_vocab} tokens",
            got=largest,
            wanted=n_vocab,
        )


def _read(text: str | LongText) -> Iterator[str]:
    try:
        yield from pieces_of(text)
    except Exception as error:
        raise CallerFailed(error) from error


def from_metadata(metadata: Mapping[str, Any], max_length: int, n_vocab: int) -> TextTokenizer | VocabularyTokenizer:
    """The tokeniser that a GGUF file describes for encoders.

    Raises ModelError, which names the key, also where ``tokenizers`` is not installed.
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
                raise values.refused(key, f"the id of a token that stands for itself, such as {default}")
            raise values.refused(TOKENS, f"a vocabulary with {default}, or {key} must tell its like")
        return token

    unknown, cls, sep = named("unknown", "[UNK]"), named("cls", "[CLS]"), named("seperator", "[SEP]")
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    # GGUF does not say whether text is lowercased; a vocabulary without any word in capitals says it.
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
