"""The environment variables of this backend."""

from __future__ import annotations

import os

VARIABLE = "GGPLUG_RAY"
"""``auto``, or the address of a cluster.  Without it there are no devices, and Ray is not imported."""

CACHE_BYTES = 16 << 30


def address() -> str:
    """The cluster to join; empty: none."""
    return os.environ.get("GGPLUG_RAY", "")


def cache_limit() -> int:
    """The most bytes that a node's cache of weights takes; 0: there is none."""
    given = os.environ.get("GGPLUG_RAY_CACHE", "")
    return int(given) if given.isdecimal() else CACHE_BYTES
