"""The vocabulary of a GGUF file: tokens, their attributes, and the special ones.

llama.cpp completes what a file does not specify, by the kind of tokenizer and the texts of tokens.  This module has the
same rules (llama.cpp, ``src/llama-vocab.cpp``, commit 0c1e570).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ggplug.errors import ModelError
from ggplug_models.metadata.values import Values

MODEL = "tokenizer.ggml.model"
TOKENS = "tokenizer.ggml.tokens"
SCORES = "tokenizer.ggml.scores"
TOKEN_TYPE = "tokenizer.ggml.token_type"
STRIPS = "tokenizer.ggml.token_strips"
"""A key of ggplug's: which white space tokens remove from the text around them, by id: before them, after them, both
(the sum), or none (0)."""

STRIPS_LEFT, STRIPS_RIGHT = 1, 2

ENDING = "tokenizer.ggml.end_token_ids"
"""A key of ggplug's: the ids of tokens that end texts, in addition to those that llama.cpp finds."""

LATE = "tokenizer.ggml.normalized_token_ids"
"""A key of ggplug's: the ids of tokens that are searched after the others, in the normalised text, and normalised."""

FIXED = "tokenizer.ggml.fixed_token_ids"
"""A key of ggplug's: the ids of normal tokens whose text always becomes them, and is not normalised: the user-defined
pieces of SentencePiece.  Unigrams only do not normalise it."""

BEFORE, AFTER = "tokenizer.ggml.tokens_before", "tokenizer.ggml.tokens_after"
"""Keys of ggplug's: the ids of the tokens that are added before and after texts, if they are not BOS and EOS alone."""

SPACE_PREFIX = "tokenizer.ggml.add_space_prefix"
TRIMS = "tokenizer.ggml.remove_extra_whitespaces"
PREPENDS = "tokenizer.ggml.prepend_scheme"
"""A key of ggplug's, one of :data:`SCHEMES`: before which texts a space is put if they begin with none.  These are all
("always"), those that no special token is before ("first"), or all words, which white space separates ("words"); with
"merging" all, of which several spaces in a row are one.
Without the key, one is also put before texts that begin with a space; unigrams have "every" for it, because llama.cpp's
put none before texts of spaces alone, and one before all texts of which they remove spaces."""

EVERY, MERGING = "every", "merging"
SCHEMES = ("always", "first", "words", EVERY, MERGING)

SPACE = "\u2581"
"""The character for a space in the tokens of most vocabularies."""


WHITE_SPACE = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | frozenset(
    map(chr, range(0x2000, 0x200B))
)
"""White space as Unicode defines it; Python's ``str.split`` has four more characters."""

WHITE_SPACES = re.compile(f"[{re.escape(''.join(sorted(WHITE_SPACE)))}]+")


class Attribute(enum.IntFlag):
    """Attributes of a token.  The first six are the values of the file's ``token_type``, from 1 on."""

    NORMAL = enum.auto()
    UNKNOWN = enum.auto()
    CONTROL = enum.auto()
    USER_DEFINED = enum.auto()
    UNUSED = enum.auto()
    BYTE = enum.auto()
    STRIPS_LEFT = enum.auto()
    """The token removes white space before it."""
    STRIPS_RIGHT = enum.auto()
    """The token removes white space after it."""


FOUND_IN_TEXT = Attribute.CONTROL | Attribute.USER_DEFINED | Attribute.UNKNOWN
"""Tokens that are searched in a text before it is tokenized."""

PARSED = Attribute.CONTROL | Attribute.UNKNOWN
"""Those of them that are searched only if special tokens are parsed."""

BY_TYPE = dict(enumerate(list(Attribute)[:6], 1))

