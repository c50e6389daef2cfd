"""The pre-tokenizers: how texts are split into words before byte pairs are merged.

The names are values of ``tokenizer.ggml.pre``.  Names, patterns and flags are those of llama.cpp
(``src/llama-vocab.cpp`` and ``src/unicode.cpp``, commit 0c1e570), also if the models' own tokenizers differ, so that
token ids equal those of llama.cpp; files that ggplug converted have the patterns of the models.  Patterns are in the
syntax of Oniguruma.  They are applied one after the other, each to the pieces that the previous ones left; what a
pattern does not match is a piece, too.

llama.cpp's regular expressions do not distinguish subcategories of letters, so ``\\p{Lu}`` and the like are ``\\p{L}``
here, and its ``\\d`` are the ten digits of ASCII.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ggplug_models.metadata.values import Values

PRE = "tokenizer.ggml.pre"
PATTERNS = "tokenizer.ggml.pre_patterns"
"""A key of ggplug's: the patterns, if they are not those of llama.cpp for the name."""
BEHAVIORS = "tokenizer.ggml.pre_behaviors"
"""A key of ggplug's: what happens to the matches of each pattern, if they are not all pieces of their own."""
ISOLATED = "isolated"
BEHAVIORS_OF_MATCHES = (ISOLATED, "contiguous", "merged_with_next", "merged_with_previous")
"""What may happen to matches."""

_SUFFIX = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


def _llama_3(numbers: str, end: str = _END, marks: str = "", suffix: str = f"(?:{_SUFFIX})|") -> str:
    """The pattern of Llama 3 and its many variants."""
    others = rf" ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*"
    return rf"{suffix}[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}{marks}]+|{numbers}|{others}|{end}"


def _by_case(upper: str, lower: str, numbers: str, suffix: str = f"(?:{_SUFFIX})?") -> str:
    """The pattern of GPT-4o and its variants: words end where a small letter comes before a capital one."""
    first = rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{suffix}"
    second = rf"[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{suffix}"
    return rf"{first}|{second}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_END}"


def _ranges(codes: str) -> str:
    """Characters and ranges of them, by their codes, for a pattern's brackets."""
    return "".join("-".join(chr(int(code, 16)) for code in each.split("-")) for each in codes.split())


_ASCII_PUNCTUATION = r"[!\"#$%\&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK_3 = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_END}"
)
_NEWLINES = r"[^\n]+|[\n]+"
_LETTERS_AND_MARKS = r"[\p{L}\p{M}]"
# Threes from the right.  llama.cpp's \p{N}{1,3}(?=(?:\p{N}{3})*+(?!\p{N})) scans to the end of a run at each position.
# Here each run is split off first, and only its beginning is checked for one or two digits more than threes.
_THREES_FROM_THE_RIGHT = (r"\p{N}+", r"\A\p{N}{1,2}(?=(?:\p{N}{3})++\z)|\p{N}{1,3}")
# The same for (?=([0-9]{3})+(?![0-9])), where other digits stay with the text before them.
_OVER = "[0-9]{1,2}(?=(?:[0-9]{3})*+(?![0-9]))"
_ASCII_THREES = rf"(?:\A{_OVER}|[0-9]{{3}})(?:[^0-9]++(?:{_OVER})?)*+|(?:[^0-9]++(?:{_OVER})?)++"
_IDEOGRAPHS = rf"[{_ranges('4e00-9fa5 3040-309f 30a0-30ff')}]+"
# From U+0800 to U+9FA5 and the syllables of Hangul, without white space.
_CHINESE_AND_KOREAN = (
    "[" + _ranges("800-167f 1681-1fff 200b-2027 202a-202e 2030-205e 2060-2fff 3001-9fa5 ac00-d7ff") + "]+"
)
_SENTENCES = rf" ?[^(\s|.,!?{_ranges('2026 3002 ff0c 3001 964 6d4 60c')})]+"
_HAN = _ranges("4e00-9fff 3400-4dbf 20000-2a6df 2a700-2b73f 2b740-2b81f 2b820-2ceaf 2ceb0-2ebef f900-faff 2f800-2fa1f")
CASED = _ranges(
    "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c "
    "38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b "
    "1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 "
    "1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 "
    "2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b "
    "2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 "
    "fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df "
    "1e900-1e943 "
)
"""The cased letters of DeepSeek's tokenizer, up to Unicode 12."""
_ASIAN = _ranges(
    "4e00-9fff 3400-4dbf 8c48-faff 3040-309f 30a0-30ff ff65-ff9f 2f00-2fdf e40-e7f e80-eff 1780-17ff 1000-109f "
    "aa60-aa7f a9e0-a9ff ac00-d7af 1100-11ff "
)


