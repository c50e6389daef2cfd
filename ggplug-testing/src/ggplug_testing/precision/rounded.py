"""What is rounded of sources before products: to types of few bits, and to eight bits of a block."""

from __future__ import annotations

import numpy as np

from ggplug.ops.base import Array
from ggplug.types import BF16, F16, Type

COARSE: dict[Type, float] = {F16: 2.0**-10, BF16: 2.0**-8}
"""The largest error of rounding to BF16, and of cutting off what F16 lacks, relative to the number."""


def block_steps(values: Array, length: int) -> Array:
    """For each number the step of eight bits: a 127th of the largest number of its block."""
    blocks = values.reshape(-1, length)
    steps = np.abs(blocks).max(axis=-1, keepdims=True, initial=0) / 127
    return np.broadcast_to(steps, blocks.shape).reshape(values.shape)
