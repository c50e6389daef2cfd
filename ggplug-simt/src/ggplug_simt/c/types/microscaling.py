"""Numbers of E2M1, doubled so that they are whole."""

from __future__ import annotations

from ggplug import types
from ggplug_simt.c.types.blocks import BlockType

FAMILY = (
    BlockType(types.MXFP4),
    BlockType(types.NVFP4, group=16),
)
