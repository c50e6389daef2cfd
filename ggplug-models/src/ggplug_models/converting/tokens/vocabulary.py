"""Converts ``tokenizer.json``, ``tokenizer.model`` and their settings to the metadata ``tokenizer.ggml.*``."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np

from ggplug.errors import ModelError
from ggplug_models.converting.family import Family, first_integer
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.tokens import same_tokens
from ggplug_models.converting.tokens.sentencepiece import (
    BPE,
    CHARACTERS,
    MODEL_TYPE,
    PIECES,
    REMOVES_SPACES,
    UNIGRAM,
    UNIGRAM_PIECES,
    for_pairs,
    for_unigrams,
    pieces,
    rules,
)
from ggplug_models.converting.tokens.special import (
    KEYS,
    around,
    bare,
    chat_template,
    further_ends,
    refused_model,
    special,
)
from ggplug_models.converting.tokens.splitting import pre_tokenizer
from ggplug_models.converting.tokens.token_files import LINES, RANKS, WORLD, lines, ranked, world
from ggplug_models.converting.tokens.token_table import BYTE, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, TokenTable
from ggplug_models.converting.tokens.tokenizer_json import (
    added_tokens,
    check_bytes,
    normalizers,
    of_bytes,
    of_merges,
    of_text,
    of_unigrams,
    strips,
)
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.byte_pairs import MERGES, WHOLE_WORDS
from ggplug_models.tokenizers.encoders import CONTROL, HF_JSON, WORD_START
from ggplug_models.tokenizers.pre_tokenizers import BY_NAME, PRE
from ggplug_models.tokenizers.vocabulary import (
    EVERY,
    FIXED,
    PREPENDS,
    SCORES,
    SPACE_PREFIX,
    STRIPS,
    TOKENS,
    stripping_kind,
)

_OF_BYTE = re.compile("<0x[0-9A-F]{2}>")

MERGED = "merges"
"""The vocabulary of families that read the merges of ``tokenizer.json``, also next to a ``tokenizer.model``."""


def vocabulary(folder: Folder, family: Family, config: Values, n_vocab: int, name: str) -> dict[str, Any]:
    """The metadata of the vocabulary.  ``n_vocab``: number of token embeddings in the weights.  ``name``: the model's.

    Raises ModelError.
    """
    found = _vocabulary(folder, family, config, n_vocab)
    if PRE in found:
        found[PRE] = family.splitting.get(found[PRE], found[PRE])
    for kind, token in family.special.items():
        key = f"tokenizer.ggml.{KEYS.get(kind, kind)}_token_id"
        if isinstance(token, int):
            found[key] = token
        elif token in found[TOKENS]:
            found.setdefault(key, found[TOKENS].index(token))
        else:
            missing = f"{folder.path} has no token {token!r} in its vocabulary, which {family.architecture} models need"
            raise ModelError(missing, got=None, wanted=token)
    found |= family.vocabulary(found, config, folder) if family.vocabulary else {}
    found |= further_ends(folder, config, found, n_vocab)
    description = folder.optional_json("tokenizer.json") or Values({})
    found |= around(description, found, n_vocab)
    if WHOLE_WORDS in found and found[WHOLE_WORDS] == BY_NAME[found[PRE]].whole_words:
        del found[WHOLE_WORDS]
    found = {key: value for key, value in found.items() if value is not None}
    if description.values and HF_JSON not in found:
        whole = {**found, "general.name": name, "general.architecture": family.architecture}
        if STRIPS not in found and stripping_kind(Values(whole)):
            whole[STRIPS] = found[STRIPS] = np.zeros(n_vocab, np.uint8)
        same_tokens.check(folder, description, whole)
    return found


def _vocabulary(folder: Folder, family: Family, config: Values, n_vocab: int) -> dict[str, Any]:
    kinds = family.vocabularies
    if len(kinds) > 1:
        kinds = (folder.json("tokenizer.json").inner("model").text("type", one_of=kinds),)
    if kinds == ("WordPiece",):
        return _word_pieces(folder, config, n_vocab)
    settings = folder.optional_json("tokenizer_config.json") or Values({})
    if kinds == ("Unigram",):
        description = folder.optional_json("tokenizer.json") or Values({})
        if PIECES in folder or UNIGRAM_PIECES in folder or not description.values:
            found = _unigram(folder, description, settings, n_vocab)
        else:
            found = _listed_unigram(description, n_vocab)
        return found | special(folder, description, settings, config, n_vocab)
    if kinds == (WORLD,):
        return world(folder, n_vocab) | special(folder, Values({}), settings, config, n_vocab)
    if kinds == (RANKS,):
        return ranked(folder, n_vocab) | special(folder, Values({}), settings, config, n_vocab)
    if kinds == (LINES,):
        return lines(folder, settings, n_vocab) | chat_template(folder, settings)
    if kinds != (MERGED,) and PIECES in folder and settings.values.get("tokenizer_class") != "GPT2Tokenizer":
        description = folder.optional_json("tokenizer.json") or Values({})
        found = _sentence_pieces(folder, description, settings, n_vocab)
        prefix = False if family.architecture.startswith("gemma") else settings.boolean("add_prefix_space", None)
        found |= {} if prefix is None else {SPACE_PREFIX: prefix}
    else:
        description = folder.json("tokenizer.json")
        model = description.inner("model")
        if model.text("type", "BPE") != "BPE":
            raise refused_model(description, "'BPE'")
        found = (_merged_pieces if model.boolean("byte_fallback", False) else _byte_pairs)(description, n_vocab)
    return found | special(folder, description, settings, config, n_vocab)


def _places(description: Values, n_vocab: int) -> dict[str, int]:
    """The ids of the tokens in the vocabulary of ``tokenizer.json``.  Raises ModelError."""
    words = description.inner("model").inner("vocab")
    return {token: words.integer(token, at_least=0, at_most=n_vocab - 1) for token in words.values}


def _byte_pairs(description: Values, n_vocab: int) -> dict[str, Any]:
    tokens = TokenTable(n_vocab)
    for text, token in _places(description, n_vocab).items():
        tokens.put(token, text, NORMAL)
    tokens.put_added(description, Values({}))
    joined = [" ".join(part.replace(" ", "\u0120") for part in merge) for merge in merges(description)]
    whole = {**tokens.metadata("gpt2"), **pre_tokenizer(description), MERGES: joined}
    return whole | bare(description, "bos") | of_bytes(description, n_vocab)


def merges(description: Values) -> list[tuple[str, str]]:
    """The merges, as pairs of tokens; older files have them as one text with a space."""
    model = description.inner("model")
    listed = model.values.get("merges")
    found: list[tuple[str, str]] = []
    for merge in listed if isinstance(listed, list) else [None]:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not (isinstance(parts, list) and len(parts) == 2 and all(isinstance(part, str) for part in parts)):
            raise model.refused("merges", "an array of pairs of tokens")
        found.append((parts[0], parts[1]))
    return found


def _sentence_pieces(folder: Folder, description: Values, settings: Values, n_vocab: int) -> dict[str, Any]:
    """The metadata of a SentencePiece vocabulary, from ``tokenizer.model``.

    What is done with texts before they are tokenized says ``tokenizer.json`` if there is one, as in transformers.
    """
    says, tokens, fixed = _rules_and_pieces(folder, PIECES, n_vocab, UNIGRAM, BPE, CHARACTERS)
    unknown = int(np.argmax(tokens.types == UNKNOWN))
    entries = tokens.put_added(description, settings)
    fixed = [token for token in fixed if token not in entries]
    unigrams = says.integer(MODEL_TYPE) == UNIGRAM
    whole = tokens.metadata("t5" if unigrams else "llama") | {SCORES: tokens.scores}
    if unigrams:
        whole |= {"tokenizer.ggml.unknown_token_id": unknown, **_AS_OF_PAIRS}
    if "model" in description:
        kind = "Unigram" if unigrams else "BPE"
        model = description.inner("model")
        model.text("type", kind, one_of=(kind,))
        precompiled = any(step.text("type") == "Precompiled" for step in normalizers(description))
        whole |= bare(description, "bos")
        whole |= (of_unigrams if precompiled else of_text)(description, n_vocab, tokens.normal)
        if unigrams:
            whole = {PREPENDS: EVERY, **whole}
        return whole | strips(entries.items(), n_vocab)
    if unigrams:
        # SentencePiece gives them scores above those of texts of several pieces, whatever is in the file.
        tokens.scores[fixed] = [0.1 * (len(tokens.texts[token].encode("utf-8")) - 1) for token in fixed]
        whole |= for_unigrams(says) | {PREPENDS: EVERY}
    else:
        whole |= for_pairs(says)
    return whole | _fixed(says, tokens, fixed) | strips(entries.items(), n_vocab)


def _fixed(says: Values, tokens: TokenTable, fixed: list[int]) -> dict[str, Any]:
    """The key of user-defined pieces.  Raises ModelError where spaces are removed around them, but not within."""
    spaced = next((tokens.texts[token] for token in fixed if "" in tokens.texts[token].split(" ")), None)
    if spaced is not None and says.boolean(REMOVES_SPACES):
        raise says.refused(REMOVES_SPACES, f"false, because the user-defined piece {spaced!r} has such spaces")
    return {FIXED: np.array(fixed, np.uint32)} if fixed else {}


_AS_OF_PAIRS = {
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.add_eos_token": False,
}
"""What holds for merged pieces without keys."""


def _rules_and_pieces(folder: Folder, name: str, n_vocab: int, *types: int) -> tuple[Values, TokenTable, list[int]]:
    """The rules of a SentencePiece file, its pieces and the tokens of ``added_tokens.json``, and the user-defined ids.

    ``types``: the supported types of models.  Raises ModelError.
    """
    content, path = folder.read(name), folder.path / name
    listed, says = pieces(content, path), rules(content, path, types)
    tokens = TokenTable(n_vocab)
    for token, piece in enumerate(listed[:n_vocab]):
        # User-defined tokens follow from added_tokens_decoder; as in llama.cpp, the others become normal ones.
        tokens.put(token, piece.text, NORMAL if piece.type == USER_DEFINED else piece.type, piece.score)
    added = folder.optional_json("added_tokens.json")
    for text in added.values if added else ():
        token = added.integer(text, at_least=0) if added else 0
        if token < n_vocab:
            tokens.put(token, text, USER_DEFINED, -1000)
    return says, tokens, [token for token, piece in enumerate(listed[:n_vocab]) if piece.type == USER_DEFINED]


def _unigram(folder: Folder, description: Values, settings: Values, n_vocab: int) -> dict[str, Any]:
    """The metadata of a SentencePiece vocabulary of unigrams, from ``tokenizer.model`` or ``spiece.model``.

    What is done with texts before they are tokenized says ``tokenizer.json`` if there is one, as in transformers.
    """
    name = PIECES if PIECES in folder else UNIGRAM_PIECES
    says, tokens, fixed = _rules_and_pieces(folder, name, n_vocab, UNIGRAM)
    if "model" not in description:
        _put_sentinels(tokens, settings)
    entries = tokens.put_added(description, settings, replaces=False)
    whole = tokens.metadata("t5") | {SCORES: tokens.scores} | for_unigrams(says)
    if (unknown := np.flatnonzero(tokens.types == UNKNOWN)).size:
        whole["tokenizer.ggml.unknown_token_id"] = int(unknown[0])
    if "model" in description:
        whole |= of_unigrams(description, n_vocab, tokens.normal)
    else:
        whole |= _fixed(says, tokens, [token for token in fixed if token not in entries])
    return whole | strips(entries.items(), n_vocab)


def _put_sentinels(tokens: TokenTable, settings: Values) -> None:
    """Adds the tokens that T5's tokenizer has behind its pieces, the last one first, if no file lists them."""
    if "<extra_id_0>" in tokens.texts:
        return
    of_t5 = settings.text("tokenizer_class", "").removesuffix("Fast") == "T5Tokenizer"
    count = settings.integer("extra_ids", 100 if of_t5 else 0, at_least=0)
    end = int(np.flatnonzero(tokens.types != UNUSED).max(initial=-1)) + 1 + count
    for number in range(count):
        if (token := end - 1 - number) < len(tokens.texts):
            tokens.put(token, f"<extra_id_{number}>", CONTROL, -1000)


