"""Changes of llama.cpp's converter where it cannot read a tiny folder; each is a context."""

from __future__ import annotations

import base64
import inspect
import textwrap
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from oracles.folders.recording import of_converter, replaced
from oracles.folders.vocabularies import QWEN_NAMES


def names_baichuan() -> AbstractContextManager[Any]:
    """Lets the converter name what is not queries, keys and values; as it is, it goes in a circle."""
    packed = of_converter("baichuan.BaichuanModel").modify_tensors
    plain = of_converter("base.TextModel").modify_tensors
    return replaced(
        "baichuan.BaichuanModel",
        "modify_tensors",
        lambda self, *of: packed(self, *of) if "W_pack" in of[1] else plain(self, *of),
    )


def reads_ranks() -> AbstractContextManager[Any]:
    """Gives the converter what the published code of Qwen's tokenizer makes of its file."""
    plain = of_converter("qwen.QwenModel").set_vocab

    def set_vocab(self: Any) -> None:
        lines = (self.dir_model / "qwen.tiktoken").read_bytes().splitlines()
        ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
        special = {name: n for n, name in enumerate(QWEN_NAMES, len(ranks))}
        made = SimpleNamespace(mergeable_ranks=ranks, special_tokens=special, get_vocab=lambda: {**special})
        with mock.patch("transformers.AutoTokenizer.from_pretrained", return_value=made):
            plain(self)

    return replaced("qwen.QwenModel", "set_vocab", set_vocab)


def reads_slopes() -> AbstractContextManager[Any]:
    """Lets the converter look at the slopes of ALiBi, which it has not read yet."""
    plain, lazy = of_converter("jais.JaisModel").modify_tensors, of_converter("base.LazyTorchTensor")

    def modified(self: Any, values: Any, name: str, number: int | None) -> Any:
        return plain(self, lazy.to_eager(values) if name.endswith("slopes") else values, name, number)

    return replaced("jais.JaisModel", "modify_tensors", modified)


def plamo_of_any_width() -> AbstractContextManager[Any]:
    """Lets the converter reorder heads of width 2 as it does those of 128."""
    kind, found = of_converter("plamo.PlamoModel"), {}
    for name in ("shuffle_attn_q_weight", "shuffle_attn_output_weight"):
        source = inspect.getsource(getattr(kind, name)).replace("5120", "80").replace("128", "2")
        exec(textwrap.dedent(source), {"torch": torch}, found)
    return mock.patch.multiple(kind, **found)
