"""The declaration of a block type for choosers; its C is in the file of its family."""

from __future__ import annotations

from typing import NamedTuple

from ggplug.types import Type


class BlockType(NamedTuple):
    """A block type, as its family declares it.

    ``group``: elements that share a scale, 16 or 32; 32 if more do.  ``has_minimum``: the number 0 stands for
    a minimum of its group, ``minimum_T`` in C.  ``is_written``: ops store the type, by ``store_T``.
    """

    type: Type
    group: int = 32
    has_minimum: bool = False
    is_written: bool = True
