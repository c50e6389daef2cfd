"""The contract that ``ggplug.backend`` states, clause by clause, as checks that any device can be put to."""

from __future__ import annotations

from ggplug.testing.contracts import buffers, devices, layouts, plans, streams
from ggplug.testing.contracts.clause import CLAUSES, Clause, ContractError, NotOffered, clause, run_clause

CHAPTERS = (devices, buffers, layouts, streams, plans)
"""The modules whose clauses make up the contract."""

__all__ = ["CHAPTERS", "CLAUSES", "Clause", "ContractError", "NotOffered", "clause", "run_clause"]
