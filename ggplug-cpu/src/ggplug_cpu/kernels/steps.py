"""What a group becomes: entries of a tape in terms of the group's own operands.

Where a tensor lies in a graph is not known when a kernel is chosen, so that equal groups can share the choice.  A
:class:`~ggplug_cpu.tape.Ref` in :class:`Steps` therefore counts ``group.operands``: slot :data:`RESULT` is the node (of
several the last), slot ``source(i)`` the node's source ``i`` (of several ``group.sources[i]``, and after these the
other kept results).  The plan of a graph puts the tensors' positions in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ggplug.tensor import Tensor
from ggplug_cpu.compiler import device_function
from ggplug_cpu.context import atomic_exchange, atomic_store, load_word, pause, store_word
from ggplug_cpu.tape import Entry, Ref

#: Slot of the node itself.
RESULT = 0
#: Slot of the plan's record of what went wrong: see :func:`fault`.
FAULTS = -2
#: A reference to this slot becomes a node's position in its graph: of several that of ``group.nodes[offset]``.
POSITION = -3

#: Words of the record: a lock; whether there is a fault; the node's position in its graph; where among the node's ids
#: the offending one stands; that id.
LOCK, NOTED, AT, ORDER, GOT = range(5)
FAULT_WORDS = 5

#: Work that is worth a thread, in elements of a simple operation: about a microsecond, twice what a barrier takes.
GRAIN = 16384


def source(index: int) -> int:
    """Slot of the node's source ``index``."""
    return index + 1


def given(node: Tensor, index: int) -> Tensor:
    """The node's source ``index``, one that the op requires."""
    tensor = node.src[index]
    assert tensor is not None
    return tensor


@dataclass(frozen=True, slots=True)
class Steps:
    """The entries of one node, and what memory they use: ``workspace_bytes`` together, ``scratch_bytes`` a thread."""

    entries: tuple[Entry, ...]
    workspace_bytes: int = 0
    scratch_bytes: int = 0
    references: tuple[tuple[int, ...], ...] = field(init=False, repr=False)
    """For each entry the indices of its words that are references."""

    def __post_init__(self) -> None:
        found = [tuple(i for i, word in enumerate(entry.words) if isinstance(word, Ref)) for entry in self.entries]
        object.__setattr__(self, "references", tuple(found))

    @property
    def name(self) -> str:
        """The kernels, for people: ``soft_max`` or ``copy_rows + copy_rows``."""
        return " + ".join(entry.kernel.name for entry in self.entries)


def tasks(elements: int, weight: int = 1) -> int:
    """How many threads are worth waking for ``elements``, each ``weight`` times as costly as an addition.

    So a node of fewer than two :data:`GRAIN` of simple elements runs on one thread, and such nodes never wait.
    The number never influences results: a row, or a piece of fixed length, is computed by one thread.
    """
    return max(1, elements * weight // GRAIN)


@device_function
def fault(record, position, order, got):  # type: ignore[no-untyped-def]
    """Note that id number ``order`` of a node, ``got``, is out of range, to be raised after the computation.

    The first node's is kept, for nodes run one after the other; of these the one with the smallest ``order``, whichever
    thread meets it first.
    """
    while atomic_exchange(record + 8 * LOCK, 1) != 0:
        pause()
    earlier = load_word(record + 8 * AT) == position and order < load_word(record + 8 * ORDER)
    if load_word(record + 8 * NOTED) == 0 or earlier:
        store_word(record + 8 * NOTED, 1)
        store_word(record + 8 * AT, position)
        store_word(record + 8 * ORDER, order)
        store_word(record + 8 * GOT, got)
    atomic_store(record + 8 * LOCK, 0)
