"""The contract that ``ggplug.backend`` states, clause by clause, as checks that any device can be put to."""

from __future__ import annotations

from importlib import import_module

from ggplug_testing.contracts.bases import OF_CHAPTERS
from ggplug_testing.contracts.clause import (
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

for _chapter in OF_CHAPTERS:
    import_module(f"{__name__}.{_chapter}")

_ORDER = [f"{__name__}.{chapter}" for chapter in OF_CHAPTERS]
CLAUSES.sort(key=lambda each: _ORDER.index(each.check.__module__))

__all__ = [
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
