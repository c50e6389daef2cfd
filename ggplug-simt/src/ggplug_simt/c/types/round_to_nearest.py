"""Blocks of 32 numbers, rounded to the nearest, with one scale, and perhaps a minimum."""

from __future__ import annotations

from ggplug import types
from ggplug_simt.c.types.blocks import BlockType

FAMILY = (
    BlockType(types.Q8_0),
    BlockType(types.Q8_1),
    BlockType(types.Q4_0),
    BlockType(types.Q4_1, has_minimum=True),
    BlockType(types.Q5_0),
    BlockType(types.Q5_1, has_minimum=True),
)