def _listed_unigram(description: Values, n_vocab: int) -> dict[str, Any]:
    """The metadata of a vocabulary of unigrams in ``tokenizer.json``."""
    model, tokens = description.inner("model"), TokenTable(n_vocab)
    listed, unknown = model.values.get("vocab"), model.integer("unk_id", None, at_least=0)
    for token, entry in enumerate(listed if isinstance(listed, list) else [None]):
        if token >= n_vocab or not _scored(entry):
            raise model.refused("vocab", f"an array of at most {n_vocab} pairs of a token and its score")
        tokens.put(token, entry[0], UNKNOWN if token == unknown else NORMAL, entry[1])
    for token, entry in added_tokens(description, n_vocab):
        if token != unknown:
            kind = CONTROL if entry.boolean("special", False) else USER_DEFINED
            tokens.put(token, entry.text("content"), kind, tokens.scores[token])
    if model.boolean("byte_fallback", False):
        check_bytes(model, {*tokens.texts})
        for token, text in enumerate(tokens.texts):
            if _OF_BYTE.fullmatch(text):
                tokens.types[token] = BYTE
    whole = tokens.metadata("t5") | {SCORES: tokens.scores}
    return whole | bare(description, "eos") | of_unigrams(description, n_vocab, tokens.normal)


def _scored(entry: Any) -> bool:
    pair = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
    return pair and type(entry[1]) in (int, float) and math.isfinite(entry[1])


