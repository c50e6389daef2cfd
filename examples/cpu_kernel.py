"""A kernel for the CPU, without a graph: y = scale x / (1 + |x|), compared with NumPy, timed, and its machine code."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, device_function, kernel
from ggplug_cpu.parameters import Parameters, Place, Ref, destination, integer, real, source
from ggplug_cpu.parts.nest import thread_range
from ggplug_cpu.tape import Entry, Tape
from ggplug_cpu.team import Team


class Softsign(Parameters):
    """``n`` numbers."""

    y = destination()
    x = source()
    n = integer()
    scale = real()


@device_function
def softsigned(x: simd.Vector, scale: float) -> simd.Vector:
    return simd.div(simd.mul(x, scale), simd.add(simd.absolute(x), 1.0))


@kernel
def softsign() -> Body:
    """Each thread computes a range of vectors; the last vector may be shorter."""
    step = simd.width("f32")
    load, load_first, store_first = simd.load(simd.vec("f32")), simd.load_first(simd.vec("f32")), simd.store_first

    def body(ctx: int, p: Softsign) -> None:
        n, y, x, scale = p.n, p.y.address, p.x.address, p.scale
        first, end = thread_range(ctx, -(-n // step))
        for i in range(step * first, min(step * end, n - n % step), step):
            simd.store(y + 4 * i, softsigned(load(x + 4 * i), scale))
        if step * end > n:
            i = n - n % step
            store_first(y + 4 * i, softsigned(load_first(x + 4 * i, n - i), scale), n - i)

    return body


def main() -> None:
    x = np.random.default_rng(0).standard_normal(1_000_003).astype(np.float32)
    y = np.empty_like(x)
    words = Softsign.words(y=Place(Ref(0)), x=Place(Ref(1)), n=x.size, scale=3.0)
    with Team(n_threads=1) as team:
        tape = Tape([Entry(softsign(), words)], n_slots=2).bind([y.ctypes.data, x.ctypes.data])
        team.run(tape)
        expected = 3 * x / (1 + np.abs(x))
        print(f"largest error: {np.abs(y - expected).max():.1e}")
        for name, function in (("kernel", lambda: team.run(tape)), ("NumPy", lambda: 3 * x / (1 + np.abs(x)))):
            print(f"{name}: {1e3 * min(seconds(function) for _ in range(20)):.2f} ms")
    divisions = [line.split()[0] for line in softsign().assembly().splitlines() if "div" in line]
    print("divisions in the machine code:", ", ".join(divisions))


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
