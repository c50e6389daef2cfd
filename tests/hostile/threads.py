"""Two threads that use what they may share, or what they should not: a child process of ``test_threads.py``.

    python threads.py DEVICE FOLDER SEED ROUNDS PAIR [PAIR ...]     # a pair is two names of ACTORS, as in compute+free

Every value in a weight is the same number, and so is every value of a right result: a result that is torn, half
cleared, or computed over freed memory shows.  An actor may get typed errors, never anything else.  For each pair a line
of JSON is printed when it begins and one when it has ended, so that a crash and a hang have a name.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ggplug as gg
from ggplug import gguf, ops
from ggplug.backend import Buffer, Device
from ggplug.errors import GGPlugError
from ggplug.graph import Graph
from ggplug.host import HOST
from ggplug.memory import allocate_graph
from ggplug.scheduler import Scheduler
from ggplug.tensor import Context, Tensor
from ggplug_models.networks.model import Model

WIDTH, ROWS = 256, 1024
"""A weight has a megabyte: a computation takes milliseconds, and memory that is freed leaves the process."""
VALUES = (0.0, 2.0, 3.0)
"""What a weight may hold: cleared, or one of two numbers."""
MORE = 50
"""How many times its rounds an actor does at most while the other one is still at it."""
SOON = 0.02
"""Seconds within which another actor may use what this one is going to free."""
HANG = 300
"""Seconds after which a pair hangs."""

PLUGIN = """
from ggplug import host, hookspecs
from ggplug.backend import API_VERSION, Device, Registration
from ggplug.ops import Add, Mul
from ggplug.types import DeviceKind

def compute(op, dst, a, b):
    dst.array()[...] = a.array() + b.array() if isinstance(op, Add) else a.array() * b.array()

class Walker(Device):
    name, description, kind = "WALKER", "walks over host memory", DeviceKind.ACCEL
    kernels = {Add: compute, Mul: compute}
    def __init__(self): self._type = host.HostBufferType("WALKER", self)
    def memory(self): return host.memory()
    @property
    def buffer_type(self): return self._type
    def supports_buffer_type(self, kind): return kind.is_host

class Walkers(Registration):
    name, api_version = "WALKER", API_VERSION
    def __init__(self): self._devices = [Walker()]
    def devices(self): return self._devices

@hookspecs.hookimpl
def ggplug_backend_registration(): return Walkers()
"""


def formula(x: Tensor, w: Tensor) -> Tensor:
    """Reads the weight again and again: where it changes in the middle no value of VALUES explains the result."""
    y = ops.add(x, w)
    for _ in range(6):
        y = ops.mul(ops.add(y, w), w)
        y = ops.add(y, x)
    return y


def answers(x: float) -> set[float]:
    """The right results for an input that is ``x`` everywhere."""
    found = set()
    for w in map(np.float32, VALUES):
        y = np.float32(x) + w
        for _ in range(6):
            y = (y + w) * w + np.float32(x)
        found.add(float(y))
    return found


class WrongNumberError(AssertionError):
    """A result that nothing explains."""


def check(got: np.ndarray, allowed: set[float], what: str) -> None:
    low, high = float(got.min()), float(got.max())
    if low != high or low not in allowed:
        raise WrongNumberError(f"{what}: got {low} to {high}, allowed are {sorted(allowed)}")


class Adder(Model):
    """A model of one weight: a row of equal numbers in, a row of equal numbers out."""

    architecture = "adder"

    def __init__(self, weights: Context, devices: list[Device]) -> None:
        super().__init__(weights, {"general.architecture": "adder"}, devices)
        self.x = gg.new_tensor("f32", (WIDTH,), "x").set_input()
        self.y = formula(self.x, self.w("row", WIDTH)).set_output()
        self.graph = Graph(self.y)
        self.used = threading.Event()

    def embed(self, value: float) -> np.ndarray:
        with self.locked():
            self.scheduler.allocate(self.graph)
            self.x.set(np.full(WIDTH, value, np.float32))
            self.scheduler.compute(self.graph)
            return self.y.numpy()


class Weights:
    """A weight in the device's memory and one in plain host memory."""

    def __init__(self, device: Device) -> None:
        self.context = Context("weights")
        self.w = self.context.new_tensor("f32", (WIDTH, ROWS), "w")
        gg.allocate(self.context, device)
        self.w.set(np.full((ROWS, WIDTH), 2, np.float32))
        self.h = gg.tensor(np.full((ROWS, WIDTH), 2, np.float32))
        self.used = threading.Event()

    @property
    def buffers(self) -> list[Buffer]:
        return [*self.context.buffers, *([self.h.buffer] if self.h.buffer is not None else [])]

    def free(self) -> None:
        self.context.free()
        if self.h.buffer is not None:
            self.h.buffer.free()


