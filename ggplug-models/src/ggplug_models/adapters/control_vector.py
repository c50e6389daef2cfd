"""Control vectors (A. Zou et al., arXiv:2310.01405): a direction that is added to the output of each block."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug.errors import ModelError
from ggplug.gguf import GGUFReader
from ggplug.tensor import Tensor
from ggplug_models.adapters.matrices import values_in_file
from ggplug_models.checks.arguments import number, whole
from ggplug_models.layers.patches import GraphChange

_DIRECTION = re.compile(r"direction\.(\d+)")
_OUTPUT = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.l_out")


class ControlVector(GraphChange):
    """A control vector in llama.cpp's format: the tensor ``direction.N`` [n_embd] is added to the output of block N.

    Of an encoder-decoder, it is added to the outputs of block N of both parts, as llama.cpp does.  ``nodes``: the names
    of the model's nodes.  ``scale``: what the directions are multiplied with.  ``first``, ``last``: the blocks that are
    changed, of those that the file has directions for.  Raises ModelError if the file is no control vector for models
    of ``n_embd`` and ``n_layer``, or if the model has no output for a direction, ParameterError, GGUFError, OSError.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        n_embd: int,
        n_layer: int,
        nodes: Iterable[str],
        scale: float = 1.0,
        first: int = 0,
        last: int | None = None,
    ) -> None:
        self.path = Path(path)
        scale = number("scale", scale)
        blocks = range(whole("first", first), n_layer if last is None else whole("last", last) + 1)
        self.directions: dict[int, npt.NDArray[np.float32]] = {}
        with GGUFReader(path) as reader:
            for name, info in reader.tensors.items():
                match = _DIRECTION.fullmatch(name)
                if match is None:
                    raise self._wrong(f"the tensor {name!r} is no direction.N")
                if info.ne != (n_embd,) or int(match[1]) >= n_layer:
                    raise self._wrong(f"{name!r} has ne {info.ne}; the model has {n_layer} blocks of n_embd {n_embd}")
                if int(match[1]) in blocks:
                    self.directions[int(match[1])] = values_in_file(reader, info) * np.float32(scale)
        if not self.directions:
            raise self._wrong("it has no direction for these blocks")
        there = {int(match[1]) for match in map(_OUTPUT.fullmatch, nodes) if match is not None}
        lacking = min(self.directions.keys() - there, default=None)
        if lacking is not None:
            raise self._wrong(f"the model computes no node blk.{lacking}.l_out that could be changed")

    @cached_property
    def digest(self) -> str:
        """The digest of the scaled directions."""
        found = hashlib.sha256()
        for block, direction in sorted(self.directions.items()):
            found.update(f"{block} ".encode() + direction.tobytes())
        return found.hexdigest()

    def change(self, name: str, base: Tensor, made: Tensor) -> Tensor | None:
        match = _OUTPUT.fullmatch(name)
        direction = None if match is None else self.directions.get(int(match[1]))
        return None if direction is None else gg.add(made, gg.tensor(direction, gg.F32, name=f"{name}/direction"))

    def _wrong(self, why: str) -> ModelError:
        return ModelError(f"the control vector {self.path} cannot be used: {why}", got=self.path)
