"""Super-blocks of 256 numbers -1, 0, 1 with one scale."""

from __future__ import annotations

from ggplug import types
from ggplug_simt.c.types.blocks import BlockType

FAMILY = (
    BlockType(types.TQ1_0),
    BlockType(types.TQ2_0),
)
