"""The layouts of drawn sources, and which of them ops support."""

from __future__ import annotations

from ggplug.sketches.layouts import LAYS, Lay
from ggplug.types import Type
from ggplug_testing.drawing.choices import Choices

Ne = tuple[int, int, int, int]

LAYOUTS = tuple(name for name in LAYS if name not in ("elements apart", "ones outermost"))
"""Layouts that are possible for any extents, the simplest first."""

ANY = tuple(name for name in LAYOUTS if name != "misaligned")
"""The layouts for an op that takes any strides."""

ROWS = tuple(name for name in ANY if name != "transposed")
"""Layouts whose rows are contiguous."""

CONTIGUOUS = ("packed", "offset")

ONCE = tuple(name for name in ANY if name not in ("zero stride", "overlapping"))
"""Layouts in which no two elements share bytes, so that writing them has only one possible result."""

ONCE_ROWS = tuple(name for name in ONCE if name != "transposed")
"""Layouts with contiguous rows in which no two elements share bytes."""


def lay(choices: Choices, source: str, layout: str, type: Type, ne: Ne) -> Lay:
    """A root and view steps for a source of these extents."""
    return LAYS[layout](type, ne, 4, lambda what, options: choices.pick(f"{source}.{what}", options))
