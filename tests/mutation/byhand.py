"""Faults that were made by hand in the source of the subject and of the kit under it, as authors make them.

They were written from the documentation and the interface alone, before the suite's cases were read.
"""

from __future__ import annotations

from tests.mutation import byhand_kernels, byhand_limits, byhand_ported, byhand_streams
from tests.mutation.fault import Fault

BY_HAND: tuple[Fault, ...] = (
    *byhand_kernels.FAULTS, *byhand_limits.FAULTS, *byhand_streams.FAULTS, *byhand_ported.FAULTS,
)  # fmt: skip
"""All of them."""
