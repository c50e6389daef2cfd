"""A fuzzer of placements: random graphs, devices, times, pins, policies, memories and failures, by a seed.

A computation is right to the last bit, or raises a typed error.  Afterwards the same scheduler computes another graph,
and when everything is freed, no device has memory in use.  ``python -m tests.hostile.placements SEED`` repeats a case.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from cost_model.fixed_rates import random_costs
from random_graphs import Case, compute_apart, random_case

import ggplug as gg
from ggplug.backend import Backend, Device
from ggplug.costs.model import CostModel
from ggplug.errors import GGPlugError
from ggplug.host import HOST
from ggplug.scheduler.assign import Policy
from ggplug.scheduler.timing import RUNS
from ggplug_testing import FakeDevice, ReferenceDevice

from .seeds import Fault, main

OPS = ("add", "mul", "mul_mat", "silu", "soft_max", "rms_norm", "cont", "cpy", "set_rows", "concat", "get_rows", "neg")
FAILING = ("alloc", "compute", "kernel", "receive", "get", "set", "copy")
COMPUTATIONS = (2, 2, 3, RUNS + 3)
"""The last number includes all computations that the cost model times."""


def trial(seed: int) -> str:
    """Runs the case of a seed; returns its outcome: ``right``, or the name of the error.  Raises :class:`Fault`."""
    rng = random.Random(seed)
    devices = _devices(rng)
    fakes = [device for device in devices if isinstance(device, FakeDevice)]
    large = [device.buffer_type for device in fakes if device.total_memory > 1 << 20]
    case = random_case(seed, [HOST, *large], size=rng.choice((4, 12, 25)))
    try:
        outcome = _scheduled(rng, devices, fakes, case)
    finally:
        for tensor in case.persistent:
            assert tensor.buffer is not None
            tensor.buffer.free()
    for device in fakes:
        if device.used:
            raise Fault(f"{device.name} has {device.used} bytes in use after everything was freed")
    return outcome


def _devices(rng: random.Random) -> list[Device]:
    with_host = rng.random() < 0.9
    small = (1 << 9, 1 << 12, 1 << 14) if with_host else ()

    def fake(name: str) -> FakeDevice:
        declined = rng.sample(OPS, rng.choice((0, 0, 2, 6)))
        return FakeDevice(
            name,
            memory=rng.choice((1 << 32, 1 << 32, *small)),
            execution=rng.choice(("now", "late")),
            declines=lambda node: "not built in" if node.op is not None and node.op.name in declined else "",
            offloads=lambda node: node.ne[1] > 2,
        )

    found: list[Device] = [fake(f"fake{number}") for number in range(rng.choice((1, 1, 2)))]
    if with_host:
        found.append(ReferenceDevice("cpu"))
    return found


def _policy(rng: random.Random, devices: Sequence[Device]) -> Policy | CostModel | str | None:
    def wild(node: gg.Tensor, streams: Sequence[Backend]) -> Backend | None:
        return rng_of.choice([*streams, None])

    rng_of = random.Random(rng.random())
    return rng.choice((None, "ggml", wild, *3 * (random_costs(rng, devices, OPS),)))


def _scheduled(rng: random.Random, devices: list[Device], fakes: Sequence[FakeDevice], case: Case) -> str:
    how = {"op_offload": rng.random() < 0.7, "n_copies": rng.choice((1, 1, 2)), "reuse": rng.random() < 0.8}
    with gg.Scheduler(devices, policy=_policy(rng, devices), **how) as scheduler:  # type: ignore[arg-type]
        for _ in range(rng.choice((0, 0, 1, 4))):
            scheduler.pin(rng.choice(case.graph.tensors), rng.choice(scheduler.backends))
        for device in fakes:
            if rng.random() < 0.4:
                device.fail(rng.choice(FAILING), rng.randrange(1, 6))  # type: ignore[arg-type]
        outcome = "right"
        wanted: list[bytes] | None = None
        for _ in range(rng.choice(COMPUTATIONS)):
            try:
                scheduler.explain(case.graph)
                case.restore()
                scheduler.allocate(case.graph)
                case.set_inputs()
                scheduler.compute(case.graph)
                found = case.results()
            except GGPlugError as error:
                outcome = type(error).__name__
                continue
            wanted = wanted or compute_apart(case)
            if found != wanted:
                raise Fault("the results are not those of the references")
        _check_usable(scheduler, fakes)
    return outcome


def _check_usable(scheduler: gg.Scheduler, fakes: Sequence[FakeDevice]) -> None:
    """Computes a small graph, once the pins are removed and the devices do not fail any more."""
    for device in fakes:
        device._failures.clear()
    scheduler.reset()
    x = gg.tensor(np.arange(4, dtype=np.float32))
    y = gg.scale(x, 2.0).set_output()
    scheduler.pin(y, max(scheduler.backends, key=lambda stream: stream.device.memory().total or 0))
    scheduler.compute(gg.Graph(y))
    if y.numpy().tolist() != [0, 2, 4, 6]:
        raise Fault(f"the scheduler computes {y.numpy()} afterwards")


if __name__ == "__main__":
    main(trial)
