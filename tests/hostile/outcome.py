"""How cases end."""

from __future__ import annotations

from dataclasses import dataclass, field


class Fault(Exception):
    """What a case found; ``kind`` says in a word or two what sort of fault it is."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass
class Outcome:
    """How a case ended: "right", "refused" (by the op), "declined" (by the device), "raised" (as it has to), "fault".

    ``text``: what was said.  ``kind``: of a fault.  ``uses``: op, source, layout and type of each source.
    """

    how: str
    text: str = ""
    kind: str = ""
    uses: list[tuple[str, str, str, str]] = field(default_factory=list)
