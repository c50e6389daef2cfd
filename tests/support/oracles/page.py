"""The table of docs/models.md: every architecture, its recordings, and how they were checked.

``PYTHONPATH=tests/support python -m oracles.page > docs/models.md`` writes the page.
"""

from __future__ import annotations

import re
from collections import defaultdict

from paths import DATA

from ggplug.gguf import GGUFReader
from ggplug_models import ARCHITECTURES
from ggplug_models.converting.families import FAMILIES
from ggplug_models.converting.family import Family
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.denoiser import Denoiser
from ggplug_models.networks.encoder import Encoder
from oracles.packed import ORACLES

PAGE = """# Families of models

Every architecture of GGUF files that ggplug-models loads; `PYTHONPATH=tests/support python -m oracles.page` makes
this page from the registry.  Kind: whether a model generates text, computes embeddings, or is a head that guesses
tokens for another one.  Converter: the
`model_type` that `ggplug convert` reads.  Checked against: whose outputs the recordings of tiny models hold, and were
compared with when they were made (`tests/data/oracles/README.md`; those of `phi3` and `qwen2` are no part of the
repository).  Devices: tests compute all recordings on the CPU, and on OpenCL those with ops that others lack.
`phimoe` is computed, and converted, as llama.cpp does it: its norms are RMS norms, where the authors' code has layer
norms, and queries and keys are multiplied by the factor of LongRoPE's paper, not by `long_mscale`.

| architecture | class | kind | converter | checked against | recordings |
|---|---|---|---|---|---|
"""


ABSENT = {
    "no language model": ("clip", "wavtokenizer-dec", "qwen3tts", "pockettts"),
    "llama.cpp has the name, and no graph for it": ("gptj",),
    "reads or writes images between tokens": ("chameleon", "cogvlm"),
    "guesses tokens for another model, by a head of a kind that is not built in": ("gemma4-assistant", "dflash"),
    "its recurrent block of RWKV behind attention's weights is not built in": ("rwkv6qwen2", "arwkv7"),
    "attention with a linear state, or with several streams of residuals, in a block of its own": (
        *("minimax-01", "bailingmoe3", "kimi-k3", "glm5-next", "qwen4exp", "hy_v4"),
    ),
    "an indexer chooses the positions of its attention, in contexts of any length": ("minimax-m3", "dots3note"),
    "not begun": ("graniteswitch",),
}
"""Why the other architectures of llama.cpp 0.3.36's sources are not there."""

LEFT_OUT = {
    "baichuan": "Baichuan 2 divides the rows of its output matrix by their lengths; files have them as they are",
    "deepseek_v2": "that the norms of latent vectors have the epsilon 1e-6, and not that of the settings; so in all "
    "types with latent attention",
    "falcon_mamba": "the epsilon of the norms of step sizes, B and C (`mixer_rms_eps`), which is that of the others",
    "glm": "the length of contexts and the epsilon are the folder's; llama.cpp's converter has others",
    "gpt_oss": "that YaRN does not round the pairs between which it interpolates (`truncate`)",
    "nemotron_h": "the least size of steps (`time_step_min`), to which transformers clips them",
    "phi3": "that LongRoPE has other factors for texts within the original context: a session's length decides",
    "plamo2": "the window of attention, which all blocks then lack",
    "plamo3": "that YaRN does not round the pairs between which it interpolates",
    "qwen": "how attention and RoPE change in contexts longer than `seq_length`",
    "umt5": "that transformers 5 scales the outputs of a decoder with an output matrix of its own; earlier ones do not",
    "xlm-roberta": "the adapters of jina-embeddings-v3, of which only the model itself is written",
}
"""By model type: what a converted file lacks of its folder, or has of it that llama.cpp's lacks."""

CONVERTED = """
## What converted files leave out

Settings that a network cannot follow are refused by their names.  Windows of `mistral`, `mixtral`, `ministral3` and
`starcoder2` are in files, and so are those of `phi3`; llama.cpp ignores them, and attends to all positions.
`norm_topk_prob` of `deepseek_v2`, `alibi_bias_max` of `mpt` and `attn_config.rope_theta` of `dbrx` are followed, as by
the authors' code and llama.cpp; transformers ignores them.  Files of `deepseek_v2` say under
`expert_group_best_count` that a group of experts is judged by its best one, and those of `t5`, `mt5` and `umt5` under
`logit_scale` what the decoder's outputs are multiplied with, where llama.cpp does otherwise; `embedding.max_length` is
the number of tokens to which Sentence Transformers cuts texts.

Some settings have no effect in llama.cpp, or are not in its files; where that holds for the published folders of a
type, the converter does the same:

| `model_type` | what |
|---|---|
"""

