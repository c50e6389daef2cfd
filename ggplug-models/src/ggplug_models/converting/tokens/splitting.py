"""Finds the name of the pre-tokenizer of a ``tokenizer.json``, for the key ``tokenizer.ggml.pre``.

A ``tokenizer.json`` contains regular expressions; llama.cpp has names for them.  Unknown ones are refused, because a
file with a wrong name would give other tokens for the same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from ggplug_models.converting.tokens.tokenizer_json import pre_tokenizers
from ggplug_models.metadata.values import Values

_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)

_IDEOGRAPHS = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + _END
)
_SENTENCES = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"


def _words(numbers: str, marks: str = "") -> str:
    letters = rf"[\p{{L}}{marks}]" if marks else r"\p{L}"
    return rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{numbers}| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*|{_END}"


def _cased(suffix: str, numbers: str) -> str:
    return "|".join((*(each + suffix for each in _CASED), numbers, r" ?[^\s\p{L}\p{N}]+[\r\n/]*", _END))


DIGITS = "each digit"
"""Stands for a pattern that splits off single digits."""

NAMES: dict[tuple[str, ...], str] = {
    (_words(r"\p{N}{1,3}"),): "llama-bpe",
    (_words(r"\p{N}"),): "qwen2",
    (_words(r"\p{N}", marks=r"\p{M}"),): "qwen35",
    (_GPT_2,): "gpt-2",
    (DIGITS, _GPT_2): "starcoder",
    (r"\p{N}{1,3}", _IDEOGRAPHS, _DEEPSEEK_3): "deepseek-v3",
    (_SENTENCES,): "bloom",
    (_cased("", r"\p{N}"),): "tekken",
    (_cased(f"{_SUFFIX}?", r"\p{N}{1,3}"),): "gpt-4o",
}
"""The names of pre-tokenizers, by their patterns, which are applied one after the other."""


def pre_tokenizer(description: Values) -> str:
    """The name of the pre-tokenizer.  Raises ModelError if it has none."""
    if "pre_tokenizer" not in description:
        raise description.refused("pre_tokenizer", "a pre-tokenizer that llama.cpp has a name for")
    steps = list(pre_tokenizers(description))
    patterns = tuple(chain.from_iterable(map(_patterns, steps)))
    letters = [number for number, step in enumerate(steps, 1) if step.text("type") == "ByteLevel"]
    name = NAMES.get(patterns)
    if name is None or letters != [len(steps)]:
        known = ", ".join(sorted({*NAMES.values(), "dbrx"}))
        raise description.refused(
            "pre_tokenizer", f"one of the known pre-tokenizers, with ByteLevel at its end: {known}"
        )
    if name == "llama-bpe" and not description.inner("model").boolean("ignore_merges", False):
        return "dbrx"  # the same patterns, but words that are tokens are merged as well
    return name


def _patterns(step: Values) -> Iterator[str]:
    kind = step.text("type")
    if kind == "Split":
        # What a pattern does not match is a piece too; patterns that match everything may say the same as "Removed".
        inverted = step.boolean("invert", False)
        step.text("behavior", "Isolated", one_of=("Removed", "Isolated") if inverted else ("Isolated",))
        # Some files have the line ends of a pattern as they are, others escaped.
        yield step.inner("pattern").text("Regex").replace("\r", r"\r").replace("\n", r"\n")
    elif kind == "Digits":
        yield DIGITS if step.boolean("individual_digits", False) else kind
    elif kind == "ByteLevel":
        if step.boolean("add_prefix_space", False):
            raise step.refused("add_prefix_space", "false: GGUF files of byte pairs have no key for it")
        if step.boolean("use_regex", True):
            yield _GPT_2
    else:
        yield kind
