"""Looks up a model's weights by name, checks their extents, and computes the digest that identifies them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from ggplug.errors import ModelError
from ggplug.gguf import GGUFReader, TensorInfo
from ggplug.gguf.format import is_foreign, swap_byte_order
from ggplug.tensor import Context, Tensor

W = TypeVar("W", Tensor, TensorInfo)

SAMPLES, SAMPLE_BYTES = 256, 4096
"""The digest reads about this many samples of this size from all weights together, or all of a smaller model."""


class Weights:
    """The tensors of a file whose names begin with ``prefix``: ``weights("attn_q.weight", n_in, n_out)``.

    A tensor that is missing, or has other extents, raises ModelError.  ``names``: with what the names of nodes that
    read these weights begin; by default, ``prefix``.
    """

    def __init__(self, tensors: Context, architecture: str, prefix: str = "", names: str | None = None) -> None:
        self.tensors = tensors
        self.architecture = architecture
        self.prefix = prefix
        self.names = prefix if names is None else names

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.tensors

    def __call__(self, name: str, *ne: int) -> Tensor:
        """The tensor with this name and the extents ``ne``, innermost first; -1 stands for any extent of at least 1."""
        name = self.prefix + name
        tensor = self.tensors.get(name)
        wanted = ne + (1,) * (4 - len(ne))
        if tensor is None:
            raise ModelError(
                f"the file has no tensor {name!r}; {self.architecture} needs it with ne {_extents(wanted)}",
                got=None,
                wanted=wanted,
            )
        if not all(want in (have, -1) and have for want, have in zip(wanted, tensor.ne, strict=True)):
            raise ModelError(
                f"tensor {name!r} has ne {_extents(tensor.ne)}; by the file's metadata it must be {_extents(wanted)}",
                tensor=tensor,
                got=tensor.ne,
                wanted=wanted,
            )
        return tensor

    def optional(self, name: str, *ne: int) -> Tensor | None:
        """As a call, but None if the file has no such tensor."""
        return self(name, *ne) if name in self else None

    def named(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor, a node that reads these weights, after it got the name with the prefix."""
        return tensor.named(self.names + name)

    def block(self, number: int, of: str = "") -> Weights:
        """The weights of the block ``number``, whose names begin with ``of``: "enc." for encoders next to decoders."""
        name = f"blk.{number}."
        return Weights(self.tensors, self.architecture, self.prefix + of + name, self.names + name)


def _extents(ne: tuple[int, ...]) -> str:
    return f"({', '.join('any' if extent < 0 else str(extent) for extent in ne)})"


def digest_of(weights: Iterable[W], read: Callable[[W, int, int], Any]) -> str:
    """A digest of weights that does not depend on where they are stored: of names, types, extents, and samples of
    bytes.

    ``read(weight, offset, size)``: returns bytes of whole blocks, in the host's byte order.  The order of the weights
    does not matter.  The samples include the first and the last blocks of each weight; small models are read as a
    whole.
    """
    found = hashlib.sha256()
    ordered = sorted(weights, key=lambda weight: weight.name)
    total = sum(weight.nbytes for weight in ordered)
    for weight in ordered:
        ne = weight.ne + (1,) * (4 - len(weight.ne))
        found.update(f"{weight.name} {weight.type.name} {ne}\n".encode())
        block, blocks = weight.type.block_bytes, weight.nbytes // weight.type.block_bytes
        size = max(1, SAMPLE_BYTES // block)
        last = max(blocks - size, 0)
        steps = -(-last // size)
        if total > SAMPLES * SAMPLE_BYTES:
            steps = min(steps, 1 + SAMPLES * weight.nbytes // total)
        for step in range(steps + 1 if blocks else 0):
            start = last * step // max(steps, 1)
            found.update(read(weight, start * block, min(size, blocks) * block))
    return found.hexdigest()


def digest_of_file(reader: GGUFReader) -> str:
    """:func:`digest_of` the weights in a file."""

    def read(info: TensorInfo, offset: int, size: int) -> Any:
        data = reader.data(info)[offset : offset + size]
        return swap_byte_order(data, info.type) if is_foreign(reader.endian) else data

    return digest_of(reader.tensors.values(), read)


def digest_of_tensors(weights: Context) -> str:
    """:func:`digest_of` weights that are loaded."""

    def read(tensor: Tensor, offset: int, size: int) -> Any:
        out = np.empty(size, np.uint8)
        tensor.access(lambda buffer, start: buffer.get_tensor(tensor, out, start, offset))
        return out

    return digest_of(weights, read)
