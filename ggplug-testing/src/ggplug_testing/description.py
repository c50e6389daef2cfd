"""What testers know of each op, in one record: :mod:`ggplug_testing.ops` has those of core, a file for each family.

The cases of the conformance suite, what the fuzzer draws, and the table of precision are made from these.  Other
packages add cases and rules of their ops: by :func:`generates`, and by ``RULES["mine.wavelet"] = Rule(...)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ggplug.ops.base import OPS, Op
from ggplug.tensor import Operation

if TYPE_CHECKING:
    from ggplug.tensor import Tensor
    from ggplug_testing.cases.case import Case
    from ggplug_testing.drawing.draw import Drawer
    from ggplug_testing.precision.rule import Rule

Generator = Callable[[type[Op]], "Iterator[Case]"]
"""Makes cases of an op."""

CaseOf = Callable[..., "Case"]
"""A case of special values by ``(label, make)``, and perhaps by how results have to agree."""

Special = Callable[[type[Op], CaseOf], "Iterator[Case]"]
"""Makes an op's cases of special values."""


class Selects(NamedTuple):
    """How results are compared that are indices along ne0 of a source: by the values that they select there.

    ``ordered``: whether their order in a row counts.  ``first``: whether of equal values it has to be the first.
    """

    source: int = 0
    ordered: bool = True
    first: bool = False


class Description(NamedTuple):
    """What holds of an op, and of all ops that derive from it and say nothing else.

    ``cases``: which shapes, types, layouts and parameters are tried.  ``special``: cases of numbers that are not
    finite, of limits of types, of ids out of range.  ``draw``: what the op promises to take, drawn at random.
    ``signs``: whether zeros have the formula's own signs on every device.  ``selects``: what results are compared by,
    if they are indices.  ``large``: whether extents of more than 65,535 are tried; not where that takes a second.
    """

    cases: Sequence[Generator] = ()
    special: Sequence[Special] = ()
    draw: Drawer | None = None
    signs: bool = False
    selects: Selects | None = None
    large: bool = True


DESCRIPTIONS: dict[type[Operation], Description] = {}
"""The descriptions of ops and of abstract ones, from which others derive."""

GENERATORS: dict[str, list[Generator]] = {}
"""What makes the cases of an op, by its name."""

RULES: dict[str, Rule] = {}
"""How precise the results of an op have to be, by its name."""


def describe(*ops: type[Op], rule: Rule | None = None, **fields: Any) -> None:
    """Describes these ops by fields of :class:`Description`; what they derive from says the rest, but for the rule."""
    for op in ops:
        found = DESCRIPTIONS[op] = description_of(op)._replace(**fields)
        if OPS.get(op.name) is op and found.cases:
            GENERATORS[op.name] = list(found.cases)
        if rule is not None:
            RULES[op.name] = rule


def description_of(op: type[Operation]) -> Description:
    """The description of an op, or of what it derives from; an empty one if there is none."""
    return next((DESCRIPTIONS[each] for each in op.__mro__ if each in DESCRIPTIONS), Description())


def selected_by(node: Tensor) -> Selects | None:
    """What a node's results are compared by, if they are indices."""
    return None if node.op is None else description_of(type(node.op)).selects


def generates(*ops: type[Op] | str) -> Callable[[Generator], Generator]:
    """Marks a function as a generator of cases for these ops; an op may have several.

    An op defined outside core brings its own the same way.
    """

    def mark(generator: Generator) -> Generator:
        for op in ops:
            GENERATORS.setdefault(op if isinstance(op, str) else op.name, []).append(generator)
        return generator

    return mark
