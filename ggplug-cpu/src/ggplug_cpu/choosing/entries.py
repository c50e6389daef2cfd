"""The kernels for a group of nodes, as entries of a tape that refer to the group's operands.

Kernels are chosen once for all equal groups, wherever their tensors stand in a graph.  So a
:class:`~ggplug_cpu.parameters.Ref` in :class:`Entries` has an index into ``group.operands`` as its slot.  Slot
:data:`RESULT` is the group's last node.  Slot ``source(i)`` is source ``i`` of a single node, or ``group.sources[i]``;
after these come the other kept results.  The plan of a graph replaces these slots by the tensors' positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ggplug.nodes.groups import Group
from ggplug.tensor import Tensor
from ggplug_cpu.parameters import Ref
from ggplug_cpu.tape import Entry

#: Slot of the node itself.
RESULT = 0
#: Slot of the plan's record of faults: see :mod:`ggplug_cpu.parts.faults`.
FAULTS = -2
#: A reference to this slot becomes a node's position in its graph: of several that of ``group.nodes[offset]``.
POSITION = -3

#: Elements of a simple operation for which another thread pays: about a microsecond, twice the time of a barrier.
GRAIN = 16384


def source(index: int) -> int:
    """Slot of the node's source ``index``."""
    return index + 1


def slot_of(group: Group, tensor: Tensor) -> int:
    """Slot of a tensor that a group reads or writes."""
    return group.operands.index(tensor)


def source_tensor(node: Tensor, index: int) -> Tensor:
    """The node's source ``index``, which the op requires to be present."""
    tensor = node.src[index]
    assert tensor is not None
    return tensor


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of one group; they use ``workspace_bytes`` of the workspace, and ``scratch_bytes`` in each thread.

    The first entry waits for the nodes before: it may read their results, or overwrite what they read.
    ``python``: the tape stops there, and the plan calls the node's Python function.
    """

    entries: tuple[Entry, ...]
    workspace_bytes: int = 0
    scratch_bytes: int = 0
    python: bool = False
    references: tuple[tuple[int, ...], ...] = field(init=False, repr=False)
    """For each entry the indices of its words that are references."""

    def __post_init__(self) -> None:
        assert not self.entries or self.entries[0].barrier_before, f"{self.name} waits for no node before"
        found = [tuple(i for i, word in enumerate(entry.words) if isinstance(word, Ref)) for entry in self.entries]
        object.__setattr__(self, "references", tuple(found))

    @property
    def name(self) -> str:
        """The names of the kernels, for messages: ``soft_max`` or ``copy_rows + copy_rows``."""
        return "Python function" if self.python else " + ".join(entry.kernel.name for entry in self.entries)


def tasks(elements: int, weight: int = 1) -> int:
    """How many threads may compute ``elements``, each ``weight`` times as costly as an addition.

    A node of fewer than two :data:`GRAIN` of simple elements runs on one thread, and such nodes need no barriers.
    The number never influences results: a row, or a piece of fixed length, is computed by one thread.
    """
    return max(1, elements * weight // GRAIN)
