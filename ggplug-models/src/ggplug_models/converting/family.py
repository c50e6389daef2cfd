"""What a family's table says, and the changes that tensors go through."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.errors import ModelError
from ggplug_models.converting.folder import Folder
from ggplug_models.metadata.values import Values

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Change:
    """``apply(values, config)``: the values, [rows, columns], as the file holds them.  ``transposes``: their axes."""

    apply: Callable[[Array, Values], Array]
    transposes: bool = False


@dataclass(frozen=True)
class Tensors:
    """Tensors whose whole names match ``pattern`` get the name ``target`` (its ``\\1`` are the pattern's groups)."""

    pattern: str
    target: str
    change: Change | None = None


@dataclass(frozen=True)
class Family:
    """A model type of ``config.json``.

    ``tensors``: the first row that matches counts.  ``unused``: names of what inference does not need.
    ``prefix``: stands before names, or does not.  ``integers``, ``numbers``: settings to keys, each without
    ``architecture.``; a setting with ``?`` behind it may be missing, and ``a|b`` takes the first that is there.
    ``more``: further keys.  ``fixed``: tensors that only the settings decide.  ``vocabularies``: kinds of
    ``tokenizer.json``'s model that the family's files have.  ``head``: whether it predicts tokens.
    ``inner``: the key of an object that has the settings, in configurations of models that see or hear.
    """

    architecture: str
    tensors: Sequence[Tensors]
    integers: Mapping[str, str]
    numbers: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[Values, Folder], Mapping[str, Any]] | None = None
    fixed: Callable[[Values], Mapping[str, npt.NDArray[np.float32]]] | None = None
    unused: str = r"(?!)"
    prefix: str = r"(?:model\.)?"
    vocabularies: tuple[str, ...] = ("BPE",)
    head: str | None = "lm_head.weight"
    inner: str | None = None

    def keys(self, config: Values, folder: Folder) -> dict[str, Any]:
        """Keys and values, under ``architecture.``.  Raises ModelError that names the setting."""
        found: dict[str, Any] = {}
        for setting, key in self.integers.items():
            if (name := _there(config, setting)) is not None:
                found[key] = config.integer(name)
        for setting, key in self.numbers.items():
            if (name := _there(config, setting)) is not None:
                found[key] = config.number(name, at_least=0)
        if self.more:
            found |= self.more(config, folder)
        return {f"{self.architecture}.{key}": value for key, value in found.items()}

    def target(self, name: str) -> tuple[str, Change | None] | None:
        """The file's name of a tensor, and its change; None for what inference does not need.  Raises ModelError."""
        stem = re.sub(rf"^{self.prefix}", "", name)
        for row in self.tensors:
            match = re.fullmatch(row.pattern, stem)
            if match:
                return match.expand(row.target), row.change
        if re.fullmatch(self.unused, stem):
            return None
        raise ModelError(f"tensor {name!r} is not known in a {self.architecture} model")


def _there(config: Values, setting: str) -> str | None:
    """The setting that is there, the last if none is, or None for one that may be missing."""
    optional, names = setting.endswith("?"), setting.rstrip("?").split("|")
    found = next((name for name in names if name in config), None)
    return found if found is not None or optional else names[-1]


def _plus_one(values: Array, config: Values) -> Array:
    return np.asarray(values, np.float32) + np.float32(1)


def _paired(heads: Callable[[Values], int]) -> Callable[[Array, Values], Array]:
    def change(values: Array, config: Values) -> Array:
        n = heads(config)
        if values.shape[0] % (2 * n):
            raise ModelError(f"{values.shape[0]} rows are not {n} heads of an even width", got=values.shape[0])
        halves = values.reshape(n, 2, values.shape[0] // n // 2, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)

    return change


def n_heads(config: Values) -> int:
    return config.integer("num_attention_heads")


def n_kv_heads(config: Values) -> int:
    return config.integer("num_key_value_heads", n_heads(config))


def head_dim(config: Values) -> int:
    """The width of a head; by default the heads share the model's width."""
    return config.integer("head_dim", config.integer("hidden_size") // n_heads(config))


PLUS_ONE = Change(_plus_one)
"""Gemma multiplies by one plus the weight of a norm; files hold the sum."""

TRANSPOSED = Change(lambda values, config: values.T, transposes=True)
"""GPT-2's ``Conv1D`` has inputs for rows."""

PAIRED_Q = Change(_paired(n_heads))
PAIRED_K = Change(_paired(n_kv_heads))
"""Hugging Face rotates the halves of a head with each other, llama.cpp neighbours: rows change places."""
