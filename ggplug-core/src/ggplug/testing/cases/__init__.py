"""Cases for the conformance suite, derived from the ops' declarations.

A family of ops has a module with generators, each marked with :func:`generates`; an op without one gets the cases
that its shape rule accepts.  Everything random is seeded by the case's name, so a case is the same wherever and
whenever it runs.
"""

from __future__ import annotations

from ggplug.ops.base import Op
from ggplug.ops.unary import Unary
from ggplug.testing.cases import copies, elementwise, matrix, reductions, rotary, rows, views
from ggplug.testing.cases.case import GENERATORS, LAYOUTS, Case, Layout, Leafs, generates, labelled, node
from ggplug.testing.cases.derived import derived_cases
from ggplug.testing.cases.graphs import graph_cases

FAMILIES = (elementwise, rows, matrix, reductions, copies, rotary, views)
"""The modules whose generators cover the ops of core."""


def cases_of(op: type[Op]) -> list[Case]:
    """All cases of an op, in a fixed order; empty if none can be made."""
    generators = GENERATORS.get(op.name)
    if generators is not None:
        return labelled(case for generator in generators for case in generator(op))
    if issubclass(op, Unary):
        return labelled(elementwise.unary_cases(op))
    return labelled(derived_cases(op))


__all__ = [
    "FAMILIES",
    "GENERATORS",
    "LAYOUTS",
    "Case",
    "Layout",
    "Leafs",
    "cases_of",
    "generates",
    "graph_cases",
    "labelled",
    "node",
]
