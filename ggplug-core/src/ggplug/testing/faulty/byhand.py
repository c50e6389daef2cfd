"""Faults that were made by hand in the source of the subject and of the kit under it, as authors make them."""

from __future__ import annotations

from ggplug.testing.faulty import Fault

BY_HAND: tuple[Fault, ...] = ()
"""All of them."""
