"""The rows of the families' tables: which function chooses the kernels for a node, or for a group that a pattern finds.

Types are written ``source source > result``: each a choice of names of types or of the sets in :data:`TYPE_SETS`, with
``?`` for a source that may be absent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ggplug.backend import Decline, Group
from ggplug.ops import Op
from ggplug.patterns import Names
from ggplug.tensor import Tensor
from ggplug.types import TYPES, Type, by_name
from ggplug_cpu.choosing.entries import Entries
from ggplug_cpu.types import BLOCKS, ENCODED, PLAIN

TYPE_SETS = {
    "float": "|".join(PLAIN),
    "block": "|".join(BLOCKS),
    "encoded": "|".join(ENCODED),
    "any": "|".join(t.name for t in TYPES),
}


@dataclass(frozen=True)
class Chooser:
    """A row of a table: if ``types`` fit a node of the class ``op``, ``choose`` returns its entries, or declines."""

    op: type[Op]
    types: str
    choose: Callable[[Tensor], Entries | Decline]
    packed: int | None = None
    """The index of the source that may lie in packed memory (:mod:`ggplug_cpu.packed`)."""
    _wanted: tuple[frozenset[Type | None], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        sources, result = self.types.split(">")
        wanted = [_choice(word) for word in [result.strip(), *sources.split()]]
        object.__setattr__(self, "_wanted", tuple(wanted))

    def takes(self, node: Tensor) -> bool:
        """Whether the types of result and sources fit; absent sources at the end need no mention."""
        present = [node.type, *(None if s is None else s.type for s in node.src)]
        wanted = self._wanted
        return all((t in wanted[i]) if i < len(wanted) else t is None for i, t in enumerate(present))


def _choice(word: str) -> frozenset[Type | None]:
    names = "|".join(TYPE_SETS.get(name, name) for name in word.rstrip("?").split("|")).split("|")
    return frozenset([by_name(name) for name in names] + ([None] if word.endswith("?") else []))


GroupChooser: TypeAlias = Callable[[Group, Names], Entries | Decline]
"""Returns the entries for a group of several nodes, whose tensors a pattern has named; or declines."""
