"""The interface between the runtime and a library of programs in one language.

A driver names the library for its device.  The library returns the launches that compute a group of nodes
(:meth:`Library.match`); it generates the text of each program and lays out the arguments of launches.  The runtime (the
rest of this package except the libraries) compiles the text, fills in the places of tensors, and submits the launches
to a queue.  It does not depend on the contents of programs.

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
"""Position of scratch memory, for data between the launches of one group: see ``Launches.scratch``."""

FAULTS = -3
"""Position of the stream's record of ids out of range: see :mod:`ggplug_simt.faults`."""


class TensorArgument(NamedTuple):
    """A tensor as an argument of a launch.

    ``position``: its position in the group; ``delta``: bytes from its first element to the one that the launch begins
    with; ``ne``, ``nb``: extents and strides to use; ``span``: bytes from there that the launch reaches;
    ``written``: whether the launch stores to it.
    """

    position: int
    ne: Extents
    nb: Extents
    delta: int = 0
    span: int = 0
    written: bool = False


def argument(position: int, tensor: Tensor) -> TensorArgument:
    """The whole tensor at ``position``; the launch stores to the group's result, and reads sources."""
    return argument_of(position, tensor.type, tensor.ne, tensor.nb)


def argument_of(position: int, type: Type, ne: Extents, nb: Extents, delta: int = 0) -> TensorArgument:
    """Elements of ``type`` with these extents and strides, ``delta`` bytes into the tensor at ``position``.

    Only the group's result is marked as written.
    """
    blocks = (-(-ne[0] // type.block_size), *ne[1:])
    reached = sum((count - 1) * step for count, step in zip(blocks, nb, strict=True)) + type.block_bytes
    return TensorArgument(position, ne, nb, delta, reached if all(blocks) else 0, position == DST)


class Program(Protocol):
    """The key of a program: hashable; equal ones are compiled once.  Errors show its ``str``."""

    @property
    def kernel(self) -> str:
        """The name of the function that is launched."""

    def __hash__(self) -> int: ...


class VendorProgram:
    """A function of the vendor's library in place of a program: never compiled; the driver knows its class.

    Hashable; programs that compute the same are equal.
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
    """The launches that compute a group, in order, and the bytes of scratch memory that they use together."""

    name: str
    launches: tuple[Launch, ...]
    scratch: int = 0


NOTHING = Launches("nothing", ())
"""Computes nodes that have no elements."""


class Library(ABC):
    """Programs in one language, for a device of certain :class:`~ggplug_simt.properties.Properties`.

    ``language``: its name, also of the folder of compiled programs.  ``offset``: the integer type of the members of
    argument structs that say where in its binding a tensor begins.  ``record``: the layout of the record of the first
    id out of range: integers ``plan``, ``node`` and ``id``, all zero while there is none.
    """

    language: str
    offset: np.dtype[Any]
    record: np.dtype[Any]

    @abstractmethod
    def match(self, group: Group) -> Launches | Decline:
        """The launches that compute a group, or the reason why it declines; a pure function of the group's
        signature.
        """

    @abstractmethod
    def text(self, program: Program) -> str:
        """The program in its language, as the driver compiles it."""

    @abstractmethod
    def arguments(self, launch: Launch, **noted: int) -> npt.NDArray[np.uint8]:
        """The bytes of the argument struct, without the tensors' places.

        ``noted``: for a launch with a tensor at FAULTS, ``plan`` and ``node``, which its kernel stores in the record.
        """

    @abstractmethod
    def offset_of(self, program: Program | VendorProgram, number: int) -> int:
        """Byte in the argument struct at which the member of type ``offset`` for tensor ``number`` lies."""

    @property
    def patterns(self) -> Sequence[Pattern]:
        """The chains of ops that programs compute together, the preferred ones first (default: none)."""
        return ()

    def facts(self) -> Mapping[str, object]:
        """The sizes of programs, for reports (default: none)."""
        return {}

    def aliased(self, program: Program, shared: frozenset[int]) -> Program:
        """The variant of a program whose declarations allow stores to the tensors ``shared``, too.

        With ``properties.exclusive_writes`` the runtime calls it if these tensors, which are only read, are in a buffer
        that the launch stores to (default: the same program).
        """
        return program
