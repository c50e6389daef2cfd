"""The contract that ``ggplug.backend`` states, clause by clause, as checks that any device can be put to."""

from __future__ import annotations

from ggplug_testing.contracts import (
    again,
    binding,
    buffers,
    devices,
    far,
    freeing,
    layouts,
    pending,
    plans,
    racing,
    sharing,
    streams,
    synchronous,
)
from ggplug_testing.contracts.bases import bases_of
from ggplug_testing.contracts.clause import (
    BASES,
    CLAUSES,
    CONTRACT,
    Clause,
    ContractError,
    NotApplicable,
    NotOffered,
    NotProven,
    run_clause,
    run_clauses,
)
from ggplug_testing.contracts.given import Given, clause

CHAPTERS = (
    devices,
    buffers,
    streams,
    synchronous,
    plans,
    binding,
    again,
    freeing,
    pending,
    racing,
    sharing,
    layouts,
    far,
)
"""The modules whose clauses make up the contract, the simplest first."""

_ORDER = [chapter.__name__ for chapter in CHAPTERS]
CLAUSES.sort(key=lambda each: _ORDER.index(each.check.__module__))
BASES.update((each.name, bases_of(each)) for each in CLAUSES)

__all__ = [
    "CHAPTERS",
    "CLAUSES",
    "CONTRACT",
    "Clause",
    "ContractError",
    "Given",
    "NotApplicable",
    "NotOffered",
    "NotProven",
    "clause",
    "run_clause",
    "run_clauses",
]
