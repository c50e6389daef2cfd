"""Values computed from positions: ranges, embeddings of time steps."""

from __future__ import annotations

from ggplug_cpu import simd
from ggplug_cpu.compiler import Body, kernel
from ggplug_cpu.context import scratch
from ggplug_cpu.ops.rotary.kernels import cosines_and_sines
from ggplug_cpu.parameters import Parameters, destination, integer, real, reals, source
from ggplug_cpu.parts.nest import thread_range
from ggplug_cpu.simd.values import F32, F64, Value, constants, emitted, first_lanes, loop, masked_store

#: Elements of a range that a thread computes at a time.
PIECE = 4096
#: Rows of angles, sines and cosines are padded to a multiple of the widest vector.
_PADDING = 16


class Arange(Parameters):
    """``count`` contiguous f32."""

    y = destination()
    start = real()
    step = real()
    count = integer()


class TimestepEmbedding(Parameters):
    """Contiguous rows of ``dim`` f32, one for each of ``count`` time steps."""

    y = destination()
    x = source("nb0")
    count = integer()
    dim = integer()
    half = integer()
    frequencies = reals()


def scratch_bytes(half: int) -> int:
    """Bytes of scratch memory of :func:`timestep_embedding`."""
    return 16 * (half + _PADDING)


@emitted("void(i64, i64, i64, f64, f64)")
def _progression(y: Value, first: Value, n: Value, start: Value, step: Value) -> None:
    """Stores elements ``first`` to first + n - 1 of a range at ``y``."""
    width = simd.width("f32")
    half = width // 2
    steps, starts = step.splat(half), start.splat(half)

    def vector(i: Value, _: list[Value]) -> list[Value]:
        done = i * width
        numbers = []
        for part in (0, half):
            at = (first + done).convert(F64).splat(half)
            numbers.append((at + constants(y.b, F64, range(part, part + half))).fma(steps, starts).convert(F32))
        masked_store(y + done * 4, numbers[0].concat(numbers[1]), first_lanes(width, n - done))
        return []

    loop((n + (width - 1)).lshr(width.bit_length() - 1), [], vector)


@kernel
def arange() -> Body:
    """start, start + step, ..."""

    def body(ctx: int, params: Arange) -> None:
        count, start, step = params.count, params.start, params.step
        first, end = thread_range(ctx, (count + PIECE - 1) // PIECE)
        for piece in range(first, end):
            at = piece * PIECE
            _progression(params.y.address + 4 * at, at, min(PIECE, count - at), start, step)

    return body


@kernel
def timestep_embedding() -> Body:
    """Cosines of a time step times frequencies, then the sines; then a zero if ``dim`` is odd."""
    step = simd.width("f32")
    convert = cosines_and_sines(step)

    def body(ctx: int, params: TimestepEmbedding) -> None:
        dim, half = params.dim, params.half
        angles = scratch(ctx)
        cosines = angles + 8 * (half + _PADDING)
        sines = cosines + 4 * (half + _PADDING)
        first, end = thread_range(ctx, params.count)
        for row in range(first, end):
            time = simd.load_f32(params.x.address + row * params.x.nb0)
            for i in range(half):
                simd.store_f64(angles + 8 * i, time * params.frequencies[i])
            for i in range(0, half, step):
                convert(angles + 8 * i, cosines + 4 * i, sines + 4 * i, 1.0)
            y = params.y.address + row * dim * 4
            simd.copy_bytes(y, cosines, 4 * half)
            simd.copy_bytes(y + 4 * half, sines, 4 * half)
            simd.fill_bytes(y + 8 * half, 0, 4 * (dim - 2 * half))

    return body
