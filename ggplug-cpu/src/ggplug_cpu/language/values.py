"""What an expression of a kernel stands for while the kernel is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ggplug_cpu.language.names import Type
from ggplug_cpu.language.sources import Refusal
from ggplug_cpu.recorded import DeviceFunction, Intrinsic

if TYPE_CHECKING:
    from llvmlite import ir


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What is known when the kernel is compiled: a number, a function, a module, a string, None.

    Equal are two of the same object: not 1 and True, and nobody has to compare arrays.
    """

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    @property
    def is_number(self) -> bool:
        return isinstance(self.value, int | float)


@dataclass(frozen=True, slots=True)
class Computed:
    """A number or a vector that the kernel computes, and LLVM's value for it."""

    type: str
    ir: ir.Value


@dataclass(frozen=True, slots=True)
class Declared(Computed):
    """An address with attributes: those of a record's class, or of an object that a record has as an attribute."""

    kind: Any


@dataclass(frozen=True, slots=True)
class Bound:
    """An attribute of an address that is called or indexed, and takes the address as its first argument."""

    function: DeviceFunction | Intrinsic
    owner: Declared


@dataclass(frozen=True, slots=True)
class Several:
    """A tuple.  ``kind``: the class of a named one."""

    items: tuple[Value, ...]
    kind: Any = None


Value: TypeAlias = Known | Computed | Bound | Several

NOTHING = Known(None)


def declared(value: Computed | Several, kind: Any) -> Computed | Several:
    """A value with the attributes of ``kind``, unless that is None."""
    if isinstance(value, Several):
        return Several(value.items, kind)
    return value if kind is None else Declared(value.type, value.ir, kind)


def kind_of(value: Value) -> Any:
    """What the attributes of a value are of; None if it has none."""
    return value.kind if isinstance(value, Declared | Several) else None


def is_named_tuple(thing: Any) -> bool:
    """Whether it is a class that ``NamedTuple`` makes."""
    return isinstance(thing, type) and issubclass(thing, tuple) and hasattr(thing, "_fields")


def known(value: Any) -> Value:
    """What an object of Python stands for."""
    return Several(tuple(map(known, value))) if type(value) is tuple else Known(value)


def type_of(value: Value) -> Type:
    """The type that a value has when the kernel runs.  Raises Refusal for what it cannot be computed with."""
    match value:
        case Computed():
            return value.type
        case Several():
            return tuple(map(type_of, value.items))
        case Known(bool()):
            return "bool"
        case Known(int()):
            return "i64"
        case Known(float()):
            return "f64"
    raise Refusal(
        f"{described(value)} is no value that a kernel can compute with", "a kernel computes with numbers and vectors"
    )


#: Integers of more bits are not written out: Python itself refuses to from some thousand digits on.
_BITS_WRITTEN = 128


def described(value: Value) -> str:
    """A value for messages."""
    match value:
        case Known(None):
            return "None"
        case Known():
            if isinstance(value.value, int) and value.value.bit_length() > _BITS_WRITTEN:
                return f"an integer of {value.value.bit_length()} bits"
            if value.is_number:
                return repr(value.value)
            return f"{getattr(value.value, '__qualname__', repr(value.value))} (a {type(value.value).__name__})"
        case Declared():
            return kind_described(value.kind)
        case Computed():
            return f"a value of type {value.type}"
        case Bound():
            return f"a field of {described(value.owner).removeprefix('a ')}"
    return tuple_described(value.items, value.kind)


def kind_described(kind: Any) -> str:
    """What messages call an address with the attributes of ``kind``."""
    return f"a {kind.__name__ if isinstance(kind, type) else type(kind).__name__}"


def tuple_described(items: Sequence[object], kind: Any) -> str:
    """A tuple for messages."""
    return f"a tuple of {len(items)}" if kind is None else kind_described(kind)


def elements(value: Value) -> Sequence[Value]:
    """The elements of a tuple.  Raises Refusal for what is none."""
    if isinstance(value, Several):
        return value.items
    raise Refusal(f"{described(value)} is no tuple", "only tuples have elements")