BY_TEXT = {
    "eot": (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Texts of special tokens, for files that do not name them; the first one in the vocabulary is used."""

ENDS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
)
"""Texts of end tokens."""

KEYS = {
    "bos": ("bos",),
    "eos": ("eos",),
    "eot": ("eot",),
    "eom": ("eom",),
    "unk": ("unknown",),
    "sep": ("seperator",),
    "pad": ("padding",),
    "mask": ("mask",),
    "fim_pre": ("fim_pre", "prefix"),
    "fim_suf": ("fim_suf", "suffix"),
    "fim_mid": ("fim_mid", "middle"),
    "fim_pad": ("fim_pad",),
    "fim_rep": ("fim_rep",),
    "fim_sep": ("fim_sep",),
}
"""The middle parts of the metadata keys of special tokens; the last key that the file has is used."""


@dataclass(frozen=True)
class Defaults:
    """The defaults of a kind of tokenizer, for what the file does not specify.  ``ids``: those of special tokens."""

    ids: Mapping[str, int] = field(default_factory=dict)
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    escape_whitespaces: bool = True
    clean_spaces: bool = False


def token_texts(values: Values) -> list[str]:
    """The texts of the tokens by id, as in the file; of empty ones llama.cpp's names.  Raises ModelError."""
    return [text or f"[EMPTY_{n}]" for n, text in enumerate(values.texts(TOKENS, at_least=1))]


class Vocabulary:
    """The tokens of a file, with the settings that all kinds of tokenizers have.

    ``texts``: the tokens by id, as in the file.  ``ids``: the ids by text.  ``attributes``, ``scores``: by id.
    ``special``: the ids of special tokens that exist, by name (``bos``, ``eos``, ``eot``, ``unk``, ...).  ``ends``: the
    ids of end tokens.  ``stripped``: the white space that tokens remove from the text around them.  ``late``: the ids
    of tokens that are searched in the normalised text.  ``fixed``: the ids of normal tokens whose text stays as it is.

    Raises ModelError for lists that are missing, of the wrong type or of different lengths, for duplicate tokens, and
    for a byte token whose text is not a byte.
    """

    def __init__(self, values: Values, rules: Defaults) -> None:
        self.values = values
        self.texts = token_texts(values)
        self.ids = {text: n for n, text in enumerate(self.texts)}
        if len(self.ids) != len(self.texts):
            n = next(n for n, text in enumerate(self.texts) if self.ids[text] != n)
            raise ModelError(
                f"{TOKENS} has duplicates: [{n}] and [{self.ids[self.texts[n]]}] are both {self.texts[n]!r}",
                got=self.texts[n],
            )
        self.scores = self._scores()
        types = values.integers(TOKEN_TYPE, None, length=len(self.texts))
        kinds = [1] * len(self.texts) if types is None else types.tolist()
        self.attributes = [int(BY_TYPE.get(kind, 0)) for kind in kinds]
        self.special = self._special(rules)
        self.add_bos: bool = values.boolean("tokenizer.ggml.add_bos_token", rules.add_bos)
        self.add_eos: bool = values.boolean("tokenizer.ggml.add_eos_token", rules.add_eos)
        self.add_space_prefix: bool = values.boolean(SPACE_PREFIX, rules.add_space_prefix)
        self.prepend_scheme: str | None = values.text(PREPENDS, None, one_of=SCHEMES)
        self.remove_extra_whitespaces: bool = values.boolean(TRIMS, False)
        self.escape_whitespaces = rules.escape_whitespaces
        self.clean_spaces = rules.clean_spaces
        self.stripped = " \t\n\v\f\r"  # white space as C defines it, as in llama.cpp
        self._known_by_text()
        self.ends = self._ends()
        self._before, self._after = self._listed(BEFORE), self._listed(AFTER)
        self.late = frozenset(self._listed(LATE) or ())
        self.fixed = frozenset(self._listed(FIXED) or ())
        self._known_by_name()
        self.bytes = {n: self._byte(n) for n in self.having(Attribute.BYTE)}

    def __len__(self) -> int:
        return len(self.texts)

    def having(self, attribute: Attribute) -> list[int]:
        """The ids of the tokens with any of these attributes."""
        wanted = int(attribute)  # operations on an enum take a microsecond each
        return [n for n, each in enumerate(self.attributes) if each & wanted]

    def _scores(self) -> npt.NDArray[np.float64]:
        value = self.values.values.get(SCORES)
        if value is None:
            return np.zeros(len(self.texts))
        fits = isinstance(value, np.ndarray) and value.dtype.kind in "fi" and value.shape == (len(self.texts),)
        if not fits or not np.isfinite(value).all():
            raise self.values.refused(SCORES, f"an array of {len(self.texts)} finite numbers")
        return np.asarray(value.astype(np.float32), np.float64)

    def _special(self, rules: Defaults) -> dict[str, int]:
        found = {}
        for name, parts in KEYS.items():
            number = rules.ids.get(name)
            for part in parts:
                number = self._number(f"tokenizer.ggml.{part}_token_id", number)
            if number is not None and number < len(self.texts):
                found[name] = number
        return found

    def _number(self, key: str, default: int | None) -> int | None:
        """The id under ``key``; the default if there is none, or one outside of the vocabulary (-1 in some files)."""
        value: int | None = self.values.integer(key, None, at_least=-(2**63), at_most=2**64)
        return default if value is None or not 0 <= value < len(self.texts) else value

    def _known_by_text(self) -> None:
        for name, texts in BY_TEXT.items():
            text = next((text for text in texts if text in self.ids), None)
            if name not in self.special and text is not None:
                self.special[name] = self.ids[text]
                self.attributes[self.ids[text]] |= Attribute.CONTROL
        for n in self.having(Attribute.CONTROL):
            if "unused" in self.texts[n]:
                self.attributes[n] |= Attribute.UNUSED

    def _ends(self) -> frozenset[int]:
        ends = {self.special[name] for name in ("fim_pad", "fim_rep", "fim_sep") if name in self.special}
        for text in ENDS:
            if text in self.ids:
                ends.add(self.ids[text])
                self.attributes[self.ids[text]] |= Attribute.CONTROL
        for text in ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"):  # gpt-oss: these are part of the text
            if text in self.ids:
                self.attributes[self.ids[text]] = Attribute.USER_DEFINED
        ends |= {self.special[name] for name in ("eos", "eot", "eom") if name in self.special}

        def among(*texts: str) -> bool:
            return any(self.ids.get(text) in ends for text in texts)

        calls = among("<|call|>", "<|calls|>")
        if calls and among("<|end|>") and among("<|return|>", "<|flush|>"):
            # In these models, it ends a message, not the answer.
            ends.discard(self.ids["<|end|>"])
            self.attributes[self.ids["<|end|>"]] = Attribute.USER_DEFINED
        if among("</s>") and among("<|tool_response>", "<|plamo:eos|>"):
            ends.discard(self.ids["</s>"])
            self.attributes[self.ids["</s>"]] = Attribute.NORMAL
        listed = self._listed(ENDING) or []
        for each in listed:
            if self.attributes[each] & FOUND_IN_TEXT:
                self.attributes[each] |= Attribute.CONTROL
        return frozenset(ends.union(listed))

    def _listed(self, key: str) -> list[int] | None:
        """The ids of tokens under a key; None without it.  Raises ModelError."""
        found = self.values.integers(key, None, length=np.size(self.values.values.get(key, ())))
        if found is None:
            return None
        if not all(0 <= each < len(self.texts) for each in found):
            raise self.values.refused(key, f"ids from 0 to {len(self.texts) - 1}")
        return [int(each) for each in found]

    @property
    def before(self) -> list[int]:
        """The ids of the tokens that are added before texts: BOS, if the file does not say others."""
        return ([self.special["bos"]] if self.add_bos else []) if self._before is None else self._before

    @property
    def after(self) -> list[int]:
        """The ids of the tokens that are added after texts: EOS, if the file does not say others."""
        return ([self.special["eos"]] if self.add_eos else []) if self._after is None else self._after

    def _known_by_name(self) -> None:
        """Sets which tokens remove white space: by the name of the model, if the file does not say it."""
        strips = self.values.integers(STRIPS, None, length=len(self.texts))
        if strips is not None:
            self.stripped = "".join(sorted(WHITE_SPACE))
            for bit, side in ((STRIPS_LEFT, Attribute.STRIPS_LEFT), (STRIPS_RIGHT, Attribute.STRIPS_RIGHT)):
                for n in np.flatnonzero(strips & bit).tolist():
                    self.attributes[n] |= side
            return
        kind = stripping_kind(self.values)
        if kind == "phi3":
            kept = {self.ids.get(text) for text in ("<unk>", "<s>", "<|endoftext|>")}
            for n in self.having(FOUND_IN_TEXT):
                if n not in kept:
                    self.attributes[n] |= Attribute.STRIPS_RIGHT
            self._strips("</s>", Attribute.STRIPS_RIGHT)
        elif kind is not None:
            self._strips(kind, Attribute.STRIPS_LEFT)

    def _strips(self, text: str, side: Attribute) -> None:
        if text in self.ids:
            self.attributes[self.ids[text]] |= side

    def _byte(self, n: int) -> bytes:
        text = self.texts[n]
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            try:
                return bytes.fromhex(text[3:5])
            except ValueError:
                pass
        raise ModelError(
            f"{TOKENS}[{n}] has the type byte, so it must be a byte such as '<0x0A>', got {text!r}", got=text
        )


def stripping_kind(values: Values) -> str | None:
    """Which tokens of a model remove white space, by its names: "phi3", or the one that removes it on its left."""
    pre = values.text("tokenizer.ggml.pre", None) or ""
    architecture = values.text("general.architecture", None) or ""
    name = (values.text("general.name", None) or "").lower()
    if any(each in pre for each in ("jina-v2-de", "jina-v2-es", "jina-v2-code")) or any(
        each in architecture for each in ("nomic-bert-moe", "jina-bert-v3")
    ):
        return "<mask>"
    if "phi-3" in name or "phi3" in name:
        return "phi3"
    return "[MASK]" if "modern-bert" in name else None
