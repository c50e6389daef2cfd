"""Rows of grids, with signs and scales apart."""

from __future__ import annotations

from ggplug import types
from ggplug_simt.c.types.blocks import BlockType

FAMILY = (
    BlockType(types.IQ2_XXS, is_written=False),
    BlockType(types.IQ2_XS, group=16, is_written=False),
    BlockType(types.IQ2_S, group=16, is_written=False),
    BlockType(types.IQ3_XXS, is_written=False),
    BlockType(types.IQ3_S, is_written=False),
    BlockType(types.IQ1_S, is_written=False),
    BlockType(types.IQ1_M, group=16, is_written=False),
)
