"""An instrument for the cost model: predicted times compared with measured ones, and with those of ggml's rules."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from ggplug import ops, registry
from ggplug.backend import Device
from ggplug.bench.alternating import timed_alternately
from ggplug.graph import Graph
from ggplug.memory import allocate
from ggplug.registry.extras import Options
from ggplug.scheduler import Scheduler
from ggplug.scheduler.timing import CALLS, RUNS
from ggplug.tensor import Context, Tensor, new_tensor
from ggplug.types import BufferUsage, DeviceKind

WIDTH, BLOCKS = 512, 4
REPEATS = 7

Make = Callable[[ExitStack], tuple[Graph, Callable[[], None]]]
"""Makes a graph, and a function that sets its inputs once it was allocated."""


class Placement:
    """Feed-forward blocks of some tokens, with weights on the device or on the CPU, placed by time and by the rules."""

    name = "placement"
    description = "times that the cost model predicts, compared with measured ones and with those of ggml's rules"
    runs_by_name = True

    def run(self, device: Device, options: Options) -> Iterable[Mapping[str, Any]]:
        devices = [device, *(cpu for cpu in registry.devices_by_kind(DeviceKind.CPU)[:1] if cpu is not device)]
        cases = itertools.product(dict.fromkeys((device, devices[-1])), (1, 32, 256))
        makers = {f"{n} tokens, weights on {where.name}": partial(blocks, where, n) for where, n in cases}
        yield from compared(devices, makers)


def compared(devices: Sequence[Device], makers: Mapping[str, Make]) -> Iterator[dict[str, Any]]:
    """A row for each graph, then the median and the worst of all.

    ``error``: the part by which the measured time differs from the prediction that was made after the graph had run
    some times; ``error_before``: from the one before.  ``relative_to_ggml``: the time by ggml's rules in the same
    rounds, divided by that of the cost model's placement.  ``moved``: nodes that it places elsewhere; with none, both
    times are those of the same schedule.
    """
    rows = []
    for case, make in makers.items():
        row = measured(devices, make)
        rows.append(row)
        yield {"case": case, **row}
    for word, choose, worst in (("median", statistics.median, statistics.median), ("worst", max, min)):
        figures = {"error_before": choose, "error": choose, "relative_to_ggml": worst}
        yield {"case": word, **{name: of([row[name] for row in rows]) for name, of in figures.items()}}


def measured(devices: Sequence[Device], make: Make) -> dict[str, Any]:
    """The predicted and the measured time of a graph, placed by the cost model and by ggml's rules."""
    with ExitStack() as held:
        functions: dict[str, Callable[[], None]] = {}
        for policy in ("cost", "ggml"):
            graph, set_inputs = make(held)
            scheduler = held.enter_context(Scheduler(devices, policy=policy))
            before = seconds(scheduler, graph) if policy == "cost" else 0.0
            scheduler.allocate(graph)
            set_inputs()
            functions[policy] = partial(scheduler.compute, graph)
            if policy == "cost":
                predicted, moved = before, sum(row.reason == "fastest" for row in scheduler.explain(graph).rows)
                for _ in range(RUNS + CALLS + 1):
                    scheduler.compute(graph)
                after = seconds(scheduler, graph)
        times = timed_alternately(functions, REPEATS)
        taken = min(times["cost"])
        ratios = [ruled / ours for ruled, ours in zip(times["ggml"], times["cost"], strict=True)]
        return {
            "predicted_milliseconds": round(after * 1e3, 4),
            "milliseconds": round(taken * 1e3, 4),
            "error_before": round(abs(taken / predicted - 1), 3),
            "error": round(abs(taken / after - 1), 3),
            "relative_to_ggml": round(statistics.median(ratios), 3),
            "moved": moved,
        }


def seconds(scheduler: Scheduler, graph: Graph) -> float:
    """The predicted time of a computation."""
    return scheduler.explain(graph).predicted or float("nan")


def blocks(where: Device, tokens: int, held: ExitStack) -> tuple[Graph, Callable[[], None]]:
    """Feed-forward blocks of some tokens, with weights on a device."""
    weights = held.enter_context(Context("weights"))

    def weight(*ne: int) -> Tensor:
        made = new_tensor("q8_0" if len(ne) > 1 else "f32", ne)
        weights.add(made)
        return made

    x = inputs = new_tensor("f32", (WIDTH, tokens)).set_input()
    for _ in range(BLOCKS):
        y = ops.mul(ops.rms_norm(x), weight(WIDTH))
        y = ops.mul_mat(weight(2 * WIDTH, WIDTH), ops.silu(ops.mul_mat(weight(WIDTH, 2 * WIDTH), y)))
        x = ops.add(x, y)
    graph = Graph(x.set_output())
    allocate(weights, where, BufferUsage.WEIGHTS, zeroed=True)
    values = np.random.default_rng(0).standard_normal((tokens, WIDTH), np.float32)

    def set_inputs() -> None:
        inputs.set(values)

    return graph, set_inputs
