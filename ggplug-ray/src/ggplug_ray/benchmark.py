"""The instrument of ``ggplug bench cluster``: what messages, copies between nodes, and split models cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import ggplug as gg
from ggplug.backend import Device
from ggplug.bench.alternating import speed_relative, timed_alternately
from ggplug.bench.products import use_threads
from ggplug.errors import ParameterError
from ggplug.registry.extras import Options
from ggplug_ray.device import RayDevice

MESSAGES, COPIES, TEXTS = 200, 10, 3
"""Rounds of each measurement."""

MOVED = 64 << 20
"""Bytes that are copied between nodes."""

Row = Mapping[str, Any]


class ClusterInstrument:
    """Lines with their goals, by ratios of what was measured alternately.

    ``--compare-with`` names the device of the other node; by default it is the first one.
    """

    name = "cluster"
    description = "what a message, a copy between nodes, and a model that is split over two of them cost"
    runs_by_name = True

    def run(self, device: Device, options: Options) -> Iterator[Row]:
        first, second = two_nodes(device, options.compare_with)
        yield from messages(first)
        yield from copies(first, second)
        yield from texts(first, second, options)
        yield from prompts(first, second, options)


def two_nodes(device: Device, other: Device | None) -> tuple[RayDevice, RayDevice]:
    """A device and one of another node.  Raises ParameterError."""
    registration = device.registration
    there = registration.devices() if registration is not None and other is None else [other]
    for each in there:
        if isinstance(device, RayDevice) and isinstance(each, RayDevice) and each.node != device.node:
            return device, each
    raise ParameterError("cluster measures devices of two nodes", got=(device, other), remedy="join another node")


def judged(case: str, ratio: str, reached: float, *, most: float | None = None, least: float | None = None) -> Row:
    """A row with a goal: the largest or the least ratio."""
    met = reached <= most if most is not None else reached >= (least or 0.0)
    goal = f"at most {most:g}" if most is not None else f"at least {least:g}"
    return {"case": case, ratio: reached, "goal": goal, "met": "yes" if met else "falls short"}


def messages(device: RayDevice) -> Iterator[Row]:
    """A planned graph of one tiny node, without and with an input, against an empty call."""
    x = gg.new_tensor("f32", (64,), "x").set_input()
    graph = gg.Graph(gg.scale(x, 2.0).set_output())
    link, values = device.link(), np.ones(64, np.float32)
    with device.init() as stream:
        plan = stream.plan(graph)
        allocation = gg.allocate_graph(graph, device.buffer_type)
        plan.rebind(graph, allocation)

        def compute() -> None:
            plan.compute()
            stream.synchronize()

        def with_input() -> None:
            x.set(values)
            compute()

        functions = {"call": lambda: link.call("clock"), "graph": compute, "graph with an input": with_input}
        x.set(values)
        times = timed_alternately(functions, MESSAGES)
        for case in ("graph", "graph with an input"):
            yield {
                **judged(
                    f"planned {case}", "relative_to_an_empty_call", 1 / speed_relative(times, case, "call"), most=1.5
                ),
                "milliseconds": 1e3 * min(times[case]),
            }


class Holder:
    """A process that gives bytes to Ray's object store, or takes them from there."""

    def __init__(self) -> None:
        self._held = np.zeros(MOVED, np.uint8)

    def give(self) -> Any:
        """The bytes."""
        return self._held

    def take(self, data: Any) -> None:
        """Stores bytes of another process."""
        self._held[:] = data


def copies(first: RayDevice, second: RayDevice) -> Iterator[Row]:
    """Bytes from node to node, against what Ray alone takes for as many."""

    def holder(device: RayDevice) -> Any:
        where = NodeAffinitySchedulingStrategy(device.node_id, soft=False)
        return ray.remote(Holder).options(num_cpus=0, scheduling_strategy=where).remote()

    giver, taker = holder(first), holder(second)
    with first.buffer_type.alloc(MOVED) as source, second.buffer_type.alloc(MOVED) as target:
        source.clear(1)
        functions = {
            "ray": lambda: ray.get(taker.take.remote(giver.give.remote())),
            "copy": lambda: target.copy_from(source, 0, 0, MOVED),
        }
        times = timed_alternately(functions, COPIES)
    for each in (giver, taker):
        ray.kill(each)
    row = judged("copy of 64 MiB", "relative_to_ray", speed_relative(times, "copy", "ray"), least=0.7)
    yield {**row, "milliseconds": 1e3 * min(times["copy"])}


def prompts(first: RayDevice, second: RayDevice, options: Options) -> Iterable[Row]:
    """Prompts of a model whose layers are on two nodes: several under way at the same time, or one after the other."""
    try:
        from ggplug_models.benchmarks.pipeline import PIPELINE
    except ModuleNotFoundError:
        return ()
    return PIPELINE.run(first, replace(options, compare_with=second))


def texts(first: RayDevice, second: RayDevice, options: Options) -> Iterable[Row]:
    """Generation with a model whose layers are on two nodes, against the device of the same name here.

    ``--threads`` are those of the device here; nodes have as many as Ray counts processors there.
    """
    try:
        import ggplug_models
        from ggplug_models.benchmarks.generation import random_models
    except ModuleNotFoundError:
        yield {"case": "split model", "note": 'needs models: pip install "ggplug-core[models]"'}
        return
    path = options.files[0] if options.files else next(each for each in random_models() if "Q4_0" in each.name)
    with ExitStack() as stack:
        split = ggplug_models.load(path, [first, second], placement=ggplug_models.LayerSplit())
        models = {"local": ggplug_models.load(path, [first.there]), "split": split}
        for model in models.values():
            stack.enter_context(model)
            use_threads(model.scheduler.backends, options)
        functions = {
            name: lambda model=model: list(model.generate("the", options.generate)) for name, model in models.items()
        }
        times = timed_alternately(functions, TEXTS)
    yield {
        **judged(
            f"generation with {path.name}", "relative_to_local", speed_relative(times, "split", "local"), least=0.8
        ),
        "milliseconds": 1e3 * min(times["split"]) / options.generate,
    }
