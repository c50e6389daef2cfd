"""LoRA adapters (E. Hu et al., arXiv:2106.09685): a weight W acts as W + scale B A, with matrices of low rank."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug import gguf, ops
from ggplug.backend import Device
from ggplug.errors import ModelError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.tensor import Context, Extents, Tensor
from ggplug.types import KERNEL_FLOATS
from ggplug_models.checks.arguments import number
from ggplug_models.layers.patches import GraphChange, Scales
from ggplug_models.metadata.values import Values
from ggplug_models.weights.weights import digest_of

A, B = ".lora_a", ".lora_b"
TABLE = "token_embd.weight"
"""The weight of which rows are read: its A has a column for each row, and B is multiplied with the chosen ones."""

READS = (ops.MulMat, ops.MulMatId, ops.GetRows)


@dataclass(frozen=True)
class Pair:
    """The extents of the two matrices that change a weight: ``a`` [n, r], ``b`` [r, m] for a weight [n, m].

    Of the table of embeddings [n, m], ``a`` is [r, m] and ``b`` [r, n].  Those of experts have a third dimension.
    """

    a: Extents
    b: Extents

    @property
    def rank(self) -> int:
        return self.b[0]

    def fits(self, name: str, ne: Extents) -> bool:
        """Whether it changes a weight of these extents."""
        n, r, m = (self.b[1], self.a[0], self.a[1]) if name == TABLE else (self.a[0], self.a[1], self.b[1])
        return (n, m) == ne[:2] and r == self.rank and self.a[2:] == self.b[2:] == ne[2:]


def _whole(ne: tuple[int, ...]) -> Extents:
    """Four extents; those that a file leaves out are 1."""
    first, second, third, fourth = (*ne, 1, 1, 1, 1)[:4]
    return first, second, third, fourth


class LoraFile:
    """The metadata of an adapter's file, and the extents of its matrices by the weight that they change.

    Raises ModelError for a file that is no LoRA adapter, GGUFError, OSError.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with GGUFReader(path) as reader:
            ne = {name: _whole(info.ne) for name, info in reader.tensors.items()}
            types = {name: info.type for name, info in reader.tensors.items()}
            values = Values(reader.metadata, where=os.fspath(path))
        kind, form = values.text("general.type", ""), values.text("adapter.type", "")
        if (kind, form) != ("adapter", "lora"):
            raise self.wrong(f"general.type is {kind!r} and adapter.type {form!r}, not 'adapter' and 'lora'")
        if "adapter.alora.invocation_tokens" in values.values:
            raise self.wrong("it is to act only after certain tokens (aLoRA), which ggplug does not support")
        self.architecture = values.text("general.architecture", "")
        self.alpha = values.number("adapter.lora.alpha", 0.0)
        self.pairs: dict[str, Pair] = {}
        for name in ne:
            stem = name.removesuffix(A).removesuffix(B)
            if stem == name and name.endswith("_norm.weight"):  # llama.cpp leaves them out, too
                continue
            if stem == name:
                raise self.wrong(f"the tensor {name!r} ends neither with {A} nor with {B}")
            if stem + A not in ne or stem + B not in ne:
                raise self.wrong(f"the weight {stem!r} has only one of {A} and {B}")
            for each in (stem + A, stem + B):
                if types[each] not in KERNEL_FLOATS and not types[each].is_quantized:
                    raise self.wrong(f"the tensor {each!r} holds {types[each].name}, which no product takes")
            self.pairs[stem] = Pair(ne[stem + A], ne[stem + B])
            if not self.pairs[stem].rank:
                raise self.wrong(f"its matrices for {stem!r} have rank 0")
        if not self.pairs:
            raise self.wrong("it changes no weights")

    def check(self, architecture: str, extents: Mapping[str, tuple[int, ...]]) -> None:
        """Raises ModelError if a model of this architecture, with weights of these extents, is not the adapter's."""
        if self.architecture != architecture:
            raise self.wrong(f"it was made for {self.architecture}, the model is {architecture}")
        for name, pair in self.pairs.items():
            if name not in extents:
                raise self.wrong(f"the model has no weight {name!r}")
            if has_own_scale(name, extents):
                raise self.wrong(f"the weight {name!r} has a scale of its own, which adapters do not take into account")
            ne = _whole(extents[name])
            if not pair.fits(name, ne):
                raise self.wrong(f"its matrices for {name!r} are {pair.a} and {pair.b}, the weight is {ne} (ne order)")

    def factor(self, name: str, scale: float) -> float:
        """What B A is multiplied with for a weight, where the adapter acts with ``scale``."""
        return scale * self.alpha / self.pairs[name].rank if self.alpha else scale

    def wrong(self, why: str) -> ModelError:
        return ModelError(f"the adapter {self.path} cannot be used: {why}", got=self.path)


