"""Why a text ends."""

from __future__ import annotations

import enum


class Finish(enum.Enum):
    """Why a text ends.  The values are the words of the OpenAI API, where it has one."""

    STOP = "stop"
    """A token that ends texts came, or a stop string."""
    LENGTH = "length"
    """It has as many tokens as it may have, or the context is full."""
    CANCELLED = "cancelled"
    """Nobody waits for it any more, or what computes it was closed."""
