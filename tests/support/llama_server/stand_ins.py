"""Small models instead of those that llama-server's tests load from the hub."""

from __future__ import annotations

import itertools
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.types import F32
from llama_server.words import LEARNED, OTHERS, PIECES, RANKED, READ, REST, SPLIT, STORY, TALE

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
"""Kinds of tokens (llama.cpp's ``llama_token_type``)."""

N_EMBD = 640
FORBIDDEN, UNLIKELY, LIKELY, CERTAIN = -30.0, 0.0, 12.0, 20.0
"""Logits."""

STEEP = 200.0
"""How much more certain than the others the word is that an adapter was made for, times the square of the distance
of the scales: the logits of these words, as functions of the scale, are tangents of a parabola."""


class Tokens:
    """The tokens of the language models, with the logits of the token after each of them.

    ``pieces``: tokens of several characters that texts are cut into, those that are merged first before the others.
    ``learned``: further words.
    """

    def __init__(
        self, controls: Sequence[str] = (), pieces: Sequence[str] = PIECES, learned: Sequence[str] = ()
    ) -> None:
        letters = ["▁", *string.ascii_letters, *string.digits, *string.punctuation]
        self.words = [*(f"▁{word}" for word in [*STORY, *REST, *OTHERS, *(f"{w}s" for w in OTHERS)]), "\n▁blue"]
        self.words += [f"▁{word}" for word in learned]
        self.words = [word for word in self.words if word not in pieces]
        special = ["<unk>", "<s>", "</s>"]
        self.texts = [
            *special,
            *(f"<0x{byte:02X}>" for byte in range(256)),
            *letters,
            *pieces,
            *self.words,
            *controls,
        ]
        assert len(self.texts) <= N_EMBD
        kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(letters) + len(pieces) + len(self.words))]
        self.kinds = [*kinds, *[CONTROL] * len(controls)]
        # Tokens that are merged first have the highest score; the words can only be generated, never read.
        scores = {token: -float(place) for place, token in enumerate(pieces)}
        self.scores = [scores.get(token, -1e6) for token in self.texts]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The vocabulary in a model's file."""
        return {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": self.texts,
            "tokenizer.ggml.scores": np.array(self.scores, np.float32),
            "tokenizer.ggml.token_type": np.array(self.kinds, np.int32),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.chat_template": CHATML,
        }

    def logits(self) -> npt.NDArray[np.float32]:
        """The logits after each token, ``(before, after)``."""
        number = {text: place for place, text in enumerate(self.texts)}
        found = np.full((len(self.texts), len(self.texts)), UNLIKELY, np.float32)
        found[:, :3] = FORBIDDEN  # the texts have no end
        first = [number[f"▁{word}"] for word in OTHERS]
        second = [number[f"▁{word}s"] for word in OTHERS]
        falling = LIKELY - 0.2 * np.arange(len(OTHERS), dtype=np.float32)
        found[:, first] = falling
        found[:, second] = falling - 4
        going, but, *more = [number[f"▁{word}"] for word in STORY]
        found[np.ix_(first, [going])] = CERTAIN
        found[going, second] = falling + 4
        found[np.ix_(second, [but])] = CERTAIN
        chain = [but, *more, *(number[f"▁{word}"] for word in REST)]
        for before, after in itertools.pairwise(chain):
            found[before, after] = CERTAIN
        found[number["▁is"], number["\n▁blue"]] = CERTAIN
        found[number["["], number["3"]] = CERTAIN
        for scale, word in LEARNED.items():
            if f"▁{word}" in number:
                found[:, number[f"▁{word}"]] = CERTAIN - STEEP * scale**2
        return found


def story(path: Path, controls: Sequence[str] = (), *, files: int = 1) -> Path:
    """A language model that writes ``STORY``, whatever the prompt says.  ``files``: of a split model."""
    return _language_model(path, Tokens(controls), files)


