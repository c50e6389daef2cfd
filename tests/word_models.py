"""Models for tests with vocabularies of words."""

from __future__ import annotations

from pathlib import Path

from ggplug.gguf import GGUFReader, GGUFWriter


def with_words(source: Path, path: Path) -> Path:
    """The small BERT model with a vocabulary of ``w0``, ``w1``, ..., so that it takes texts."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"\u2581w{n}" for n in range(296))]
    with GGUFReader(source) as reader, GGUFWriter(path, "bert") as writer:
        writer.add_metadata_of(reader, without={key for key in reader.metadata if key.startswith("tokenizer.")})
        writer.add("tokenizer.ggml.model", "bert")
        writer.add("tokenizer.ggml.tokens", words)
        for name, info in reader.tensors.items():
            writer.add_tensor(name, reader.data(name), info.type, info.ne)
        writer.write()
    return path