class LoraAdapter(GraphChange):
    """The matrices of an adapter in the memory of a model's devices: a change of the model's graphs.

    Each product with a weight, and each row that is read of the table of embeddings, gets its low-rank part added.
    ``file``: checked for the model.  ``weights``: the model's.  Raises GGUFError, OutOfMemoryError, OSError.
    """

    def __init__(self, file: LoraFile, weights: Context, scale: float) -> None:
        self.file = file
        self.scale: float = number("scale", scale)

        def where(name: str) -> Device | None:
            weight = weights.get(name.removesuffix(A).removesuffix(B))
            lies = None if weight is None else weight.buffer_type
            return None if lies is None else cast(Device, lies.device)

        self.tensors, _ = gguf.load(file.path, where)

    @cached_property
    def digest(self) -> str:
        """The digest of the matrices and their factor."""
        return hashlib.sha256(f"{digest_of(self.tensors)} {self.file.alpha!r}".encode()).hexdigest()

    def scaled(self, scales: Scales) -> GraphChange:
        return _Scaled(self, scales)

    def change(self, name: str, base: Tensor, made: Tensor) -> Tensor | None:
        return self.added(base, made, lambda times: self.scale * times)

    def added(self, base: Tensor, made: Tensor, scale: Callable[[float], Tensor | float]) -> Tensor | None:
        """See :meth:`change`.  ``scale``: gives the adapter's scale, multiplied with a number."""
        weight = weight_read(base)
        if weight is None or weight.name not in self.file.pairs:
            return None
        return made + low_rank(base, weight, self.tensors) * scale(self.file.factor(weight.name, 1.0))

    def free(self) -> None:
        """Releases the matrices."""
        self.tensors.free()


@dataclass(frozen=True, eq=False)
class _Scaled(GraphChange):
    """An adapter in a graph whose inputs have its scale."""

    adapter: LoraAdapter
    scales: Scales

    def change(self, name: str, base: Tensor, made: Tensor) -> Tensor | None:
        return self.adapter.added(base, made, partial(self.scales.scale, self.adapter))


def has_own_scale(name: str, weights: Container[str]) -> bool:
    """Whether a weight has a scale of its own, which adapters do not take into account."""
    return f"{name.removesuffix('.weight')}.scale" in weights


def weight_read(node: Tensor) -> Tensor | None:
    """The weight of which a node reads columns or rows, so that an adapter can change it; None for other nodes."""
    weight = node.src[0] if isinstance(node.op, READS) else None
    return weight if weight is not None and weight.op is None else None


def low_rank(base: Tensor, weight: Tensor, matrices: Mapping[str, Tensor] | Context) -> Tensor:
    """What the matrices of a weight add to a node that reads it, without a factor.

    ``matrices``: A and B, by the weight's name with :data:`A` or :data:`B`.
    """
    a, b = (matrices[weight.name + end] for end in (A, B))
    return _table(base, a, b) if weight.name == TABLE else _matrix(base, a, b)


def _matrix(base: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """What is added to a node that reads a weight: B A x, or the columns of B A that are read."""
    x = base.src[1]
    assert x is not None
    if isinstance(base.op, ops.MulMatId):
        ids = base.src[2]
        assert ids is not None
        return gg.mul_mat_id(b, gg.mul_mat_id(a, x, ids), ids)
    if isinstance(base.op, ops.GetRows):
        return gg.mul_mat(_turned(a), gg.get_rows(b, x))
    return gg.mul_mat(b, gg.mul_mat(a, x))


def _table(base: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The same for the table of embeddings, which may be the output matrix, too."""
    x = base.src[1]
    assert x is not None
    if isinstance(base.op, ops.GetRows):
        return gg.mul_mat(b, gg.get_rows(a, x))
    return gg.mul_mat(a, gg.mul_mat(_turned(b), x))


def _turned(x: Tensor) -> Tensor:
    return gg.cont(gg.transpose(gg.cast(x, gg.F32) if x.type.is_quantized else x))


def check_used(file: LoraFile, nodes: Iterable[Tensor]) -> None:
    """Raises ModelError if a weight that the adapter changes is read by no node that it could change."""
    read = {weight.name for node in nodes if (weight := weight_read(node)) is not None}
    left = sorted(set(file.pairs) - read)
    if left:
        raise file.wrong(f"no product of the model reads {', '.join(left[:3])}")


def write_lora(
    path: str | os.PathLike[str],
    architecture: str,
    alpha: float,
    matrices: Mapping[str, npt.NDArray[Any]],
    name: str = "",
) -> Path:
    """Writes an adapter in llama.cpp's format, with F32 matrices; returns its path.

    ``matrices``: A and B, rows first, by the weight's name with :data:`A` or :data:`B`.  ``name``: of the adapter.
    """
    with GGUFWriter(path, architecture) as writer:
        writer.add("general.type", "adapter")
        writer.add("adapter.type", "lora")
        if name:
            writer.add("general.name", name)
        writer.add("adapter.lora.alpha", np.float32(alpha))
        for each, values in matrices.items():
            writer.add_tensor(each, np.ascontiguousarray(values, np.float32))
        writer.write()
    return Path(path)