@dataclass(frozen=True)
class Splits:
    """A pattern, and what happens to its matches, one of :data:`BEHAVIORS_OF_MATCHES`."""

    pattern: str
    behavior: str = ISOLATED


@dataclass(frozen=True)
class PreTokenizer:
    """A way of splitting texts, with other properties of the models that use it.

    ``names``: values of ``tokenizer.ggml.pre``.  ``splits``: regular expressions, applied one after the other.
    ``whole_words``: a word that is a token is not split, whatever the merges.  ``add_bos``: whether texts begin with
    BOS if the file does not say so.  ``bos``: whether there is a BOS token if the file names none.  ``clean_spaces``:
    whether llama.cpp removes spaces before punctuation in detokenized text.  ``bytes_as_text``: whether each byte is
    represented by a character (GPT-2); otherwise tokens are plain text with U+2581 for spaces, and unknown characters
    become byte tokens such as ``<0x0A>``.
    """

    names: tuple[str, ...]
    splits: tuple[Splits, ...]
    whole_words: bool = False
    add_bos: bool = False
    bos: bool = True
    clean_spaces: bool = True
    bytes_as_text: bool = True


def _row(*names: str, split: tuple[str, ...], **flags: bool) -> PreTokenizer:
    return PreTokenizer(names, tuple(map(Splits, split)), **flags)


_GPT_4O = _by_case(r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]", r"\p{N}{1,3}")
_LLAMA_3_SPLIT = (_llama_3(r"\p{N}{1,3}"),)
_QWEN_2_SPLIT = (_llama_3(r"\p{N}"),)
_STARCODER_SPLIT = (r"\p{N}", _GPT_2)
_DEEPSEEK_3_SPLIT = (r"\p{N}{1,3}", _IDEOGRAPHS, _DEEPSEEK_3)

DEFAULT = "default"
"""The pre-tokenizer of files without ``tokenizer.ggml.pre``."""

UNNAMED = "patterns"
"""The name where llama.cpp has none for the patterns: it refuses the file."""

