"""Cases for the conformance suite, made from the ops' descriptions (:mod:`ggplug_testing.ops`).

An op without one gets the cases that its shape rule accepts.  Ops with sketches have the cases that are made of these
for all ops alike (:mod:`.sketched`), and ops may have cases of special values (:mod:`.special`).  Everything random is
seeded by the case's name, so a case is the same wherever and whenever it runs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

import ggplug_testing.ops  # noqa: F401  (describes the ops of core)
from ggplug.ops.base import Op
from ggplug.types import Q8_0
from ggplug_testing.cases.case import LAYOUTS, QUANTIZED, Case, Layout, Leafs, labelled, node
from ggplug_testing.cases.derived import derived_cases
from ggplug_testing.cases.graphs import graph_cases
from ggplug_testing.cases.making import Make
from ggplug_testing.cases.sketched import empty_cases, large_cases, ones_cases, source_cases, wild_cases
from ggplug_testing.description import GENERATORS, description_of, generates
from ggplug_testing.judging.comparison import Agreement


def cases_of(op: type[Op], *, thorough: bool = False) -> list[Case]:
    """The cases of an op, in a fixed order; empty if none can be made.

    Many cases differ only in a block type.  Unless ``thorough``, each kind of case is made with some of the block
    types, and the next kind with others: each type is in some kinds of case, and each kind has some types.  Cases with
    ``every_type`` are made with all types.
    """
    others = (source_cases(op), _special_cases(op), wild_cases(op), ones_cases(op), large_cases(op), empty_cases(op))
    cases = labelled(itertools.chain(_own_cases(op), *others))
    return cases if thorough else _rotating(cases)


_PERIOD = 6
_BLOCK_TYPE = re.compile(rf"\b({'|'.join(type.name for type in QUANTIZED)})\b")


def _rotating(cases: list[Case]) -> list[Case]:
    """Of the cases of the same kind those of every sixth block type, and of the type that activations have."""
    kinds: dict[str, int] = {}
    chosen = []
    for case in cases:
        found = _BLOCK_TYPE.search(case.label)
        if found is not None and found[0] != Q8_0.name and not case.every_type:
            number = kinds.setdefault(_BLOCK_TYPE.sub("", case.label), len(kinds))
            if (number + _POSITIONS[found[0]]) % _PERIOD:
                continue
        chosen.append(case)
    return chosen


_POSITIONS = {type.name: position for position, type in enumerate(QUANTIZED)}


def _own_cases(op: type[Op]) -> Iterable[Case]:
    generators = GENERATORS.get(op.name, description_of(op).cases)
    return (case for generator in generators for case in generator(op)) if generators else derived_cases(op)


def _special_cases(op: type[Op]) -> Iterator[Case]:
    described = description_of(op)

    def case(label: str, make: Make, agreement: Agreement = "signs" if described.signs else "values") -> Case:
        return Case(op.name, f"special: {label}", make, agreement)

    return (each for generator in described.special for each in generator(op, case))


__all__ = [
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
