"""The seam between what programs say and what runs them: a library of programs in one language.

A driver names the library for its device.  The library answers for a group of nodes (mostly one) which launches
compute it (:meth:`Library.match`); it knows the text of each program and how a launch's arguments are laid out.  The
runtime (everything else in this package but the libraries themselves) compiles the text, places tensors, fills in
where they lie, and gives the launches to a queue.  It looks into no program.

The library in C is :mod:`ggplug_simt.c`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ggplug.backend import Decline, Group
from ggplug.patterns import Pattern
from ggplug.tensor import Extents, Tensor
from ggplug.types import Type

DST = -1
"""Position of the result: the others count ``group.operands`` from there, so a node's sources begin at 0."""

SCRATCH = -2
"""Position of memory that only the launches of one group share: see ``Launches.scratch``."""

FAULTS = -3
"""Position of the stream's record of ids out of range: see :mod:`ggplug_simt.faults`."""


class TensorArgument(NamedTuple):
    """A tensor as a launch gets it.

    ``position``: which one of the group's; ``delta``: bytes from its first element to the one that the launch begins
    with; ``ne``, ``nb``: extents and strides to use; ``span``: bytes from there that the launch reaches;
    ``written``: whether it stores there.
    """

    position: int
    ne: Extents
    nb: Extents
    delta: int = 0
    span: int = 0
    written: bool = False


def argument(position: int, tensor: Tensor) -> TensorArgument:
    """A tensor as it is; the launch stores in the group's result, and reads sources."""
    return argument_of(position, tensor.type, tensor.ne, tensor.nb)


def argument_of(position: int, type: Type, ne: Extents, nb: Extents, delta: int = 0) -> TensorArgument:
    """Elements of ``type`` with these extents and strides, ``delta`` bytes into the tensor at ``position``.

    Only the group's result is marked as written.
    """
    blocks = (-(-ne[0] // type.block_size), *ne[1:])
    reached = sum((count - 1) * step for count, step in zip(blocks, nb, strict=True)) + type.block_bytes
    return TensorArgument(position, ne, nb, delta, reached if all(blocks) else 0, position == DST)


class Program(Protocol):
    """A program by what it is made from: hashable; equal ones are compiled once.  ``str`` of it is what errors say."""

    @property
    def kernel(self) -> str:
        """The name of the function that is launched."""

    def __hash__(self) -> int: ...


class VendorProgram:
    """What the vendor's own library of functions computes: never compiled; the driver knows it by its class.

    Hashable, and equal to those that compute the same.
    """

    kernel: ClassVar[str]


class Launch(NamedTuple):
    """One launch: ``groups`` work-groups of ``lanes`` items; ``tensors`` and ``values`` in the program's order."""

    program: Program | VendorProgram
    groups: int
    lanes: int
    tensors: tuple[TensorArgument, ...]
    values: tuple[float | int, ...]


class Launches(NamedTuple):
    """How a group is computed: launches in order, and the bytes of scratch memory that they share meanwhile."""

    name: str
    launches: tuple[Launch, ...]
    scratch: int = 0


NOTHING = Launches("nothing", ())
"""Computes nodes that have no elements."""


class Library(ABC):
    """Programs in one language, for a device of certain :class:`~ggplug_simt.properties.Properties`.

    ``language``: its name, also of the folder of compiled programs.  ``offset``: the integer type of the members of
    argument structs that say where in its binding a tensor begins.  ``record``: how programs note the first id out of
    range: integers ``plan``, ``node`` and ``id``, all zero as long as there was none.
    """

    language: str
    offset: np.dtype[Any]
    record: np.dtype[Any]

    @abstractmethod
    def match(self, group: Group) -> Launches | Decline:
        """The launches that compute a group, or why there are none; a pure function of the group's signature."""

    @abstractmethod
    def text(self, program: Program) -> str:
        """The program in its language, as the driver compiles it."""

    @abstractmethod
    def arguments(self, launch: Launch, **noted: int) -> npt.NDArray[np.uint8]:
        """The bytes of the argument struct, all but the tensors' places.

        ``noted``: ``plan`` and ``node``, of a launch that has a tensor at FAULTS and may have to note them.
        """

    @abstractmethod
    def offset_of(self, program: Program | VendorProgram, number: int) -> int:
        """Byte in the argument struct at which the member of type ``offset`` for tensor ``number`` lies."""

    @property
    def patterns(self) -> Sequence[Pattern]:
        """The chains of ops that programs compute together, the preferred ones first (default: none)."""
        return ()

    def facts(self) -> Mapping[str, object]:
        """What a report says of how programs are cut (default: nothing)."""
        return {}

    def aliased(self, program: Program, shared: frozenset[int]) -> Program:
        """The variant of a program that stores in the tensors ``shared`` too, as far as the language has to declare it.

        Asked for where ``properties.exclusive_writes`` says so, and these tensors, which are only read, lie in a buffer
        that the launch writes to (default: the same program).
        """
        return program
