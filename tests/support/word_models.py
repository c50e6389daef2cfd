"""Models for tests with vocabularies of words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ggplug.gguf import GGUFReader, GGUFWriter


def with_vocabulary(source: Path, path: Path, vocabulary: Mapping[str, Any]) -> Path:
    """The model of a file with the vocabulary that is given as metadata."""
    with GGUFReader(source) as reader, GGUFWriter(path, reader.metadata["general.architecture"]) as writer:
        writer.add_metadata_of(reader, without={key for key in reader.metadata if key.startswith("tokenizer.")})
        for key, value in vocabulary.items():
            writer.add(key, value)
        for name, info in reader.tensors.items():
            writer.add_tensor(name, reader.data(name), info.type, info.ne)
        writer.write()
    return path


def with_words(source: Path, path: Path) -> Path:
    """The small BERT model with a vocabulary of ``w0``, ``w1``, ..., so that it takes texts."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"\u2581w{n}" for n in range(296))]
    return with_vocabulary(source, path, {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": words})
