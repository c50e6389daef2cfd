"""Names of tools and of their arguments, which are written without quotes in some formats."""

from __future__ import annotations

from collections.abc import Collection

from ggplug.errors import ParameterError


def readable(kind: str, name: str, *marks: str, taken: Collection[str] = ()) -> str:
    """A name that is written before one of ``marks``, and read up to the first of them.

    ``kind``: what has the name.  ``taken``: names that mean something else.  Raises ParameterError if another name
    would be read.
    """
    ends = [mark for mark in marks if (name + mark).find(mark) < len(name)]
    if ends:
        reason = f"{ends[0]!r} ends a name there"
    elif name != name.strip():
        reason = "white space around a name is not a part of it"
    elif name in taken:
        reason = "it has another meaning there"
    else:
        return name
    raise ParameterError(
        f"the {kind} {name!r:.100} cannot be written in the tool calls of this chat template: {reason}", got=name
    )