ROWS = (
    _row(DEFAULT, split=(r"[\p{P}$+<=>\^~|]+", _GPT_2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    _row(
        "llama-bpe",
        "llama3",
        "llama-v3",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
        split=_LLAMA_3_SPLIT,
        whole_words=True,
        add_bos=True,
    ),
    _row("dbrx", "smaug-bpe", split=_LLAMA_3_SPLIT),
    _row("chatglm-bpe", split=_LLAMA_3_SPLIT, bos=False),
    _row("glm4", "glm5", split=_LLAMA_3_SPLIT, bos=False, whole_words=True),
    _row("minicpm5", split=(r"\p{N}{1,3}", _llama_3(r"\p{N}+")), whole_words=True),
    _row(
        "jais-2",
        split=(
            _llama_3(
                r"\p{N}{1,3}",
                r"\s*[\r\n]+|"
                + "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
                + r"|\s{1,2}(?!\S)|\s",
            ),
        ),
    ),
    _row(
        "qwen2",
        "deepseek-r1-qwen",
        "kormo",
        "f2llmv2",
        "hunyuan",
        "solar-open",
        "grok-2",
        split=_QWEN_2_SPLIT,
        clean_spaces=False,
    ),
    _row("stablelm2", "megrez", split=_QWEN_2_SPLIT),
    _row("qwen35", split=(_llama_3(r"\p{N}", marks=r"\p{M}"),), clean_spaces=False),
    _row("ufakzeka", split=(_llama_3(r"\p{N}", suffix=""),), clean_spaces=False),
    _row("laguna", split=(_NEWLINES, *_QWEN_2_SPLIT), clean_spaces=False),
    _row(
        "bailingmoe",
        "bailingmoe2",
        "llada-moe",
        clean_spaces=False,
        split=(_llama_3(r"\p{N}", r"\s*[\r\n]|\s+(?!\S)|\s+", suffix="'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|"),),
    ),
    _row(
        "seed-coder",
        clean_spaces=False,
        split=(rf"(?:{_SUFFIX})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_END}",),
    ),
    _row(
        "exaone-moe",
        split=(
            rf"(?:{_SUFFIX})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}\p{{M}}*(?: ?\p{{L}}\p{{M}}*)*|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    ),
    _row("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", split=(_GPT_4O,), clean_spaces=False),
    _row(
        "tekken",
        split=(_by_case(r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]", r"\p{N}", suffix=""),),
        clean_spaces=False,
        whole_words=True,
        add_bos=True,
    ),
    _row(
        "granite-embed-multi-97m",
        clean_spaces=False,
        whole_words=True,
        split=(_by_case(r"[\p{L}\p{M}&&[^a-z]]", r"[\p{L}\p{M}&&[^A-Z]]", r"\p{N}{1,3}"),),
    ),
    _row(
        "tiny_aya",
        "cohere2moe",
        clean_spaces=False,
        split=(*_THREES_FROM_THE_RIGHT, _by_case(_LETTERS_AND_MARKS, _LETTERS_AND_MARKS, r"\p{N}{1,3}")),
    ),
    _row(
        "youtu",
        clean_spaces=False,
        whole_words=True,
        split=(
            "|".join(
                f"[{_ranges(each)}]+"
                for each in (
                    "ac00-d7a3 3131-318e",
                    "ff01 2026 201c 201d 2018 2019 2014 ff1a ff1b ff0c 3001-303f fe30-fe4f",
                    "3105-312f",
                )
            )
            + f"|{_IDEOGRAPHS}",
            _by_case(_LETTERS_AND_MARKS, _LETTERS_AND_MARKS, r"\p{N}"),
        ),
    ),
    _row(
        "kimi-k2",
        clean_spaces=False,
        split=(
            rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+(?:{_SUFFIX})?|\p{{N}}{{1,3}}"
            rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_END}",
        ),
    ),
    _row(
        "deepseek-llm",
        clean_spaces=False,
        split=(
            r"[\r\n]",
            rf"\s?[{CASED}]+",
            rf"\s?[!-/:-~{_ranges('ff01-ff0f ff1a-ff5e 2018-201f 3001-3002')}]+",
            r"\s+\z",
            _CHINESE_AND_KOREAN,
            r"\p{N}+",
        ),
    ),
    _row(
        "deepseek-coder",
        clean_spaces=False,
        split=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE_AND_KOREAN, r"\p{N}"),
    ),
    _row("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4", split=_DEEPSEEK_3_SPLIT, clean_spaces=False),
    _row(
        "spark2_5",
        clean_spaces=False,
        split=(
            r"\p{N}{1,3}",
            _IDEOGRAPHS,
            rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
            r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
            r"\p{N}",
        ),
    ),
    _row(
        "afmoe",
        clean_spaces=False,
        split=(*_THREES_FROM_THE_RIGHT, rf"[{_ASIAN}]+", _DEEPSEEK_3),
    ),
    _row(
        "gpt-2",
        "phi-2",
        "jina-es",
        "jina-de",
        "gigachat",
        "jina-v2-es",
        "jina-v2-de",
        "a.x-4.0",
        "mellum",
        "modern-bert",
        "jina-v1-en",
        "jina-v2-code",
        "roberta-bpe",
        "mpt",
        "olmo",
        "jais",
        "exaone4",
        split=(_GPT_2,),
    ),
    _row("trillion", "granite-docling", split=(_GPT_2,), clean_spaces=False),
    _row("starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2", split=_STARCODER_SPLIT),
    _row("command-r", "smollm", split=_STARCODER_SPLIT, clean_spaces=False),
    _row("falcon", split=(r"[\p{P}$+<=>\^~|`]+", _GPT_2, r"[0-9][0-9][0-9]")),
    _row("bloom", "gpt3-finnish", split=(_SENTENCES,)),
    _row("poro-chat", split=(_SENTENCES,), clean_spaces=False),
    _row("viking", split=(_SENTENCES, r"\p{N}"), clean_spaces=False),
    _row("superbpe", split=(r"\p{N}+", _ASCII_THREES), clean_spaces=False),
    _row(
        "chameleon",
        clean_spaces=False,
        add_bos=True,
        split=(
            r"<sentinel:[0-9]+>",
            r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT_2,
        ),
    ),
    _row("gemma4", "granite-embed-multi-311m", split=(_NEWLINES,), add_bos=True, bytes_as_text=False),
    _row("sarvam-moe", split=(_NEWLINES,), clean_spaces=False, bytes_as_text=False),
    _row("whitespace", split=(r"\S+",), bytes_as_text=False),
    _row(UNNAMED, split=(), clean_spaces=False),
)

BY_NAME = {name: row for row in ROWS for name in row.names}


def splitting(values: Values) -> PreTokenizer:
    """The pre-tokenizer of a file: what ``tokenizer.ggml.pre`` names, with the patterns of the file, if it has some.

    Raises ModelError for an unknown name, and for one without patterns.
    """
    row = values.entry(PRE, BY_NAME, "a pre-tokenizer") if values.text(PRE, None) else BY_NAME[DEFAULT]
    if PATTERNS not in values and row.splits:
        return row
    patterns = values.texts(PATTERNS, at_least=1)
    behaviors = values.texts(BEHAVIORS, [ISOLATED] * len(patterns))
    if len(behaviors) != len(patterns) or not {*behaviors} <= {*BEHAVIORS_OF_MATCHES}:
        known = ", ".join(BEHAVIORS_OF_MATCHES)
        raise values.refused(BEHAVIORS, f"one of {known} for each of {len(patterns)} patterns")
    return replace(row, splits=tuple(map(Splits, patterns, behaviors)))
