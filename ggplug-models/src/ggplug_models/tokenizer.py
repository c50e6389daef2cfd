"""WordPiece tokenisers from GGUF metadata, through the Hugging Face ``tokenizers`` library.

The library is imported when a tokeniser is made: a model that is given token ids needs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ggplug.errors import ModelError
from ggplug_models.requirements import required

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WORD_START = "\u2581"
"""GGUF marks pieces that start a word with it, where WordPiece vocabularies mark the others with ``##``."""

HF_JSON = "tokenizer.huggingface.json"
"""Key under which a GGUF file carries a complete ``tokenizer.json``; it wins over the vocabulary."""


class TextTokenizer:
    """Text to token ids, truncated to what the model takes."""

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        tokenizer.no_padding()
        held = tokenizer.truncation
        self.max_length = min(held["max_length"], max_length) if held else max_length
        tokenizer.enable_truncation(self.max_length)
        self._tokenizer = tokenizer

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids with special tokens, at most ``max_length`` each."""
        # A lone surrogate has no UTF-8 form; the library would fail on the whole batch.
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(clean)]


def from_metadata(metadata: Mapping[str, Any], max_length: int) -> TextTokenizer:
    """The tokeniser that a GGUF file describes.  Raises ModelError, also where ``tokenizers`` is not installed."""
    with required("tokenizers", "making token ids of texts"):
        from tokenizers import Tokenizer
    whole = metadata.get(HF_JSON)
    if whole is not None:
        try:
            return TextTokenizer(Tokenizer.from_str(whole), max_length)
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{HF_JSON} holds no tokenizer that can be read: {error}") from error
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "bert":
        raise ModelError(f"tokenizer.ggml.model is {kind!r}; encoders need 'bert' (WordPiece) or {HF_JSON}", got=kind)
    return TextTokenizer(_word_piece(metadata), max_length)


def _word_piece(metadata: Mapping[str, Any]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelError("the file has no vocabulary (tokenizer.ggml.tokens)")
    types = metadata.get("tokenizer.ggml.token_type", [])
    special = {i for i, kind in enumerate(types) if kind == 3}
    vocabulary: dict[str, int] = {}
    for position, token in enumerate(tokens):
        if position in special or (token.startswith("[") and token.endswith("]")):
            vocabulary[token] = position
        elif token.startswith(WORD_START):
            vocabulary[token[len(WORD_START) :]] = position
        else:
            vocabulary[f"##{token}"] = position

    def named(key: str, default: str) -> str:
        position = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if position is None:
            return default
        if not 0 <= position < len(tokens):
            raise ModelError(f"tokenizer.ggml.{key}_token_id is {position}, the vocabulary has {len(tokens)} tokens")
        return str(tokens[position])

    unknown, cls, sep = named("unknown", "[UNK]"), named("cls", "[CLS]"), named("seperator", "[SEP]")
    for token in (unknown, cls, sep):
        if token not in vocabulary:
            raise ModelError(f"the vocabulary has no token {token!r}")
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    # GGUF does not say whether text is lowercased; a vocabulary without any word in capitals says it.
    lowercase = not any("A" <= token[1:2] <= "Z" for token in tokens if token.startswith(WORD_START))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
    )
    tokenizer.add_special_tokens([token for token in vocabulary if token.startswith("[") and token.endswith("]")])
    return tokenizer
