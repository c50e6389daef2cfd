"""The table of a family, and the changes of tensors in a conversion."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug.errors import ModelError
from ggplug_models.converting import embeddings
from ggplug_models.converting.checkpoint import Stored
from ggplug_models.converting.folder import Folder
from ggplug_models.metadata.values import REQUIRED, Values

Array = npt.NDArray[Any]

SCALINGS = ("linear", "yarn")
"""Types of scaling of RoPE that files of most architectures have keys for."""


@dataclass(frozen=True)
class Change:
    """A change of tensors.  ``apply(values, config)`` returns the new values, ``shape(shape, config)`` their shape."""

    apply: Callable[[Array, Values], Array]
    shape: Callable[[tuple[int, ...], Values], tuple[int, ...]] = lambda shape, config: shape

    def then(self, later: Change) -> Change:
        """This change, and ``later`` of its values."""
        return Change(
            lambda values, config: later.apply(self.apply(values, config), config),
            lambda shape, config: later.shape(self.shape(shape, config), config),
        )


@dataclass(frozen=True)
class Tensors:
    """Tensors whose whole name matches ``pattern`` get the name ``target``, in which ``\\1`` is the pattern's group.

    ``of_experts``: the second group is the number of an expert; the matrices of all experts become one tensor.
    ``change`` may be a function of the first group, which is then the number of a block.
    """

    pattern: str
    target: str
    change: Change | Callable[[int], Change] | None = None
    of_experts: bool = False


class Target(NamedTuple):
    """The name of a tensor in the file, its change, and the number of the expert that it is a part of."""

    name: str
    change: Change | None
    expert: int | None


@dataclass(frozen=True)
class Family:
    """The conversion of a model type of ``config.json``.

    ``tensors``: several rows that match a name make several tensors of one.  ``names``: renames tensors before that.
    ``unused``: pattern of tensors that inference does not need.  ``prefix``: pattern of an optional prefix of names.
    ``integers``, ``numbers``: keys by setting, without ``architecture.``; a setting that ends with ``?`` is optional,
    and ``a|b`` uses the first one that exists.  ``more``: returns further keys.  ``fixed``: returns tensors that are
    computed from the settings.  ``scalings``: the types of scaling of RoPE that files of the architecture and its graph
    in llama.cpp carry, so none for models without RoPE; others are refused (:func:`.rope.check`).
    ``vocabularies``: supported types of the model in ``tokenizer.json``.  ``head``: name of the output matrix.
    ``inner``: key of the object with the settings of the language model, in configurations of multimodal models.
    ``of_weights``: returns keys, without prefix, whose values are weights.  ``special``: the texts of special tokens by
    the key that names them, as ``eot``, where the settings do not say them, or their ids, whatever the settings say.
    ``as_matrices``: pattern of tensors that have the type of matrices, which in files of other families are F32.
    ``splitting``: the family's own names for pre-tokenizers, by their usual names.  ``vocabulary``: returns what is
    different in the metadata of the vocabulary; None leaves a key out.  ``variants``: families with other tables for
    some models of the type, each with the test of the settings that chooses it.  ``dense``: whether linear layers may
    follow the pooling.
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
    names: Callable[[str, Values], str] | None = None
    of_weights: Callable[[Mapping[str, Stored], Values], Mapping[str, Any]] | None = None
    special: Mapping[str, str | int] = field(default_factory=dict)
    vocabulary: Callable[[Mapping[str, Any], Values, Folder], Mapping[str, Any]] | None = None
    splitting: Mapping[str, str] = field(default_factory=dict)
    variants: Sequence[tuple[Callable[[Values], bool], Family]] = ()
    scalings: tuple[str, ...] = SCALINGS
    as_matrices: str = r"(?!)"
    dense: bool = False

    def keys(self, config: Values, folder: Folder) -> dict[str, Any]:
        """The metadata of the file, with keys under ``architecture.``.  Raises ModelError."""
        found: dict[str, Any] = {}
        for setting, key in self.integers.items():
            if (name := _there(config, setting)) is not None:
                found[key] = config.integer(name)
        for setting, key in self.numbers.items():
            if (name := _there(config, setting)) is not None:
                found[key] = config.number(name, at_least=0)
        if self.more:
            found |= self.more(config, folder)
        if config.values.get("is_causal") is False:
            found["attention.causal"] = False
        if (dense := embeddings.modules(folder).dense) and not self.dense:
            names = f"{self.architecture} models have no layers behind the pooling"
            raise dense[0].refused("type", f"Transformer, Pooling or Normalize: GGUF files of {names}")
        found |= embeddings.keys(config, folder)
        return {f"{self.architecture}.{key}": value for key, value in found.items()}

    def targets(self, name: str, config: Values) -> list[Target]:
        """What a tensor becomes: nothing, if inference does not need it.  Raises ModelError."""
        renamed = name if self.names is None else self.names(name, config)
        stem = re.sub(rf"^{self.prefix}", "", renamed)
        matches = ((row, re.fullmatch(row.pattern, stem)) for row in self.tensors)
        found = [
            Target(
                match.expand(row.target),
                row.change(int(match[1])) if callable(row.change) else row.change,
                int(match[2]) if row.of_experts else None,
            )
            for row, match in matches
            if match
        ]
        if found or re.fullmatch(self.unused, stem):
            return found
        raise ModelError(f"tensor {name!r} is unknown in {self.architecture} models")