BEHIND = """
What `config.json` leaves out has the default of the type's class in transformers, if it has one.  Of the modules that
Sentence Transformers puts behind a model, files have the pooling (mean, first or last token) and, of EmbeddingGemma, up
to two linear layers.

## Special tokens of converted files

Texts end at each token that `eos_token_id` of `generation_config.json` lists, or else a list in `config.json`.  Those
that llama.cpp has no key for are under `tokenizer.ggml.end_token_ids`, which llama.cpp ignores: there, texts end at the
EOS, the end of a turn, and tokens that it knows by their texts.  In the same way, `tokenizer.ggml.tokens_before` and
`tokens_after` have the tokens that `tokenizer.json` puts around texts if they are not BOS and EOS alone, as GLM's two.

A conversion compares the tokens of some texts, with each kind of added token in them, with those of the folder's
`tokenizer.json`, and refuses a folder where they differ.

A `tokenizer.json`, also beside a `tokenizer.model`, says before which texts a space is put, and in which order added
tokens are found.  What llama.cpp has no key for is under `tokenizer.ggml.prepend_scheme` (of `Metaspace`: `always`,
`first`, or, for each word, `words`) and `tokenizer.ggml.normalized_token_ids` (added tokens that are found in the
normalised text); llama.cpp puts a space before each text, and finds the longest tokens first.  Other normalizers and
pre-tokenizers are refused by name.

The regular expressions by which a `tokenizer.json` splits texts before it merges bytes are under
`tokenizer.ggml.pre_patterns`, so that all texts have its tokens; `tokenizer.ggml.pre_behaviors` says what happens to
their matches, if these are not all pieces of their own.  llama.cpp reads the name under `tokenizer.ggml.pre` instead,
and splits some texts otherwise (with the names `gpt-4o` and `tekken` words with combining marks, as in Hindi).  Where
it has no name, the name is `patterns`, and llama.cpp refuses the file.  Refused are steps that are no regular
expressions, as Falcon 7B's.

A `tokenizer.model` alone is followed as SentencePiece does: unigrams become a vocabulary of T5's kind (`t5`), also in
LLaMA's families; byte pairs and characters are merged (`llama`).  llama.cpp's converter takes all for byte pairs, and
its tokenizer of them ignores `tokenizer.ggml.precompiled_charsmap` and `remove_extra_whitespaces`, the normaliser of
models such as OpenLLaMA's.  Keys of ggplug's are `tokenizer.ggml.byte_fallback` (of unigrams: unknown characters become
bytes), the scheme `every` (a space before all texts, also before spaces) and `tokenizer.ggml.fixed_token_ids`
(user-defined pieces, which stay whole).  Models of words, and a space behind words, are refused.

## Architectures that do not load

llama.cpp (the sources of llama-cpp-python 0.3.36) has {count} architectures more.  A file of one of them is refused as
"not known as an architecture".

| architectures | why |
|---|---|
"""


def page() -> str:
    """The whole page."""
    recordings, rows = _recordings(), []
    for name in sorted(set(ARCHITECTURES) - {"tied"}):
        cls, files = ARCHITECTURES[name], recordings.get(name, [])
        kinds = sorted(kind for kind, family in FAMILIES.items() if name in _written(family))
        kind = "text" if issubclass(cls, (Decoder, Denoiser)) else "embeddings" if issubclass(cls, Encoder) else "head"
        cells = [f"`{name}`", cls.__name__, kind, _codes(kinds), ", ".join(_checked(files)), _codes(files)]
        rows.append(f"| {' | '.join(cells)} |\n")
    absent = [f"| {_codes(sorted(names))} | {why} |\n" for why, names in ABSENT.items()]
    left = [f"| `{kind}` | {what} |\n" for kind, what in LEFT_OUT.items()]
    return (
        PAGE
        + "".join(rows)
        + CONVERTED
        + "".join(left)
        + BEHIND.format(count=sum(map(len, ABSENT.values())))
        + "".join(absent)
    )


def _written(family: Family) -> set[str]:
    """The architectures of the files that a converter writes."""
    return {each.architecture for each in (family, *(other for _, other in family.variants))}


def _checked(files: list[str]) -> list[str]:
    """Whose outputs the recordings are, and were compared with."""
    listed = dict(re.findall(r"^\| `([a-z0-9_-]+)` (\|.*\|)$", (ORACLES / "README.md").read_text("utf-8"), re.M))
    rows = [listed[each] for each in files if each in listed]
    if all("outputs of llama.cpp" in row for row in rows):
        return ["llama.cpp"]
    found = "transformers"
    if any("NumPy after the paper" in row for row in rows):
        found = "NumPy after the paper"
    elif any("recorded from" in row for row in rows):
        found = "transformers (a family with the same block)"
    return [found, *(["llama.cpp"] if any(re.search(r"\de-\d+ \|$", row) for row in rows) else [])]


def _codes(names: list[str]) -> str:
    return ", ".join(f"`{each}`" for each in names) or "-"


def _recordings() -> dict[str, list[str]]:
    """The names of the files of tests/data of each architecture."""
    found = defaultdict(list)
    for path in sorted([*ORACLES.glob("*.gguf"), *DATA.glob("*.gguf")]):
        with GGUFReader(path) as reader:
            found[reader.metadata["general.architecture"]].append(path.stem)
    return found


if __name__ == "__main__":
    print(page(), end="")
