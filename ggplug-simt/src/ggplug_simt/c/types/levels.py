"""Positions in a table of sixteen levels."""

from __future__ import annotations

from ggplug import types
from ggplug_simt.c.types.blocks import BlockType

FAMILY = (
    BlockType(types.IQ4_NL),
    BlockType(types.IQ4_XS),
)