class World:
    """What the two threads of a pair share."""

    def __init__(self, device: Device, folder: Path) -> None:
        self.device = device
        self.folder = folder
        cpu = gg.device("CPU")
        self.devices = [device] if device is cpu else [device, cpu]
        self.weights = Weights(device)
        self.said: dict[str, str] = {}
        """The first message of each kind of error."""
        self.file = folder / "adder.gguf"
        self.plugin = folder / "walker.py"
        self.model = self.load()
        self.shared = Scheduler(self.devices)
        self.shared_x = gg.tensor(np.ones((ROWS, WIDTH), np.float32))
        self.shared_y = formula(self.shared_x, self.weights.w).set_output()
        self.shared_graph = Graph(self.shared_y)

    def load(self) -> Adder:
        context, _ = gguf.load(self.file, self.device)
        return Adder(context, self.devices)


def prepare(folder: Path) -> None:
    """The files that actors load."""
    with gguf.GGUFWriter(folder / "adder.gguf", "adder") as writer:
        writer.add_tensor("row", np.full(WIDTH, 2, np.float32))
    (folder / "walker.py").write_text(PLUGIN, encoding="utf-8")


# -- actors ----------------------------------------------------------------------------------------


Once = Callable[[], None]
"""What an actor does again and again."""

ACTORS: dict[str, Callable[[World], Once]] = {}
"""The actors by name, each made in its own thread."""


def actor(name: str) -> Callable[[Callable[[World], Once]], Callable[[World], Once]]:
    """Lists what makes an actor that remembers something from one time to the next."""
    return lambda make: ACTORS.setdefault(name, make)


