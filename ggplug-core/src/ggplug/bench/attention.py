"""An instrument for attention as one op: keys and values read once for a token, and used many times for a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ggplug import ops, types
from ggplug.backend import Backend, Device
from ggplug.bench.alternating import speed_relative, timed_alternately
from ggplug.bench.products import SEED, MatrixVector, moved, on, prepared, reader, stream_on
from ggplug.errors import UnsupportedOpError
from ggplug.registry.extras import Options
from ggplug.tensor import Tensor, new_tensor
from ggplug.types import Type


class Attention:
    """``flash_attn_ext`` over 4096 keys, heads of 128: of one query with a cache in memory, and of 512 queries."""

    name = "attention"
    description = "4096 keys, heads of 128: 1 query as a fraction of memory's speed, 512 queries compared with NumPy"
    REPEATS = 9
    HEAD, KEYS, QUERIES, HEADS = 128, 4096, 512, 8
    SIDE = 2048
    """Of the square matrix that NumPy multiplies 512 columns with."""
    KINDS: tuple[Type, ...] = (*types.KERNEL_FLOATS, types.Q8_0, types.Q4_0)

    def run(self, device: Device, options: Options) -> Iterable[Mapping[str, Any]]:
        stream = stream_on(device, options)
        for kind in self.KINDS:
            try:
                yield self.of_one(stream, kind)
                yield self.of_many(stream, kind)
            except UnsupportedOpError as error:
                yield {"case": kind.name, "note": error.reason or error.message}
        stream.free()

    def of_one(self, stream: Backend, kind: Type) -> Mapping[str, Any]:
        """One query of each of so many heads that no cache holds their keys and values."""
        device = stream.device
        heads = max(1, MatrixVector.size(device) // (2 * self.KEYS * kind.row_bytes(self.HEAD)))
        cache = self._cache(device, kind, heads)
        functions: dict[str, Callable[[], None]] = {"ours": self._attention(stream, 1, heads, *cache)}
        size = sum(tensor.nbytes for tensor in cache)
        if device.buffer_type.is_host:
            memory = np.ones(size // 4, np.float32)
            functions["read"] = reader(memory, getattr(stream, "n_threads", None) or 1)
        times = timed_alternately(functions, self.REPEATS)
        _free(cache)
        return {"case": f"1 query, {kind.name}", **moved(times, size, size)}

    def of_many(self, stream: Backend, kind: Type) -> Mapping[str, Any]:
        """512 queries of a few heads, all of which see all keys."""
        cache = self._cache(stream.device, kind, self.HEADS)
        ours = self._attention(stream, self.QUERIES, self.HEADS, *cache)
        generator = np.random.default_rng(SEED)
        rows = generator.standard_normal((self.QUERIES, self.SIDE), np.float32)
        matrix = generator.standard_normal((self.SIDE, self.SIDE), np.float32)
        times = timed_alternately({"ours": ours, "numpy": lambda: rows @ matrix.T}, self.REPEATS)
        _free(cache)
        operations = 4.0 * self.HEAD * self.KEYS * self.QUERIES * self.HEADS
        theirs = 2.0 * self.QUERIES * self.SIDE * self.SIDE
        return {
            "case": f"{self.QUERIES} queries, {kind.name}",
            "milliseconds": min(times["ours"]) * 1e3,
            "gigaflops": operations / min(times["ours"]) / 1e9,
            "numpy_gigaflops": theirs / min(times["numpy"]) / 1e9,
            "relative_to_numpy": speed_relative(times, "ours", "numpy") * operations / theirs,
        }

    def _cache(self, device: Device, kind: Type, heads: int) -> tuple[Tensor, Tensor]:
        """Keys and values in the device's memory; few different ones, again and again."""
        made = []
        for seed in (SEED, SEED + 1):
            some = np.random.default_rng(seed).standard_normal((1, self.KEYS, self.HEAD), np.float32)
            tensor = new_tensor(kind, (self.HEAD, self.KEYS, heads))
            tensor.place(device.buffer_type.alloc(device.buffer_type.alloc_size(tensor)))
            first = new_tensor(kind, (self.HEAD, self.KEYS, 1))
            first.place(device.buffer_type.alloc(device.buffer_type.alloc_size(first)))
            block = np.frombuffer(first.set(some).tobytes(), np.uint8)
            _free((first,))
            for head in range(heads):
                tensor.set_bytes(block, head * block.size)
            made.append(tensor)
        return made[0], made[1]

    def _attention(self, stream: Backend, queries: int, heads: int, k: Tensor, v: Tensor) -> Callable[[], None]:
        drawn = np.random.default_rng(SEED).standard_normal((heads, queries, self.HEAD), np.float32)
        return prepared(stream, ops.flash_attn_ext(on(stream.device, drawn), k, v, scale=self.HEAD**-0.5))


def _free(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        assert tensor.buffer is not None
        tensor.buffer.free()
