"""Super-blocks of 256 numbers in groups whose scales are themselves quantised."""

from __future__ import annotations

from ggplug import types
from ggplug_simt.c.types.blocks import BlockType

FAMILY = (
    BlockType(types.Q2_K, group=16, has_minimum=True),
    BlockType(types.Q4_K, has_minimum=True),
    BlockType(types.Q5_K, has_minimum=True),
    BlockType(types.Q3_K, group=16),
    BlockType(types.Q6_K, group=16),
    BlockType(types.Q8_K),
)
