"""What testers know of the ops of core: a file for each family, a description for each op.

A description says which shapes, types, layouts and parameters the conformance suite tries, which sources the fuzzer
draws, and how precise results have to be; see :func:`ggplug_testing.description.describe`.
"""

from ggplug_testing.ops import (
    attention,
    copies,
    custom,
    deepseek,
    elements,
    images,
    matrix,
    positions,
    recurrent,
    reductions,
    rotary,
    rows,
    training,
    views,
)

__all__ = [
    "attention",
    "copies",
    "custom",
    "deepseek",
    "elements",
    "images",
    "matrix",
    "positions",
    "recurrent",
    "reductions",
    "rotary",
    "rows",
    "training",
    "views",
]
