"""Why a text ends."""

from __future__ import annotations

import enum


class Finish(enum.Enum):
    """Why a text ends.  The values are those of ``finish_reason`` in the OpenAI API, where it has one."""

    STOP = "stop"
    """The model chose an end token, or a stop string was found."""
    LENGTH = "length"
    """``max_tokens`` were generated, or the context is full."""
    CANCELLED = "cancelled"
    """The caller stopped it, or the session or server was closed."""
