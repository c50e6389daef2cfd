"""Argument structs and bindings of the tensors of a plan's launches, computed for all launches at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug_simt.driver import Binding
from ggplug_simt.ledger import DeviceMemory
from ggplug_simt.library import Launch, Library
from ggplug_simt.properties import Properties

Indexes = npt.NDArray[np.int64]

_WORD = 4
"""Bytes that the size of a binding is a multiple of: devices that bind ranges load and store by words."""


class Owner(NamedTuple):
    """A tensor of a launch: number of the launch, and number of the tensor in it."""

    launch: int
    tensor: int


class Changed(NamedTuple):
    """The changes of a new allocation: bindings, and the launches whose structs have changed."""

    bindings: list[tuple[Owner, Binding]]
    structs: list[int]


class Arguments:
    """The argument structs of all launches in one array, and the memory that their tensors are bound to.

    A struct begins at a multiple of ``properties.argument_stride``.  A tensor is bound at its offset rounded down to a
    multiple of ``properties.binding_step``, and its struct holds the rest; where whole buffers are bound, the struct
    holds the whole offset.
    """

    def __init__(self, library: Library, properties: Properties) -> None:
        self.spans: list[tuple[int, int]] = []
        """First byte and size of each launch's struct."""
        self.data: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self.owners: list[Owner] = []
        """The tensors of all launches, in order; other lists here are in the same order."""
        self.written: npt.NDArray[np.bool_] = np.empty(0, bool)
        self._library = library
        self._step = properties.binding_step
        self._stride = properties.argument_stride
        self._structs: list[npt.NDArray[np.uint8]] = []
        self._columns: list[tuple[int, int, int, bool]] = []  # of each tensor: member's byte, delta, span, written
        self._end = 0
        self.bound = False
        """Whether the queue has all bindings and structs.  False during a transfer to it, and after one that failed."""
        self._memories: list[DeviceMemory] = []
        self._which: Indexes = np.empty(0, np.int64)
        self._bases: Indexes = np.empty(0, np.int64)
        self._sizes: Indexes = np.empty(0, np.int64)

    def add(self, launch: Launch, **noted: int) -> None:
        """Appends a launch's struct and its tensors."""
        number = len(self.spans)
        struct = self._library.arguments(launch, **noted)
        for n, each in enumerate(launch.tensors):
            member = self._end + self._library.offset_of(launch.program, n)
            self.owners.append(Owner(number, n))
            self._columns.append((member, each.delta, each.span, each.written))
        self.spans.append((self._end, struct.size))
        size = -(-struct.size // self._stride) * self._stride
        self._structs.append(np.concatenate([struct, np.zeros(size - struct.size, np.uint8)]))
        self._end += size

    def close(self) -> None:
        """Ends the list of launches."""
        self.data = np.concatenate(self._structs) if self._structs else self.data
        columns = np.array(self._columns, np.int64).reshape(-1, 4)
        self._members = columns[:, 0] // self._library.offset.itemsize
        self._deltas, self._spans = columns[:, 1], columns[:, 2]
        self.written = columns[:, 3].astype(bool)
        self._launches = np.array([owner.launch for owner in self.owners], np.int64)
        self._structs, self._columns = [], []

    def place(self, memories: list[DeviceMemory], which: Indexes, offsets: Indexes) -> Changed:
        """Stores the places of the tensors: the memory ``memories[which[i]]``, ``offsets[i]`` bytes into it.

        The caller passes the changes to the queue, and then sets :attr:`bound`.  Until then everything counts as
        changed.
        """
        bound, self.bound = self.bound, False
        offsets = offsets + self._deltas
        if self._step is None:
            bases = np.zeros(len(offsets), np.int64)
            sizes = np.array([memory.size for memory in memories], np.int64)[which]
        else:
            offsets[self._spans == 0] = 0  # a tensor without elements may lie at its buffer's end
            bases = offsets // self._step * self._step
            sizes = np.maximum(-(-(offsets - bases + self._spans) // _WORD), 1) * _WORD
        rest = offsets - bases
        words = self.data.view(self._library.offset)
        moved = which == which
        # The number of a memory is valid only for its list.
        if bound and len(memories) == len(self._memories):
            same = np.array([new is old for new, old in zip(memories, self._memories, strict=True)], bool)
            moved = (which != self._which) | ~same[which] | (bases != self._bases) | (sizes != self._sizes)
        shifted = rest != words[self._members]
        words[self._members] = rest
        self._memories, self._which, self._bases, self._sizes = memories, which, bases, sizes
        structs = sorted(set(self._launches[shifted].tolist())) if bound else list(range(len(self.spans)))
        return Changed([(self.owners[n], self.binding(n)) for n in moved.nonzero()[0].tolist()], structs)

    def binding(self, number: int) -> Binding:
        """The binding of tensor ``number`` of all."""
        memory = self._memories[self._which[number]]
        return Binding(memory.handle, int(self._bases[number]), int(self._sizes[number]))

    def tensors_of(self, launch: int) -> list[int]:
        """The numbers, among all, of a launch's tensors."""
        return np.flatnonzero(self._launches == launch).tolist()

    def aliased(self) -> dict[int, frozenset[int]]:
        """For each launch that writes to a memory and only reads another tensor in it: the numbers of such tensors."""
        pairs = self._launches * (1 + len(self._memories)) + self._which
        _, groups = np.unique(pairs, return_inverse=True)
        stored = np.bincount(groups, weights=self.written) > 0
        found: dict[int, set[int]] = {}
        for n in np.flatnonzero(stored[groups] & ~self.written).tolist():
            found.setdefault(self.owners[n].launch, set()).add(self.owners[n].tensor)
        return {launch: frozenset(tensors) for launch, tensors in found.items()}
