"""One description of each op for whoever tries it: which sources it takes, how they lie, and its parameters.

================  ================================================================================================
:mod:`.layouts`   how a source may lie in memory, and sources without values
:mod:`.trials`    parameters to try an op with, and functions for the ops that call one
:mod:`.sketch`    the sources of an op by names of extents, and nodes made of them
:mod:`.table`     the sketches of each op of core
:mod:`.offers`    what devices say to these nodes, type by type
================  ================================================================================================

Nothing here has values: ``ggplug ops`` shows what devices say, and the conformance suite makes cases of it.
"""

from ggplug.sketches.layouts import LAYOUTS, Layout, Outlines, Sources, laid
from ggplug.sketches.sketch import EXTENTS, Sizes, Sketch, maker, node
from ggplug.sketches.table import first_sketch, sketches
from ggplug.sketches.trials import of_python, parameters_of

__all__ = [
    "EXTENTS",
    "LAYOUTS",
    "Layout",
    "Outlines",
    "Sizes",
    "Sketch",
    "Sources",
    "first_sketch",
    "laid",
    "maker",
    "node",
    "of_python",
    "parameters_of",
    "sketches",
]