def _merged_pieces(description: Values, n_vocab: int) -> dict[str, Any]:
    """The metadata of a SentencePiece vocabulary without ``tokenizer.model``.

    The score of a token is minus the index of the first merge that makes it.  SentencePiece merges the pair whose token
    has the highest score, so the order of merges is the same.
    """
    tokens = TokenTable(n_vocab)
    unknown = description.inner("model").text("unk_token", None)
    first = {left + right: -float(n) for n, (left, right) in reversed(list(enumerate(merges(description))))}
    for text, token in _places(description, n_vocab).items():
        kind = BYTE if _OF_BYTE.fullmatch(text) else UNKNOWN if text == unknown else NORMAL
        unmerged = -float(len(first)) if kind == NORMAL else 0.0
        tokens.put(token, text, kind, first.get(text, unmerged))
    tokens.put_added(description, Values({}))
    if unknown in tokens.texts:
        tokens.types[tokens.texts.index(unknown)] = UNKNOWN
    whole = tokens.metadata("llama") | {SCORES: tokens.scores}
    return whole | bare(description, "bos") | of_merges(description, n_vocab, first)


def _word_pieces(folder: Folder, config: Values, n_vocab: int) -> dict[str, Any]:
    """The metadata of a WordPiece vocabulary, with the whole ``tokenizer.json`` and the actual truncation."""
    description = folder.json("tokenizer.json")
    model = description.inner("model")
    if model.text("type", "WordPiece") != "WordPiece":
        raise refused_model(description, "'WordPiece'")
    places = _places(description, n_vocab)
    settings = folder.optional_json("tokenizer_config.json") or Values({})
    entries = description.objects("added_tokens", [])
    control = {entry.text("content") for entry in entries if entry.boolean("special", False)}
    tokens = TokenTable(n_vocab)
    tokens.texts = [WORD_START + text for text in tokens.texts]
    for text, token in places.items():
        if text in control:
            tokens.put(token, text, CONTROL)
        elif text:
            tokens.put(token, text[2:] if text.startswith("##") else WORD_START + text, NORMAL)
    found = tokens.metadata("bert") | special(folder, description, settings, config, n_vocab)
    found["tokenizer.ggml.token_type_count"] = config.integer("type_vocab_size", 2)
    for key, text in {
        "padding": "[PAD]",
        "unknown": "[UNK]",
        "cls": "[CLS]",
        "bos": "[CLS]",
        "seperator": "[SEP]",
        "eos": "[SEP]",
        "mask": "[MASK]",
    }.items():
        if text in places:
            found[f"tokenizer.ggml.{key}_token_id"] = places[text]

    # sentence_bert_config.json overrides the truncation of tokenizer.json; the encoder pads by itself.
    longest = first_integer(config, "n_positions|max_length|max_position_embeddings")
    overrides = folder.optional_json("sentence_bert_config.json")
    if overrides is not None:
        longest = min(longest, overrides.integer("max_seq_length", longest))
    elif "truncation" in description:
        longest = min(longest, description.inner("truncation").integer("max_length"))
    truncation = {"max_length": longest, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    whole = {**description.values, "truncation": truncation, "padding": None}
    return found | {HF_JSON: json.dumps(whole, ensure_ascii=False)}
