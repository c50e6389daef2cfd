"""The part of a report that measures: times are those of the best of several runs, after one that warms up.

What is over sooner than it takes to launch it and to wait is measured many times in a row, as models compute it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from ggplug import ops, types
from ggplug.backend import Backend, Buffer, Device
from ggplug.bench.alternating import best_times
from ggplug.bench.overhead import NODES, chain
from ggplug.bench.products import SEED, K, MatrixVector, Prepared, on, weights
from ggplug.graph import Graph
from ggplug.memory import GraphAllocator
from ggplug.tensor import Tensor, new_tensor
from ggplug.types import Type
from ggplug_testing.gpu_report.proofs import COSINES
from ggplug_testing.gpu_report.step import Answer, Step, Subject

SIZE, COLUMNS = 2048, 512
OPERATIONS = 2.0 * COLUMNS * SIZE * SIZE
"""Of a product of SIZE x SIZE weights with COLUMNS columns."""

REPEATS = 5
SECONDS = 0.02
"""How long a row of equal products should take, so that launching and waiting do not count."""

LONGEST = 16


def figures(subject: Subject) -> Iterator[Step]:
    """Memory, products compared with those of the vendor's library, the cost of launching, a model."""
    device = subject.device
    yield Step("copy on the device, bytes read and written", functools.partial(copying, device))
    for kind in (types.F16, types.Q8_0, types.Q4_0):
        yield Step(f"matrix-vector {K} x {K}, {kind.name}", functools.partial(matrix_vector, device, kind))
    for kind in (types.F32, types.F16, types.Q8_0, types.Q4_0):
        name = f"matrix product {COLUMNS} x {SIZE} x {SIZE}, {kind.name}"
        yield Step(name, functools.partial(matrix_product, device, kind))
    yield from subject.door.figures(device)
    yield Step(f"a graph of {NODES} tiny nodes again", functools.partial(launching, device))
    for name in COSINES:
        yield Step(f"the model, {name}", functools.partial(sequences, subject, name))


def copying(device: Device) -> Answer:
    """From one buffer of the device to another one, of a size that no cache holds."""
    size = MatrixVector.size(device)
    with Rows(device) as rows:
        source, target = rows.buffer(size), rows.buffer(size)

        def run() -> None:
            rows.stream.copy_async(source, 0, target, 0, size)
            rows.stream.synchronize()

        seconds = best_times({"copy": run}, REPEATS)["copy"]
    return {"figures": {"gigabytes_per_second": 2 * size / seconds / 1e9, "milliseconds": seconds * 1e3}}


def matrix_vector(device: Device, kind: Type) -> Answer:
    """Products with one column: one by itself, and as many different weights in a row as no cache holds."""
    with Rows(device) as rows:
        vector = rows.keep(on(device, np.random.default_rng(SEED).standard_normal((1, K), np.float32)))
        first = rows.keep(weights(device, kind, K))
        count = max(1, MatrixVector.size(device) // first.nbytes)
        matrices = [first, *(rows.keep(weights(device, kind, K)) for _ in range(count - 1))]
        alone = rows.seconds([ops.mul_mat(first, vector)])
        row = rows.seconds([ops.mul_mat(matrix, vector) for matrix in matrices])
    return {
        "figures": {
            "gigabytes_per_second": count * first.nbytes / row / 1e9,
            "milliseconds": row / count * 1e3,
            "milliseconds_alone": alone * 1e3,
        }
    }


def matrix_product(device: Device, kind: Type) -> Answer:
    """Products of the same weights and columns, one after the other."""
    with Rows(device) as rows:
        values, matrix = factors()
        columns = rows.keep(on(device, values))
        weight = new_tensor(kind, (SIZE, SIZE))
        weight.place(rows.buffer(device.buffer_type.alloc_size(weight)))
        weight.set(matrix)
        return _product(lambda count: rows.seconds([ops.mul_mat(weight, columns) for _ in range(count)]))


def library_product(run: Callable[[int], None]) -> Answer:
    """The product of :func:`factors` by a vendor's library; ``run(count)`` computes it so often and waits."""
    return _product(lambda count: best_times({"run": functools.partial(run, count)}, REPEATS)["run"])


def factors() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Columns [COLUMNS, SIZE] and weights [SIZE, SIZE]."""
    generator = np.random.default_rng(SEED)
    return generator.standard_normal((COLUMNS, SIZE), np.float32), generator.standard_normal((SIZE, SIZE), np.float32)


def _product(seconds: Callable[[int], float]) -> Answer:
    """``seconds(count)``: the time of so many products in a row."""
    alone = seconds(1)
    count = max(1, min(LONGEST, int(SECONDS / alone)))
    row = seconds(count) / count
    return {
        "figures": {"gigaflops": OPERATIONS / row / 1e9, "milliseconds": row * 1e3, "milliseconds_alone": alone * 1e3}
    }


def launching(device: Device) -> Answer:
    """What a launch costs in a plan that is computed again: on the host, and until all is done."""
    with Rows(device) as rows:
        leafs = [rows.keep(on(device, np.full(16, value, np.float32))) for value in (0.5, 1.0)]
        ready = rows.prepared([chain(NODES, leafs)])
        host, whole = float("inf"), float("inf")
        for _ in range(10 * REPEATS):
            start = time.perf_counter()
            ready.plan.compute()
            submitted = time.perf_counter()
            rows.stream.synchronize()
            done = time.perf_counter()
            host, whole = min(host, submitted - start), min(whole, done - start)
    return {"figures": {"microseconds_a_launch": host / NODES * 1e6, "microseconds_a_node": whole / NODES * 1e6}}


def sequences(subject: Subject, kind: str) -> Answer:
    """A batch of texts through the model, with all that the host does for it."""
    from ggplug_models import load
    from ggplug_models.benchmarks.embeddings import N_TOK, SIZES

    n_seq = max(SIZES)
    with load(subject.folder.model(kind), [subject.device]) as model:
        vocabulary = model.weights["token_embd.weight"].ne[1]
        ids = np.random.default_rng(SEED).integers(0, vocabulary, (n_seq, N_TOK)).tolist()
        run = functools.partial(model.embed_ids, ids, batch=n_seq)
        seconds = best_times({"embed": run}, REPEATS)["embed"]
    return {"figures": {"sequences_per_second": n_seq / seconds, "milliseconds": seconds * 1e3}}


class Rows(ExitStack):
    """A stream and the memory of one measurement; nodes are computed in a row, planned and placed beforehand."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self.stream: Backend = self.enter_context(device.init())

    def buffer(self, size: int) -> Buffer:
        """Memory of the device until the end of the measurement."""
        return self.enter_context(self.device.buffer_type.alloc(size))

    def keep(self, tensor: Tensor) -> Tensor:
        """A tensor whose memory is released at the end."""
        assert tensor.buffer is not None
        self.callback(tensor.buffer.free)
        return tensor

    def prepared(self, nodes: Sequence[Tensor]) -> Prepared:
        """A function that computes these nodes one after the other, and waits for the last."""
        graph = Graph(*nodes)
        plan = self.stream.plan(graph)
        allocator = self.enter_context(GraphAllocator(self.device.buffer_type))
        return Prepared(self.stream, plan, graph, allocator.allocate(graph))

    def seconds(self, nodes: Sequence[Tensor]) -> float:
        """The shortest time for computing these nodes once, one after the other."""
        return best_times({"run": self.prepared(nodes)}, REPEATS)["run"]