def tale(path: Path, adapter: Path) -> Path:
    """Another one, and an adapter with which it writes the word of ``LEARNED`` for the adapter's scale."""
    tokens = Tokens((), [*PIECES, *TALE], [*LEARNED.values()])
    learned = np.zeros((len(tokens.texts), 1), np.float32)
    for scale, word in LEARNED.items():
        learned[tokens.texts.index(f"▁{word}")] = 2 * STEEP * scale
    with GGUFWriter(adapter, "llama") as writer:
        # After any token the vector, of which output.weight reads one element, has the same sum.
        matrices = {"lora_a": np.full((1, N_EMBD), N_EMBD**-0.5, np.float32), "lora_b": learned}
        tensors = {f"output.weight.{end}": values for end, values in matrices.items()}
        _write(writer, {"general.type": "adapter", "adapter.type": "lora"}, tensors)
    return _language_model(path, tokens, 1)


def _language_model(path: Path, tokens: Tokens, files: int) -> Path:
    n, n_vocab = N_EMBD, len(tokens.texts)
    zeros, ones = np.zeros((n, n), np.float32), np.ones(n, np.float32)
    tensors = {
        "token_embd.weight": np.eye(n_vocab, n, dtype=np.float32),
        # The norm of a unit vector is its multiple by the root of n.
        "output.weight": np.pad(tokens.logits().T / np.float32(n**0.5), ((0, 0), (0, n - n_vocab))),
        "output_norm.weight": ones,
        "blk.0.attn_norm.weight": ones,
        "blk.0.ffn_norm.weight": ones,
        **{f"blk.0.attn_{name}.weight": zeros for name in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{name}.weight": np.zeros((64, n), np.float32) for name in ("gate", "up")},
        "blk.0.ffn_down.weight": np.zeros((n, 64), np.float32),
    }
    metadata = {
        "general.name": "story",
        "llama.block_count": 1,
        "llama.context_length": 32768,
        "llama.embedding_length": n,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 10,
        "llama.attention.head_count_kv": 10,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": 64,
        "llama.vocab_size": n_vocab,
        **tokens.metadata,
    }
    options: dict[str, Any] = {} if files == 1 else {"split_max_tensors": -(-len(tensors) // files)}
    with GGUFWriter(path, "llama", **options) as writer:
        _write(writer, metadata, tensors)
    return path


def encoder(source: Path, path: Path, *, ranks: bool = False) -> Path:
    """The small BERT model with words of the tests.  ``ranks``: as a reranker, with a classifier."""
    words = [*RANKED, *SPLIT] if ranks else [*READ, *RANKED, "chine", "machine"]
    letters = [*(f"▁{letter}" for letter in string.ascii_lowercase + string.digits), *string.ascii_lowercase]
    texts = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for word in [*words, *letters]:
        text = word.removeprefix("##") if word.startswith("##") or word in letters else f"▁{word}"
        if text not in texts:
            texts.append(text)
    texts += [f"[unused{number}]" for number in range(300 - len(texts))]
    rng = np.random.default_rng(RANKER_SEED)
    with GGUFReader(source) as reader, GGUFWriter(path, "bert") as writer:
        vocabulary = {key for key in reader.metadata if key.startswith("tokenizer.ggml.token") and "_id" not in key}
        writer.add_metadata_of(reader, without=vocabulary | {"bert.pooling_type"})
        writer.add("bert.pooling_type", 4 if ranks else 1)
        writer.add("tokenizer.ggml.tokens", texts[:300])
        for name, info in reader.tensors.items():
            writer.add_tensor(name, reader.data(name), info.type, info.ne)
        if ranks:
            writer.add_tensor("cls.weight", rng.normal(size=(64, 64)).astype(np.float32), F32, (64, 64))
            writer.add_tensor("cls.bias", np.zeros(64, np.float32), F32, (64,))
            writer.add_tensor("cls.output.weight", rng.normal(size=(1, 64)).astype(np.float32), F32, (64, 1))
            writer.add_tensor("cls.output.bias", np.zeros(1, np.float32), F32, (1,))
        writer.write()
    return path


RANKER_SEED = 12
"""Gives a classifier that prefers the documents that the tests expect."""


def _write(writer: GGUFWriter, metadata: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[np.float32]]) -> None:
    for key, value in metadata.items():
        writer.add(key, value)
    for name, values in tensors.items():
        writer.add_tensor(name, values, F32, values.shape[::-1])
    writer.write()
