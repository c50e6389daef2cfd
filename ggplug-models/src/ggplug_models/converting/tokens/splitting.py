"""How a ``tokenizer.json`` splits texts, for the keys ``tokenizer.ggml.pre`` and ``tokenizer.ggml.pre_patterns``.

The regular expressions of the folder go into the file, under a key of ggplug's.  llama.cpp knows them by names instead,
and has expressions of its own for each name, some of which split texts in other alphabets than Latin otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ggplug_models.converting.tokens.tokenizer_json import pre_tokenizers
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.pre_tokenizers import (
    BEHAVIORS,
    BEHAVIORS_OF_MATCHES,
    CASED,
    ISOLATED,
    PATTERNS,
    PRE,
    UNNAMED,
    Splits,
)

_BEHAVIORS = {each.title().replace("_", ""): each for each in BEHAVIORS_OF_MATCHES}
"""What happens to matches, by the names of ``tokenizer.json``, such as ``MergedWithNext``."""

_DIGIT = r"\p{N}"
_NUMBERS = r"\p{N}{1,3}"
_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_BY_CASE = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)

_IDEOGRAPHS = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
)
_DEEPSEEK = ("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", _DIGIT)
_MARKS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_SENTENCES = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
_LING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_END}"


def _words(numbers: str, marks: str = "") -> str:
    letters = rf"[\p{{L}}{marks}]" if marks else r"\p{L}"
    return rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{numbers}| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*|{_END}"


def _by_case(suffix: str, numbers: str) -> str:
    return "|".join((*(each + suffix for each in _BY_CASE), numbers, r" ?[^\s\p{L}\p{N}]+[\r\n/]*", _END))


_LINES = Splits(r"(?:\r?\n)+(?!\r?\n)", "merged_with_next")

NAMES: dict[tuple[str | Splits, ...], str] = {
    (_words(_NUMBERS),): "llama-bpe",
    (_words(_DIGIT),): "qwen2",
    (_words(_DIGIT, marks=r"\p{M}"),): "qwen35",
    (_NUMBERS, _words(r"\p{N}+")): "minicpm5",
    (_LINES, _words(_DIGIT)): "laguna",
    (_LING,): "bailingmoe",
    (_SEED,): "seed-coder",
    (_GPT_2,): "gpt-2",
    (_DIGIT, _GPT_2): "starcoder",
    (_NUMBERS, _IDEOGRAPHS, rf"{_DEEPSEEK_3}[\r\n]*|{_END}"): "deepseek-v3",
    (_NUMBERS, _IDEOGRAPHS, rf"{_DEEPSEEK_3}|[\r\n]|\s+(?!\S)|\s+", _DIGIT): "spark2_5",
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", *_DEEPSEEK): "deepseek-coder",
    (r"[\r\n]", rf"\s?[{CASED}]+", rf"\s?[{_MARKS}]+", r"\s+$", *_DEEPSEEK): "deepseek-llm",
    (_SENTENCES,): "bloom",
    (_by_case("", _DIGIT),): "tekken",
    (_by_case(f"{_SUFFIX}?", _NUMBERS),): "gpt-4o",
    (r"\d{1,3}(?=(?:\d{3})*\b)", _by_case(f"{_SUFFIX}?", _NUMBERS)): "tiny_aya",
}
"""llama.cpp's names, by the patterns of published models, which are applied one after the other; a plain one isolates
its matches."""


def pre_tokenizer(description: Values) -> dict[str, Any]:
    """The keys of the pre-tokenizer.  Raises ModelError for one that splits by more than regular expressions."""
    steps = list(pre_tokenizers(description))
    if [number for number, step in enumerate(steps, 1) if step.text("type") == "ByteLevel"] != [len(steps)]:
        raise description.refused("pre_tokenizer", "one with ByteLevel at its end")
    found = [each for step in steps for each in _splits(step)]
    name = NAMES.get(tuple(each.pattern if each.behavior == ISOLATED else each for each in found), UNNAMED)
    if name == UNNAMED and any(step.values.get("behavior") == "Removed" for step in steps):
        raise description.refused("pre_tokenizer", "one that is known to keep all of a text, unlike 'Removed'")
    if name == "llama-bpe" and not description.inner("model").boolean("ignore_merges", False):
        name = "dbrx"  # the same patterns, but words that are tokens are merged as well
    behaviors = [each.behavior for each in found]
    isolate = all(each == ISOLATED for each in behaviors)
    return {PRE: name, PATTERNS: [each.pattern for each in found], BEHAVIORS: None if isolate else behaviors}


def _splits(step: Values) -> Iterator[Splits]:
    kind = step.text("type", one_of=("Split", "Digits", "ByteLevel"))
    if kind == "Split":
        inverted = step.boolean("invert", False)
        behavior = step.text("behavior", "Isolated", one_of=("Isolated", "Removed") if inverted else tuple(_BEHAVIORS))
        # Some files have the line ends of a pattern as they are, others escaped.
        pattern = step.inner("pattern").text("Regex").replace("\r", r"\r").replace("\n", r"\n")
        yield Splits(pattern, ISOLATED if inverted else _BEHAVIORS[behavior])
    elif kind == "Digits":
        yield Splits(_DIGIT if step.boolean("individual_digits", False) else rf"{_DIGIT}+")
    elif step.boolean("add_prefix_space", False):
        raise step.refused("add_prefix_space", "false: GGUF files of byte pairs have no key for it")
    elif step.boolean("use_regex", True):
        yield Splits(_GPT_2)
