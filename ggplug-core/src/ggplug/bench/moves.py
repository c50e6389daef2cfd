"""An instrument for ops that are bound by memory, on tensors that no cache holds, and for convolution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ggplug import ops, types
from ggplug.backend import Device
from ggplug.bench.alternating import speed_relative, timed_alternately
from ggplug.bench.products import SEED, MatrixVector, moved, on, prepared, reader, stream_on
from ggplug.errors import UnsupportedOpError
from ggplug.registry.extras import Options
from ggplug.tensor import Tensor, new_tensor
from ggplug.types import Type

ROW = 4096
"""Numbers of a row."""
HEAD = 128
"""Numbers of a head, for rope."""


def _drawn(device: Device, *ne: int, type: Type = types.F32) -> Tensor:
    """Random numbers in the device's memory; few different ones, again and again."""
    made = new_tensor(type, ne)
    made.place(device.buffer_type.alloc(device.buffer_type.alloc_size(made)))
    some = np.random.default_rng(SEED).standard_normal(1 << 16, np.float32)
    first = on(device, some)
    cast = new_tensor(type, some.size)
    cast.place(device.buffer_type.alloc(device.buffer_type.alloc_size(cast)))
    piece = np.tile(np.frombuffer(cast.set(first.numpy()).tobytes(), np.uint8), 16)
    for start in range(0, made.nbytes, piece.size):
        made.set_bytes(piece[: made.nbytes - start], start)
    return made


def _integers(device: Device, values: Any) -> Tensor:
    made = new_tensor(types.I32, values.shape[::-1])
    made.place(device.buffer_type.alloc(device.buffer_type.alloc_size(made)))
    return made.set(values)


def _order(device: Device, rows: int) -> Tensor:
    return _integers(device, np.random.default_rng(SEED).permutation(rows).astype(np.int32))


Built = tuple[list[Tensor], Tensor]


def _of_one(op: Callable[[Tensor], Tensor]) -> Callable[[Device, int], Built]:
    def build(device: Device, rows: int) -> Built:
        x = _drawn(device, ROW, rows)
        return [x], op(x)

    return build


def _of_two(op: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Device, int], Built]:
    def build(device: Device, rows: int) -> Built:
        x, y = (_drawn(device, ROW, 2 * rows // 3) for _ in range(2))
        return [x, y], op(x, y)

    return build


def _rope(device: Device, rows: int) -> Built:
    x = _drawn(device, HEAD, ROW // HEAD, rows)
    return [x], ops.rope(x, _integers(device, np.arange(rows, dtype=np.int32)), HEAD)


def _copy(source: Type, target: Type) -> Callable[[Device, int], Built]:
    def build(device: Device, rows: int) -> Built:
        x = _drawn(device, ROW, rows, type=source)
        return [x], ops.cpy(x, new_tensor(target, (ROW, rows)))

    return build


def _get_rows(device: Device, rows: int) -> Built:
    table = _drawn(device, ROW, rows)
    return [table], ops.get_rows(table, _order(device, rows))


def _set_rows(target: Type) -> Callable[[Device, int], Built]:
    def build(device: Device, rows: int) -> Built:
        return [x := _drawn(device, ROW, rows)], ops.set_rows(
            _drawn(device, ROW, rows, type=target), x, _order(device, rows)
        )

    return build


_OPS: dict[str, Callable[[Device, int], Built]] = {
    "add": _of_two(ops.add),
    "mul": _of_two(ops.mul),
    "scale": _of_one(lambda x: ops.scale(x, 0.5)),
    "silu": _of_one(ops.silu),
    "gelu_erf": _of_one(ops.gelu_erf),
    "norm": _of_one(ops.norm),
    "rms_norm": _of_one(ops.rms_norm),
    "soft_max": _of_one(ops.soft_max),
    "rope": _rope,
    "cpy f32 to f32": _copy(types.F32, types.F32),
    "cpy f32 to f16": _copy(types.F32, types.F16),
    "cpy f16 to f32": _copy(types.F16, types.F32),
    "get_rows f32": _get_rows,
    "set_rows f32": _set_rows(types.F32),
    "set_rows f16": _set_rows(types.F16),
}


class Moves:
    """Ops that read and write each number once: the bytes of their operands and results against a streaming read."""

    name = "moves"
    description = "ops on tensors that no cache holds: gigabytes moved a second, and the fraction of memory's speed"
    REPEATS = 9
    CASES = tuple(_OPS)

    def run(self, device: Device, options: Options) -> Iterator[Mapping[str, Any]]:
        stream = stream_on(device, options)
        size = MatrixVector.size(device)
        on_host = device.buffer_type.is_host
        memory = np.ones(size // 4 if on_host else 1, np.float32)
        for case, build in _OPS.items():
            rows = max(1, size // (8 * ROW))  # about as many bytes are read and written as `size`
            try:
                operands, result = build(device, rows)
                functions: dict[str, Callable[[], None]] = {"ours": prepared(stream, result)}
            except UnsupportedOpError as error:
                yield {"case": case, "note": error.reason or error.message}
                continue
            if on_host:
                functions["read"] = reader(memory, getattr(stream, "n_threads", None) or 1)
            times = timed_alternately(functions, self.REPEATS)
            nbytes = sum(tensor.nbytes for tensor in operands) + result.nbytes
            yield {"case": case, "megabytes": round(nbytes / 1e6), **moved(times, nbytes, memory.nbytes)}
            del functions, operands, result
        stream.free()


class Convolution:
    """``conv_2d`` with kernels of 3 x 3 over 256 channels, against the device's own product of as many operations."""

    name = "convolution"
    description = "3 x 3 over 256 channels: gigaflops, and the ratio to the device's own product in float32"
    REPEATS = 9
    SIDE, CHANNELS, TAPS = 64, 256, 3
    KINDS: tuple[Type, ...] = (types.F32, types.F16)

    def run(self, device: Device, options: Options) -> Iterable[Mapping[str, Any]]:
        stream = stream_on(device, options)
        numbers = self.TAPS**2 * self.CHANNELS  # of a row of the product
        pixels = self.SIDE**2
        image = _drawn(device, self.SIDE, self.SIDE, self.CHANNELS)
        product = prepared(stream, ops.mul_mat(_drawn(device, numbers, self.CHANNELS), _drawn(device, numbers, pixels)))
        operations = 2.0 * numbers * self.CHANNELS * pixels
        for kind in self.KINDS:
            kernel = _drawn(device, self.TAPS, self.TAPS, self.CHANNELS, self.CHANNELS, type=kind)
            for name, built in (
                ("conv_2d_direct", ops.conv_2d_direct(kernel, image, p0=1, p1=1)),
                ("conv_2d", ops.conv_2d(kernel, image, p0=1, p1=1)),
            ):
                case = f"{name}, {kind.name}"
                try:
                    times = timed_alternately({"ours": prepared(stream, built), "product": product}, self.REPEATS)
                except UnsupportedOpError as error:
                    yield {"case": case, "note": error.reason or error.message}
                    continue
                yield {
                    "case": case,
                    "milliseconds": min(times["ours"]) * 1e3,
                    "gigaflops": operations / min(times["ours"]) / 1e9,
                    "product_gigaflops": operations / min(times["product"]) / 1e9,
                    "relative_to_product": speed_relative(times, "ours", "product"),
                }
        stream.free()
