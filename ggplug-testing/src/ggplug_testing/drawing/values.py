"""Kinds of values for tensors: ordinary numbers, ties, denormals, infinities, NaNs, any bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug import quants
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, F32, F64, Type
from ggplug.values.arrays import encode

Array = npt.NDArray[Any]
Random = np.random.Generator
Shape = tuple[int, ...]

_LARGEST = {F32: 3.4e38, F16: 65504.0, BF16: 3.3e38, F64: 1.7e308}
_SMALLEST = {F32: 1e-45, F16: 6e-8, BF16: 9.2e-41, F64: 5e-324}


Make = Callable[[Random, Shape, Type], Array]
"""Makes numbers for a type."""


def _normal(factor: float) -> Make:
    return lambda random, shape, type: random.standard_normal(shape) * factor


def _sprinkled(*specials: float) -> Make:
    def make(random: Random, shape: Shape, type: Type) -> Array:
        values = random.standard_normal(shape)
        chosen = random.uniform(size=shape) < random.choice((0.02, 0.3, 1.0))
        if values.size:
            chosen.reshape(-1)[random.integers(values.size)] = True
        values[chosen] = random.choice(specials, int(chosen.sum()))
        return values

    return make


def _special(random: Random, shape: Shape, type: Type) -> Array:
    largest, smallest = _LARGEST.get(type, 3e38), _SMALLEST.get(type, 1e-45)
    pool = (0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 88.0, -89.0, 104.0, 3e4, smallest, -smallest, largest, -largest)
    return _sprinkled(*pool, np.nan, np.inf, -np.inf)(random, shape, type)


KINDS: dict[str, Make] = {
    "normal": _normal(1.0),
    "positive": lambda random, shape, type: random.uniform(0.5, 2, shape),
    "integers": lambda random, shape, type: random.integers(-4, 5, shape).astype(np.float64),
    "ties": lambda random, shape, type: random.integers(-8, 9, shape) / 2,
    "constant": lambda random, shape, type: np.full(shape, random.choice((0.0, 1.0, -2.5, 0.1))),
    "hundreds": _normal(100.0),
    "large": _normal(1e4),
    "small": _normal(1e-4),
    "huge": _normal(1e15),
    "tiny": _normal(1e-15),
    "denormal": lambda random, shape, type: random.integers(-40, 41, shape) * _SMALLEST.get(type, 1e-45),
    "NaN": _sprinkled(np.nan),
    "infinite": _sprinkled(np.inf, -np.inf),
    "special": _special,
}
"""Kinds of values, the simplest first.  There is also ``bits``: any bits."""

BITS = "bits"

ENCODED = 1 << 16
"""As many elements are encoded in blocks, which takes long where a type searches for its blocks; they are repeated."""

ANYTHING = (*KINDS, BITS)
ADDED_UP = tuple(name for name in KINDS if name != "denormal")
"""Kinds of values for sums: all but those that a device may treat as zero."""
FINITE = tuple(name for name in KINDS if name not in ("NaN", "infinite", "special"))
MODERATE = ("normal", "integers", "ties", "constant", "hundreds", "small")
"""Kinds of values whose squares and sums do not overflow float16."""


def raw(kind: str, random: Random, tensor: Tensor, values: Array | None = None) -> npt.NDArray[np.uint8]:
    """Bytes of a contiguous tensor filled with values of a kind, or with ``values``."""
    type = tensor.type
    shape = tensor.ne[::-1]
    if values is not None:
        return encode(values.reshape(shape), type)
    if kind == BITS or not quants.can_quantize(type):
        return random.integers(0, 256, tensor.nbytes, np.uint8)
    if type.dtype.kind == "i" and not type.is_quantized:
        return encode(_whole(kind, random, shape, type), type)
    if type.is_quantized and tensor.size > ENCODED:
        shape = (1, 1, 1, ENCODED)
    made = KINDS[kind](random, shape, type)
    with np.errstate(over="ignore"):
        return np.resize(encode(made if type is F64 else made.astype(np.float32), type), tensor.nbytes)


def _whole(kind: str, random: Random, shape: Shape, type: Type) -> Array:
    limits = np.iinfo(type.dtype)
    if kind in ("huge", "special", "infinite"):
        return random.choice(np.array([limits.min, limits.max, 0, -1, 1], type.dtype), shape)
    return random.integers(-100, 101, shape).astype(type.dtype)
