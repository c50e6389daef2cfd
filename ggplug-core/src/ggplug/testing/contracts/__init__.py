"""The contract that ``ggplug.backend`` states, clause by clause, as checks that any device can be put to."""

from __future__ import annotations

from ggplug.testing.contracts import again, buffers, devices, freeing, layouts, pending, plans, racing, streams
from ggplug.testing.contracts.clause import (
    CLAUSES,
    CONTRACT,
    Clause,
    ContractError,
    NotApplicable,
    NotOffered,
    NotProven,
    clause,
    run_clause,
    run_clauses,
)

CHAPTERS = (devices, buffers, layouts, freeing, streams, pending, racing, plans, again)
"""The modules whose clauses make up the contract."""

__all__ = [
    "CHAPTERS", "CLAUSES", "CONTRACT", "Clause", "ContractError", "NotApplicable", "NotOffered", "NotProven", "clause",
    "run_clause", "run_clauses",
]  # fmt: skip
