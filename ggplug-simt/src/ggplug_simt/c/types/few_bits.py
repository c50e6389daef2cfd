"""Numbers of one or two bits with one scale."""

from __future__ import annotations

from ggplug import types
from ggplug_simt.c.types.blocks import BlockType

FAMILY = (
    BlockType(types.Q1_0),
    BlockType(types.Q2_0),
)
