"""Two instruments for the work that decides how fast a model is: reading weights once, and using them many times."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug import host, ops, quants, types
from ggplug.backend import Backend, Device, Plan
from ggplug.bench.alternating import speed_relative, timed_alternately
from ggplug.errors import UnsupportedOpError
from ggplug.graph import Graph
from ggplug.memory import Allocation, allocate_graph
from ggplug.registry.extras import Options
from ggplug.tensor import Tensor, new_tensor
from ggplug.types import BufferUsage, Type

SEED = 20240817
K = 4096
"""Elements of a row of weights: what models of seven thousand million parameters have."""

WEIGHTS = (*types.KERNEL_FLOATS, *quants.block_types())


def stream_on(device: Device, options: Options) -> Backend:
    """A stream, with the wanted number of threads if the device has threads at all."""
    return device.init() if options.threads is None else device.init(n_threads=options.threads)


def use_threads(streams: Iterable[Backend], options: Options) -> None:
    """Has those streams that have threads use as many as are wanted."""
    for stream in streams:
        if options.threads is not None and hasattr(stream, "set_n_threads"):
            stream.set_n_threads(options.threads)


def prepared(stream: Backend, output: Tensor) -> Prepared:
    """A callable that computes a tensor and waits; plan and memory are made beforehand, so only this is measured."""
    graph = Graph(output)
    plan = stream.plan(graph)
    return Prepared(stream, plan, graph, allocate_graph(graph, stream.device.buffer_type))


class Prepared:
    """A plan, and what it is bound to, which it does not keep alive itself."""

    def __init__(self, stream: Backend, plan: Plan, graph: Graph, allocation: Allocation) -> None:
        self.stream, self.plan, self.graph, self.allocation = stream, plan, graph, allocation
        plan.rebind(graph, allocation)

    def __call__(self) -> None:
        self.plan.compute()
        self.stream.synchronize()


def weights(device: Device, kind: Type, rows: int) -> Tensor:
    """Random weights [K, rows] in the device's memory: few different rows, again and again."""
    rng = np.random.default_rng(SEED)
    if kind.is_quantized and not quants.can_store(kind):  # it takes long to encode, and any bits are numbers
        block = rng.integers(0, 256, 64 * kind.row_bytes(K), np.uint8)
        quants.put_scales(block, kind, 0.01)
    else:
        some = host.tensor(rng.standard_normal((64, K), np.float32), kind)
        block = np.frombuffer(some.tobytes(), np.uint8)
    made = new_tensor(kind, (K, rows), f"weights {kind.name}")
    buffer = device.buffer_type.alloc(device.buffer_type.alloc_size(made))
    buffer.usage = BufferUsage.WEIGHTS
    made.place(buffer)
    piece = np.tile(block, max(1, (16 << 20) // block.size))
    for start in range(0, made.nbytes, piece.size):
        made.set_bytes(piece[: made.nbytes - start], start)
    return made


def on(device: Device, values: npt.NDArray[Any]) -> Tensor:
    """The values in the device's memory."""
    made = new_tensor(types.F32, values.shape[::-1])
    made.place(device.buffer_type.alloc(device.buffer_type.alloc_size(made)))
    return made.set(values)


class MatrixVector:
    """``mul_mat`` with one column and weights that no cache holds: what generating a token does."""

    name = "matvec"
    description = "weights read from memory: gigabytes a second, and the fraction of memory's speed"
    REPEATS = 9

    def run(self, device: Device, options: Options) -> Iterable[Mapping[str, Any]]:
        stream = stream_on(device, options)
        size = self.size(device)
        on_host = device.buffer_type.is_host
        threads = getattr(stream, "n_threads", None)
        memory = np.ones(size // 4, np.float32) if on_host else np.ones(1, np.float32)
        vector = on(device, np.random.default_rng(SEED).standard_normal((1, K), np.float32))
        for kind in WEIGHTS:
            matrix = weights(device, kind, size // kind.row_bytes(K))
            assert matrix.buffer is not None
            try:
                functions: dict[str, Callable[[], None]] = {"ours": prepared(stream, ops.mul_mat(matrix, vector))}
                if on_host:
                    functions["read"] = reader(memory, threads or 1)
                times = timed_alternately(functions, self.REPEATS)
            except UnsupportedOpError as error:
                yield {"case": kind.name, "note": error.reason or error.message}
                continue
            finally:
                matrix.buffer.free()
            megabytes = round(matrix.nbytes / 1e6)
            yield {"case": kind.name, "megabytes": megabytes, **moved(times, matrix.nbytes, memory.nbytes)}
            if options.compare_with is not None:
                yield self.compared(kind, stream, stream_on(options.compare_with, options))
        stream.free()

    def compared(self, kind: Type, *streams: Backend) -> Mapping[str, Any]:
        """K x K weights, which caches may hold, on two devices alternately."""
        values = np.random.default_rng(SEED).standard_normal((1, K), np.float32)
        matrices = [weights(stream.device, kind, K) for stream in streams]
        products = [
            prepared(stream, ops.mul_mat(matrix, on(stream.device, values)))
            for stream, matrix in zip(streams, matrices, strict=True)
        ]
        name = streams[1].device.name
        times = timed_alternately({"ours": products[0], "theirs": products[1]}, 4 * self.REPEATS)
        for matrix in matrices:
            assert matrix.buffer is not None
            matrix.buffer.free()
        streams[1].free()
        return {
            "case": f"{kind.name} {K} x {K}",
            "milliseconds": min(times["ours"]) * 1e3,
            f"{name}_milliseconds": min(times["theirs"]) * 1e3,
            f"relative_to_{name}": speed_relative(times, "ours", "theirs"),
        }

    @staticmethod
    def size(device: Device) -> int:
        """Bytes of weights: twice the largest cache, as far as memory allows."""
        free = min(memory.free or 1 << 30 for memory in (device.memory(), host.memory()))
        return max(16 << 20, min(max(256 << 20, 2 * largest_cache()), 1 << 30, free // 8))


def reader(memory: npt.NDArray[np.float32], threads: int) -> Callable[[], None]:
    """Reads memory once, front to back, on several threads, by the fastest way that NumPy has."""
    parts = np.array_split(memory.view(np.int8), threads)

    def run() -> None:
        workers = [threading.Thread(target=part.max) for part in parts[1:]]
        for worker in workers:
            worker.start()
        parts[0].max()
        for worker in workers:
            worker.join()

    return run


def moved(times: Mapping[str, Sequence[float]], nbytes: int, read: int) -> dict[str, float]:
    """The figures of the function ``ours``, which moves ``nbytes``, compared with ``read``, if it was measured."""
    best = min(times["ours"])
    row = {"milliseconds": best * 1e3, "gigabytes_per_second": nbytes / best / 1e9}
    if "read" in times:
        row["streaming_gigabytes_per_second"] = read / min(times["read"]) / 1e9
        row["fraction_of_streaming"] = speed_relative(times, "ours", "read") * nbytes / read
    return row


def largest_cache() -> int:
    """Bytes of the largest cache of this machine; 0 where the system does not report it."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text("ascii").strip()
            sizes.append(int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0))
        except (OSError, ValueError):
            continue
    return max(sizes)


class MatrixMatrix:
    """``mul_mat`` with 512 columns: what reading a prompt, or embedding a batch, does."""

    name = "matmul"
    description = "512 columns, 4096 x 4096 weights: gigaflops, and ratios to the own Q8_0 and NumPy in float32"
    REPEATS = 7
    ROWS, COLUMNS = K, 512

    def run(self, device: Device, options: Options) -> Iterable[Mapping[str, Any]]:
        stream = stream_on(device, options)
        generator = np.random.default_rng(SEED)
        values = generator.standard_normal((self.COLUMNS, K), np.float32)
        matrix = generator.standard_normal((self.ROWS, K), np.float32)
        operations = 2.0 * self.COLUMNS * self.ROWS * K
        columns = on(device, values)
        own: dict[str, Callable[[], Any]] = {}
        eight_bits = weights(device, types.Q8_0, self.ROWS)
        with contextlib.suppress(UnsupportedOpError):
            own["q8_0"] = prepared(stream, ops.mul_mat(eight_bits, columns))
        for kind in WEIGHTS:
            weight = weights(device, kind, self.ROWS)
            assert weight.buffer is not None
            functions: dict[str, Callable[[], Any]] = {"numpy": lambda: values @ matrix.T}
            if kind.is_quantized:
                functions |= own
            if options.peers and not kind.is_quantized and importlib.util.find_spec("torch"):
                functions["torch"] = torch_product(matrix, values, kind, getattr(stream, "n_threads", None))
            try:
                functions["ours"] = prepared(stream, ops.mul_mat(weight, columns))
                times = timed_alternately(functions, self.REPEATS)
            except UnsupportedOpError as error:
                yield {"case": kind.name, "note": error.reason or error.message}
                continue
            row: dict[str, Any] = {
                "case": kind.name,
                "milliseconds": min(times["ours"]) * 1e3,
                "gigaflops": operations / min(times["ours"]) / 1e9,
            }
            for name in ("q8_0", "numpy", "torch"):
                if name in times:
                    row[f"{name}_gigaflops"] = operations / min(times[name]) / 1e9
                    row[f"relative_to_{name}"] = speed_relative(times, "ours", name)
            yield row
            weight.buffer.free()
        stream.free()


def torch_product(
    matrix: npt.NDArray[np.float32], columns: npt.NDArray[np.float32], kind: Type, threads: int | None
) -> Callable[[], Any]:
    """The same product by PyTorch, both operands in the type of the weights."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[kind.name]
    a, x = (torch.from_numpy(values).to(dtype) for values in (matrix, columns))
    return lambda: torch.nn.functional.linear(x, a)


INSTRUMENTS = (MatrixVector(), MatrixMatrix())
