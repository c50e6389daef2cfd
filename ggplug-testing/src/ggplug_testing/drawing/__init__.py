"""Sources and parameters of ops, drawn at random for the fuzzer.

================  ================================================================================================
:mod:`.choices`   draws with names, which can be repeated and changed one by one
:mod:`.layouts`   how a source lies in memory
:mod:`.values`    what a source holds
:mod:`.draw`      sources of one case, and whether its op promises to take them
:mod:`.drawers`   which drawer an op has
================  ================================================================================================
"""

from ggplug_testing.drawing.draw import BATCHES, EVERY, FEW, NOT_WHOLE, WHOLE, Draw, Drawer, Drawn, Source, of_one
from ggplug_testing.drawing.layouts import ANY, CONTIGUOUS, ONCE, ONCE_ROWS, ROWS, Ne
from ggplug_testing.drawing.values import ADDED_UP, ANYTHING, MODERATE

__all__ = [
    "ADDED_UP",
    "ANY",
    "ANYTHING",
    "BATCHES",
    "CONTIGUOUS",
    "EVERY",
    "FEW",
    "MODERATE",
    "NOT_WHOLE",
    "ONCE",
    "ONCE_ROWS",
    "ROWS",
    "WHOLE",
    "Draw",
    "Drawer",
    "Drawn",
    "Ne",
    "Source",
    "of_one",
]