def _there(config: Values, setting: str) -> str | None:
    """The first alternative of a setting that exists; if none does, None for an optional one, else the last."""
    optional, names = setting.endswith("?"), setting.rstrip("?").split("|")
    found = next((name for name in names if name in config), None)
    return found if found is not None or optional else names[-1]


def in_heads(values: Array, n: int) -> Array:
    """The rows of a matrix, or the elements of a bias, by heads: ``(n, rows of a head, ...)``.  Raises ModelError."""
    if values.shape[0] % n:
        raise ModelError(
            f"a matrix with {values.shape[0]} rows cannot be split into {n} heads of queries, keys and values",
            got=values.shape[0],
            wanted=n,
        )
    return values.reshape(n, -1, *values.shape[1:])


def first_integer(config: Values, settings: str, default: int = REQUIRED) -> int:
    """The integer of the first setting that exists of those in ``settings``, between bars."""
    names = settings.split("|")
    return config.integer(next((name for name in names if name in config), names[-1]), default)


def plus(number: float) -> Change:
    return Change(lambda values, config: np.asarray(values, np.float32) + np.float32(number))


def part(number: int, of: int = 2) -> Change:
    """One of ``of`` equal parts of the rows of a matrix, or of each expert's matrix; of the elements of a bias."""

    def rows(shape: tuple[int, ...]) -> int:
        axis = max(len(shape) - 2, 0)
        if shape[axis] % of:
            raise ModelError(f"{shape[axis]} rows of a tensor cannot be split into {of} parts", got=shape[axis])
        return axis

    def apply(values: Array, config: Values) -> Array:
        return np.split(values, of, rows(values.shape))[number]

    def shape(old: tuple[int, ...], config: Values) -> tuple[int, ...]:
        axis = rows(old)
        return (*old[:axis], old[axis] // of, *old[axis + 1 :])

    return Change(apply, shape)


def paired(heads: Callable[[Values], int]) -> Change:
    """Reorders the rows of ``heads`` heads, of which RoPE rotates pairs: those of both halves become adjacent."""

    def change(values: Array, config: Values) -> Array:
        n = heads(config)
        if not n or values.shape[0] % (2 * n):
            raise ModelError(
                f"a matrix with {values.shape[0]} rows cannot be split into {n} heads of an even width",
                got=values.shape[0],
            )
        halves = values.reshape(n, 2, values.shape[0] // n // 2, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)

    return Change(change)


def n_heads(config: Values) -> int:
    return first_integer(config, "n_heads|n_head|num_attention_heads")


def n_kv_heads(config: Values) -> int:
    return first_integer(config, "n_kv_heads|num_key_value_heads", n_heads(config))


def head_dim(config: Values) -> int:
    """The width of a head; by default, hidden_size / num_attention_heads."""
    return config.integer("head_dim", first_integer(config, "d_model|n_embd|hidden_size") // n_heads(config))


def apart(setting: str, inner: str | None = None, *, turned: bool = False) -> Change:
    """The matrices of experts, which are stored one below the other.

    ``setting``: their number.  ``inner``: the key of the object that has it.  ``turned``: with rows as columns.
    """

    def extents(shape: tuple[int, ...], config: Values) -> tuple[int, int, int]:
        holder = config.inner(inner) if inner else config
        n = holder.integer(setting)
        if len(shape) != 2 or shape[0] % n:
            raise holder.refused(setting, f"a divisor of the {shape[0]} rows of the matrices of all experts")
        return n, shape[0] // n, shape[1]

    def apply(values: Array, config: Values) -> Array:
        found = values.reshape(extents(values.shape, config))
        return np.ascontiguousarray(found.swapaxes(1, 2)) if turned else found

    def shape(old: tuple[int, ...], config: Values) -> tuple[int, ...]:
        n, rows, columns = extents(old, config)
        return (n, columns, rows) if turned else (n, rows, columns)

    return Change(apply, shape)


PLUS_ONE = plus(1)
"""Adds 1 to the weights of Gemma's norms: the model multiplies by 1 + weight, and files hold the sum."""

TRANSPOSED = Change(lambda values, config: values.T, lambda shape, config: shape[::-1])
"""Transposes the matrices of GPT-2's ``Conv1D``, whose rows are inputs."""

PAIRED_Q = paired(n_heads)
PAIRED_K = paired(n_kv_heads)
"""RoPE rotates pairs from both halves of a head in transformers, adjacent pairs in llama.cpp."""