def step(name: str) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Lists an actor that remembers nothing."""

    def listed(once: Callable[[World], None]) -> Callable[[World], None]:
        ACTORS[name] = lambda world: partial(once, world)
        return once

    return listed


def compute(world: World, *, host: bool) -> Once:
    scheduler = Scheduler(world.devices)
    value = float(1 + (threading.get_ident() >> 12) % 3)
    x = gg.tensor(np.full((ROWS, WIDTH), value, np.float32))
    allowed = answers(value)
    kept: list[Any] = [None, None, None]

    def once() -> None:
        weights = world.weights
        if kept[0] is not weights:
            y = formula(x, weights.h if host else weights.w).set_output()
            kept[:] = weights, y, Graph(y)
        scheduler.compute(kept[2])
        check(kept[1].numpy(), allowed, "a computation")
        weights.used.set()

    return once


ACTORS["compute"] = partial(compute, host=False)
ACTORS["compute-host"] = partial(compute, host=True)


@actor("plan")
def plan(world: World) -> Once:
    stream = world.device.init()
    allowed = answers(1)

    def once() -> None:
        weights = world.weights
        with Context("own") as own:
            x = own.new_tensor("f32", (WIDTH, ROWS))
            gg.allocate(own, world.device)
            x.set(np.ones((ROWS, WIDTH), np.float32))
            y = formula(x, weights.w).set_output()
            graph = Graph(y)
            allocation = allocate_graph(graph, world.device.buffer_type)
            if allocation.unplaced:
                return  # the weight was freed before: it is an input now, which nobody sets
            for _ in range(3):
                stream.compute(graph, allocation)
                check(y.numpy(), allowed, "a stream's computation")
            weights.used.set()

    return once


@actor("immediate")
def immediate(world: World) -> Once:
    allowed = answers(1)
    x = gg.tensor(np.ones((ROWS, WIDTH), np.float32))

    def once() -> None:
        weights = world.weights
        y = gg.compute(formula(x, weights.w), backends=world.devices)
        assert isinstance(y, Tensor)
        check(y.numpy(), allowed, "an immediate computation")
        weights.used.set()

    return once


@actor("shared")
def shared(world: World) -> Once:
    allowed = answers(1)

    def once() -> None:
        world.shared.compute(world.shared_graph)
        check(world.shared_y.numpy(), allowed, "a computation on a shared scheduler")

    return once


@actor("observed")
def observed(world: World) -> Once:
    inner = compute(world, host=False)
    scheduler = Scheduler(world.devices)
    x = gg.tensor(np.ones((ROWS, WIDTH), np.float32))

    def once() -> None:
        weights = world.weights
        y = formula(x, weights.w).set_output()
        graph = Graph(y)

        def callback(tensor: Tensor, ask: bool) -> bool:
            if ask:
                return tensor is y
            check(tensor.numpy(), answers(1), "an observed node")
            inner()
            return True

        scheduler.set_eval_callback(callback)
        # The weight may be changed between two observed pieces; here it is read in one.
        scheduler.compute(graph)
        weights.used.set()

    return once


@actor("embed")
def embed(world: World) -> Once:
    value = float(1 + (threading.get_ident() >> 12) % 5)
    allowed = {sorted(answers(value))[VALUES.index(2.0)]}

    def once() -> None:
        model = world.model
        check(model.embed(value), allowed, "an embedding")
        model.used.set()

    return once


@step("free")
def free(world: World) -> None:
    world.weights.used.wait(SOON)
    world.weights.free()  # under whoever computes with it just now
    world.weights = Weights(world.device)


@step("drop")
def drop(world: World) -> None:
    world.weights.used.wait(SOON)
    for tensor in (world.weights.w, world.weights.h):
        tensor.place(None)
    world.weights = Weights(world.device)
    gc.collect()


@step("clear")
def clear(world: World) -> None:
    for buffer in world.weights.buffers:
        buffer.clear()
    for buffer in world.weights.buffers:
        row = np.full(WIDTH * ROWS, 3, np.float32).view(np.uint8)
        buffer.set_2d(0, row, WIDTH * 4, ROWS, WIDTH * 4)


@actor("set")
def store(world: World) -> Once:
    rounds = iter(range(1 << 30))

    def once() -> None:
        value = VALUES[next(rounds) % 3]
        world.weights.w.set(np.full((ROWS, WIDTH), value, np.float32))
        world.weights.h.set(np.full((ROWS, WIDTH), value, np.float32))

    return once


@step("get")
def fetch(world: World) -> None:
    check(world.weights.w.numpy(), set(VALUES), "a weight")
    check(world.weights.h.numpy(), set(VALUES), "a weight in host memory")
    out = np.empty(WIDTH * ROWS * 4, np.uint8)
    for buffer in world.weights.buffers:
        buffer.get_2d(0, out, WIDTH * 4, ROWS, WIDTH * 4)
        check(out.view(np.float32), set(VALUES), "a weight by rows")


@step("copy")
def copy(world: World) -> None:
    with HOST.wrap(np.full(WIDTH * ROWS, 3, np.float32)) as staging:
        size = WIDTH * ROWS * 4
        for buffer in world.weights.buffers:
            staging.copy_from(buffer, 0, 0, size)
            got = np.empty(size, np.uint8)
            staging.get(0, got)
            check(got.view(np.float32), set(VALUES), "a copied weight")
            buffer.copy_from(staging, 0, 0, size)


@step("stream")
def stream(world: World) -> None:
    """Asynchronous transfers in both directions, on a stream that is freed each time."""
    data, got = np.full(WIDTH * ROWS, 2, np.float32), np.empty(WIDTH * ROWS * 4, np.uint8)
    with world.device.init() as own:
        buffer = world.weights.w.buffer
        if buffer is not None:
            own.set_async(buffer, 0, data)
            own.synchronize()
            own.get_async(buffer, 0, got)
            own.synchronize()
            check(got.view(np.float32), set(VALUES), "a weight by a stream")


@step("share")
def share(world: World) -> None:
    array = gg.asarray(world.weights.h)
    array.sum()
    del array
    gg.asarray(world.weights.w)  # not in host memory, on devices with memory of their own


@actor("abort")
def abort(world: World) -> Once:
    team = gg.device("CPU").team  # type: ignore[attr-defined]
    rounds = iter(range(1 << 30))

    def once() -> None:
        team.abort()
        if next(rounds) % 4 == 0:
            answer = iter([False, True])
            team.set_abort_callback(lambda: next(answer, False))
            team.set_abort_callback(None)

    return once


@actor("threads")
def threads(world: World) -> Once:
    from ggplug_cpu.team import Team

    device: Any = gg.device("CPU")
    rounds = iter(range(1 << 30))

    def once() -> None:
        number = next(rounds)
        if number % 5 == 4:
            device.set_team(Team(1 + number % 2))
        else:
            device.init().set_n_threads(1 + number % 2)
        device.team.pause()
        device.team.resume()

    return once


@step("load")
def load(world: World) -> None:
    with world.load() as model:
        check(model.embed(1.0), answers(1), "a model that was just loaded")
    context, _ = gguf.load(world.file)
    check(context["row"].numpy(), {2.0}, "a weight in a map")
    context.free()


@step("unload-model")
def unload_model(world: World) -> None:
    world.model.used.wait(SOON)
    world.model.free()
    world.model = world.load()


@actor("plugin")
def plugin(world: World) -> Once:
    x = gg.tensor(np.ones((ROWS, WIDTH), np.float32))

    def once() -> None:
        walker = gg.load(world.plugin).devices()[0]
        with Scheduler([walker]) as scheduler:
            y = formula(x, world.weights.h).set_output()
            graph = Graph(y)
            gg.unload("WALKER")
            scheduler.compute(graph)
            check(y.numpy(), answers(1), "a device of a plugin that was unloaded")

    return once


@actor("unload")
def unload(world: World) -> Once:
    prefix = world.device.registration.name  # type: ignore[union-attr]

    def once() -> None:
        gg.unload(prefix)
        gg.load(prefix)
        gg.device(world.device.name).props()

    return once


def act(number: int, name: str, world: World, rounds: int, begin: threading.Barrier, pair: list[Counter[str]]) -> None:
    """One thread of a pair: goes on until both have done their rounds, but not for ever."""
    outcomes = pair[number]
    try:
        once = ACTORS[name](world)
        begin.wait(HANG)
        for _ in range(MORE * rounds):
            try:
                once()
                outcomes["right"] += 1
            except GGPlugError as error:
                outcomes[type(error).__name__] += 1
                world.said.setdefault(type(error).__name__, str(error))
                time.sleep(0.0005)  # the other one is about to make what is missing
            if all(each["right"] >= rounds or each.total() >= MORE * rounds for each in pair):
                break
    except BaseException as error:
        begin.abort()
        if not isinstance(error, threading.BrokenBarrierError):
            outcomes[f"WRONG {type(error).__name__}: {error}"] += 1
            faulthandler.dump_traceback()
            raise


def run(pair: str, device: Device, folder: Path, rounds: int) -> None:
    print(json.dumps({"begin": pair}), flush=True)
    faulthandler.dump_traceback_later(HANG, exit=True)
    world = World(device, folder)
    begin = threading.Barrier(2)
    names = pair.split("+")
    outcomes: list[Counter[str]] = [Counter() for _ in names]
    actors = [
        threading.Thread(target=act, args=(number, name, world, rounds, begin, outcomes), name=name)
        for number, name in enumerate(names)
    ]
    for actor in actors:
        actor.start()
    for actor in actors:
        actor.join()
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"end": pair, "outcomes": outcomes, "said": world.said}), flush=True)


def main() -> None:
    name, folder, seed, rounds, *pairs = sys.argv[1:]
    random.seed(int(seed))
    random.shuffle(pairs)
    sys.setswitchinterval(float(os.environ.get("GGPLUG_SWITCH_INTERVAL", "1e-5")))
    faulthandler.enable()
    place = Path(folder)
    prepare(place)
    device = gg.device(name)
    for pair in pairs:
        run(pair, device, place, int(rounds))


if __name__ == "__main__":
    main()
