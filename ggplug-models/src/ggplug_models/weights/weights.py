"""Looks up a model's weights by name, checks their extents, and computes the digest that identifies them."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from typing import Any

import numpy as np

from ggplug.backend import Buffer, Device
from ggplug.errors import ModelError
from ggplug.tensor import Context, Tensor

_PIECE = 4 << 20
"""How many bytes of a weight are read at a time."""


class Weights:
    """The tensors of a file, all or a part of them: ``weights("attn_q.weight", n_in, n_out)``.

    A tensor that is missing, or has other extents, raises ModelError.  ``names``: with what the names of nodes that
    read these weights begin.  ``needs``, ``varies``: those of :class:`.Model`.
    """

    def __init__(
        self, tensors: Context, architecture: str, needs: Collection[str] = (), varies: Collection[str] = ()
    ) -> None:
        self.tensors = tensors
        self.architecture = architecture
        self.prefix = self.names = ""
        self._needs = needs
        self._varies = varies
        self._read: set[str] = set()
        """The names of the tensors that were looked up, by all parts together."""
        self._blocks_of: str | None = None
        """The prefix of the names of all blocks, if these are the weights of a block."""
        self._optional: dict[str, tuple[bool, str]] = {}
        """Of optional tensors of blocks: whether the first block has it that was asked for, and its name there."""

    def __contains__(self, name: str) -> bool:
        """Whether the file has the tensor.

        Raises ModelError for a missing one that the architecture needs, and if only some of the blocks have it that are
        asked for it, unless it is one that varies, or a scale, which only some types of weights have.
        """
        whole = self.prefix + name
        found = whole in self.tensors
        if not found and name in self._needs:
            raise ModelError(f"the file has no tensor {whole!r}, which {self.architecture} models need", got=None)
        if self._blocks_of is not None and name not in self._varies and not name.endswith(".scale"):
            first, there = self._optional.setdefault(self._blocks_of + name, (found, whole))
            if first != found:
                missing, other = (whole, there) if first else (there, whole)
                raise ModelError(f"the file has no tensor {missing!r}, although it has {other!r}", got=None)
        return found

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
        self._read.add(name)
        return tensor

    def check_all_read(self, unread: Collection[str], n_layer: int) -> None:
        """Raises ModelError for tensors that no node reads: the model would compute something else than its file says.

        ``unread``: with what the names of those begin, without that of a block, that the family does not need.  Blocks
        from ``n_layer`` on are those of heads.
        """
        found = [
            tensor.name
            for tensor in self.tensors
            if tensor.name not in self._read and not _is_besides(tensor.name, unread, n_layer)
        ]
        if found:
            others = f" and {len(found) - 3} others" if len(found) > 3 else ""
            raise ModelError(
                f"{self.architecture} models do not read the tensors {', '.join(map(repr, found[:3]))}{others} of the "
                "file, without which they would compute something else",
                got=found,
                remedy="the file may be of another architecture, or of a newer version of this one",
            )

    def optional(self, name: str, *ne: int) -> Tensor | None:
        """As a call, but None if the file has no such tensor."""
        return self(name, *ne) if name in self else None

    def named(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor, a node that reads these weights, after it got the name with the prefix."""
        return tensor.named(self.names + name)

    def block(self, number: int, of: str = "", called: int | None = None) -> Weights:
        """The weights of the block ``number``, whose names begin with ``of``: "enc." for encoders next to decoders.

        ``called``: the number in the names of nodes, where several blocks have the same weights.
        """
        found = self._behind(self.prefix + of, f"blk.{number}.", self.names)
        found._blocks_of = self.prefix + of
        if called is not None:
            found.names = f"{self.names}blk.{called}."
        return found

    def part(self, of: str) -> Weights:
        """The weights whose names, and those of the nodes that read them, begin with ``of``."""
        return self._behind(self.prefix, of, self.names)

    def called(self, of: str) -> Weights:
        """The same weights; the names of the nodes that read them begin with ``of``."""
        found = copy(self)
        found.names += of
        return found

    def _behind(self, prefix: str, name: str, names: str) -> Weights:
        found = copy(self)
        found.prefix, found.names = prefix + name, names + name
        return found


def check_blocks(names: Iterable[str], metadata: Mapping[str, Any], architecture: str) -> None:
    """Raises ModelError for the name of a tensor of a block behind the last one, which models would not compute."""
    counts = [metadata.get(f"{architecture}.{key}") for key in ("block_count", "decoder_block_count")]
    count = max((int(each) for each in counts if isinstance(each, (int, np.integer))), default=0)
    for name in names:
        block = _BLOCK.match(name)
        if block and int(block[1]) >= count:
            raise ModelError(
                f"there is a tensor {name!r}, but by the settings the model has {count} blocks",
                tensor=name,
                got=int(block[1]) + 1,
                wanted=count,
            )


def _is_besides(name: str, unread: Collection[str], n_layer: int) -> bool:
    """Whether a tensor is for something else than the vectors or logits of texts."""
    block = _BLOCK.match(name)
    if block and int(block[1]) >= n_layer:
        return True
    stem = name[block.end() :] if block else name
    return stem.startswith(tuple(unread)) or name.startswith(BESIDES) or name.endswith(".input_scale")


BESIDES = ("cls.", "v.", "mm.", "a.", "s.")
"""With what the names of tensors begin that classifiers read, or the parts for images and audio that Ollama's files
have; scales of inputs belong to products that are computed otherwise."""

_BLOCK = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.")


def _extents(ne: tuple[int, ...]) -> str:
    return f"({', '.join('any' if extent < 0 else str(extent) for extent in ne)})"


def digest_of(weights: Context) -> str:
    """A digest of weights that does not depend on where they are stored: of names, types, extents and all bytes.

    The order of the weights does not matter.  It reads some gigabytes in a second, and tells weights apart that are
    others by chance, not by intent: of the bytes of each there is a CRC-32.
    """
    found = hashlib.sha256()
    for weight in sorted(weights, key=lambda weight: weight.name):
        ne = weight.ne + (1,) * (4 - len(weight.ne))
        found.update(f"{weight.name} {weight.type.name} {ne} {_checksum(weight):08x}\n".encode())
    return found.hexdigest()


def _checksum(weight: Tensor) -> int:
    block = weight.type.block_bytes

    def of_bytes(buffer: Buffer, at: int) -> int:
        device = buffer.type.device
        packed = isinstance(device, Device) and buffer.type in device.extra_buffer_types
        size = weight.nbytes if packed else max(1, _PIECE // block) * block  # each read of a packed one unpacks it
        found = 0
        for start in range(0, weight.nbytes, size):
            piece = np.empty(min(size, weight.nbytes - start), np.uint8)
            buffer.get_tensor(weight, piece, at, start)
            found = zlib.crc32(piece.data, found)
        return found

    return weight.access(of_bytes)
