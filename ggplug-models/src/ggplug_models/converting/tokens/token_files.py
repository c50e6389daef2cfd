"""Vocabularies of families that have a file of their own: RWKV's list, the ranks of Qwen 1, the lines of PLaMo."""

from __future__ import annotations

import ast
import base64
import json
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ggplug.errors import ModelError
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.tokens.special import KEYS
from ggplug_models.converting.tokens.token_table import BYTE, NORMAL, UNKNOWN, UNUSED, TokenTable
from ggplug_models.metadata.values import Values, short_repr
from ggplug_models.tokenizers.byte_pairs import FORM, LETTERS, MERGES
from ggplug_models.tokenizers.encoders import CONTROL
from ggplug_models.tokenizers.vocabulary import MODEL, SCORES, SPACE_PREFIX, TOKEN_TYPE, TOKENS

WORLD = "world"
"""The vocabulary of RWKV's families, which have a list of tokens in a file of its own."""

WORLD_TOKENS = "rwkv_vocab_v20230424.txt"

LINES = "lines"
"""The vocabulary of PLaMo 2 and 3, whose tokens are arrays of JSON on the lines of a file of their own."""

TOKEN_LINES = "tokenizer.jsonl"

RANKS = "ranks"
"""The vocabulary of Qwen 1, a file with the rank of each token, by which tokens are merged."""

RANKS_OF_QWEN = "qwen.tiktoken"
_NAMED_BY_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)))
"""The tokens that follow those of the file, by the published code of the tokenizer."""


def world(folder: Folder, n_vocab: int) -> dict[str, Any]:
    """The metadata of RWKV's list of tokens: a number, a literal of Python, and a number of bytes on each line."""
    tokens = TokenTable(n_vocab)
    tokens.put(0, "<s>", CONTROL)
    lines = folder.read(WORLD_TOKENS).decode("utf-8", "replace").removesuffix("\n").split("\n")
    for token, line in enumerate(lines, 1):
        try:
            literal, size = line.split(" ", 1)[1].rsplit(" ", 1)
            text = ast.literal_eval(literal)
            content = text.encode("utf-8") if isinstance(text, str) else text
            right = isinstance(content, bytes) and len(content) == int(size) and token < n_vocab
        except (ValueError, TypeError, IndexError, SyntaxError):
            right = False
        if not right:
            wanted = "a number, a token as a literal of Python, and its bytes, of no more tokens than embeddings"
            place = f"{folder.path / WORLD_TOKENS}: line {token}"
            raise ModelError(f"{place} must be {wanted}, got {short_repr(line)}", got=line, wanted=wanted)
        tokens.put(token, repr(content)[2:-1], NORMAL)
    return {MODEL: "rwkv", TOKENS: tokens.texts, TOKEN_TYPE: tokens.types}


def ranked(folder: Folder, n_vocab: int) -> dict[str, Any]:
    """The metadata of a list of tokens in base 64 with their ranks; merges are those that make the tokens by rank."""
    ranks: dict[bytes, int] = {}
    place, tokens = folder.path / RANKS_OF_QWEN, TokenTable(n_vocab)
    for number, line in enumerate(folder.read(RANKS_OF_QWEN).splitlines()):
        try:
            encoded, rank = line.split()
            content = base64.b64decode(encoded, validate=True)
            right = int(rank) == number < n_vocab and content not in ranks
        except ValueError:
            right = False
        if not right:
            wanted = f"a token in base 64 and {number}, of no more tokens than embeddings"
            raise ModelError(
                f"{place}: line {number + 1} must be {wanted}, got {short_repr(line)}", got=line, wanted=wanted
            )
        ranks[content] = number
    made = []
    for number, content in enumerate(ranks):
        tokens.put(number, _in_letters(content), NORMAL)
        if len(content) > 1:
            parts = _merged_by_rank(content, ranks)
            if len(parts) != 2:
                raise ModelError(f"{place}: line {number + 1} has a token that no two others make", got=content)
            made.append(" ".join(map(_in_letters, parts)))
    for number, text in enumerate(_NAMED_BY_QWEN[: max(0, n_vocab - len(ranks))], len(ranks)):
        tokens.put(number, text, CONTROL)
    return tokens.metadata("gpt2", "qwen2") | {MERGES: made, FORM: "NFC"}


def _in_letters(token: bytes) -> str:
    return "".join(map(_LETTER_OF.__getitem__, token))


_LETTER_OF = {byte: letter for letter, byte in LETTERS.items()}


def _merged_by_rank(token: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """The parts of a token after all merges of a lower rank than its own."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [(ranks.get(left + right, len(ranks)), n) for n, (left, right) in enumerate(pairwise(parts))]
        rank, n = min(pairs)
        if rank >= ranks[token]:
            break
        parts[n : n + 2] = [parts[n] + parts[n + 1]]
    return parts


def lines(folder: Folder, settings: Values, n_vocab: int) -> dict[str, Any]:
    """The metadata of PLaMo's lines of a token, its score, and its kind.  ``settings``: ``tokenizer_config.json``."""
    tokens = TokenTable(n_vocab)
    lines = [line for line in folder.read(TOKEN_LINES).decode("utf-8", "replace").split("\n") if line.strip()]
    for token, line in enumerate(lines):
        try:
            text, score, kind, *_ = json.loads(line)
            right = isinstance(text, str) and math.isfinite(score) and token < n_vocab
        except (ValueError, TypeError):
            right = False
        if not right:
            wanted = "an array of a token, its score and its kind, of no more tokens than embeddings"
            place = f"{folder.path / TOKEN_LINES}: line {token + 1}"
            raise ModelError(f"{place} must be {wanted}, got {short_repr(line)}", got=line, wanted=wanted)
        kinds = {"UNKNOWN": UNKNOWN, "CONTROL": CONTROL, "BYTE": BYTE}
        named = text.startswith("<|plamo:") and text.endswith("|>")
        tokens.put(token, text, kinds.get(kind, CONTROL if named else NORMAL), score)
    for number in range(1, n_vocab - len(lines) + 1):
        tokens.put(len(lines) + number - 1, f"[PAD{number}]", UNUSED, -1000)
    found = tokens.metadata("plamo2") | {SCORES: tokens.scores, SPACE_PREFIX: False}
    for kind in ("bos", "eos", "pad", "sep", "unk"):
        if f"{kind}_token" in settings:
            text = settings.text(f"{kind}_token")
            if text not in tokens.texts:
                raise settings.refused(f"{kind}_token", f"one of the tokens of {TOKEN_LINES}")
            found[f"tokenizer.ggml.{KEYS[kind]}_token_id"] = tokens.texts.index(text)
    return found
