"""Declares a kernel's parameters: the words that a tape stores, and the functions by which the kernel reads them.

A declaration is a class; its fields are words in the order of the declaration::

    class Scaled(Parameters):
        y = destination(STRIDES)               # an operand: its address and its strides
        x = source(STRIDES)
        rows = integer()
        factor = real()
        slopes = reals()                       # as many as there are

Choosers make the words; those of an operand come from a :class:`Place`::

    Entry(scaled(), Scaled.words(y=Place(Ref(0), y.nb), x=Place(Ref(1), x.nb), rows=4, factor=0.5, slopes=[1.0, 2.0]))

A kernel's body reads the fields by name, if its second parameter is annotated with the declaration; so do the device
functions that it calls with it::

    def body(ctx: int, p: Scaled) -> None:
        for i in range(p.rows):
            x, slope = p.x.address + i * p.x.nb1, p.slopes[i]

``Scaled(address)`` is the declaration at any address.  Intrinsics call a field with that: ``Scaled.rows(params)``.

Operands say whether the kernel reads or writes them: :attr:`Words.reads` and :attr:`Words.writes` list the memory that
an entry accesses.  Parameters never change while a kernel runs, and the loads say so: LLVM may move them out of loops.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, overload

from ggplug_cpu.compiler import Intrinsic, Kernel, Namespace, Record, device_function

if TYPE_CHECKING:
    from typing import Self

    from llvmlite import ir

    from ggplug_cpu.simd.values import Value


# -- words ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ref:
    """An address: ``offset`` bytes into the memory of ``slot``, which is bound later."""

    slot: int
    offset: int = 0


#: The values of a parameter; a kernel stands for its native address.
Word: TypeAlias = int | float | Ref | Kernel

#: The parts of an operand that are its byte strides.
STRIDES = ("nb0", "nb1", "nb2", "nb3")
#: The parts by which an operand's rows are converted: see :mod:`ggplug_cpu.parts.rows`.
CONVERTED = ("convert", "block_bytes")


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an operand: address (0 for an absent one), byte strides, and the converter of its rows.

    ``convert`` is the kernel that converts a row, or 0 where rows are contiguous f32; ``block_bytes``: the bytes of
    the elements that are converted at a time.
    """

    address: Ref | int = 0
    nb: tuple[int, ...] = (0, 0, 0, 0)
    convert: Kernel | int = 0
    block_bytes: int = 0

    @property
    def stride(self) -> int:
        """Bytes from one element of a row to the next."""
        return self.nb[0]

    def part(self, name: str) -> Word:
        """The word of one of an operand's parts."""
        if name in STRIDES:
            return self.nb[STRIDES.index(name)]
        found: Word = getattr(self, name)
        return found


class Words(list[Word]):
    """The words of one entry, and the slots whose memory it reads and writes."""

    def __init__(self, words: Iterable[Word], reads: Iterable[int] = (), writes: Iterable[int] = ()) -> None:
        super().__init__(words)
        self.reads = frozenset(reads)
        self.writes = frozenset(writes)

    def followed_by(self, others: Words) -> Words:
        """These words, followed by those of a kernel that this one calls."""
        return Words([*self, *others], self.reads | others.reads, self.writes | others.writes)


# -- fields -----------------------------------------------------------------------------------------


T = TypeVar("T")
N = TypeVar("N", int, float)
P = TypeVar("P", bound="Parameters")


class Number(Intrinsic, Generic[T]):
    """A field of one word: the number (or the address).  ``T``: what kernels see."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.index = -1
        super().__init__(self._emit, f"{kind}(i64)")

    if TYPE_CHECKING:

        @overload
        def __get__(self, record: None, kind: type) -> Self: ...
        @overload
        def __get__(self, record: Record, kind: type) -> T: ...
        def __get__(self, record: Record | None, kind: type) -> Self | T: ...

    def _emit(self, builder: ir.IRBuilder, params: ir.Value) -> ir.Value:
        from llvmlite import ir

        return _load(builder, params, ir.Constant(params.type, self.index), self.kind)

    def at(self, index: int) -> Self:
        """This field as word ``index`` of a declaration."""
        placed = copy.copy(self)
        placed.index = index
        placed.function = placed._emit
        return placed


class Numbers(Number[Sequence[N]]):
    """A field of any number of words, by index.  One word has the index of the first."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.signature = f"{kind}(i64, i64)"

    def _emit(self, builder: ir.IRBuilder, params: ir.Value, number: ir.Value | None = None) -> ir.Value:
        from llvmlite import ir

        first = _load(builder, params, ir.Constant(params.type, self.index), "i64")
        return _load(builder, params, builder.add(first, number), self.kind)


class Part(Number[P]):
    """A field of one word: how many words from the parameters on those of another declaration lie."""

    def __init__(self, record: type[P]) -> None:
        super().__init__("i64")
        self.record = record

    def _emit(self, builder: ir.IRBuilder, params: ir.Value) -> ir.Value:
        from llvmlite import ir

        words = super()._emit(builder, params)
        return builder.add(params, builder.mul(ir.Constant(params.type, 8), words))


@device_function
def _row(operand: Located, i1: int, i2: int | None = None, i3: int | None = None) -> int:
    place = operand.address + i1 * operand.nb1
    if i2 is not None:
        place += i2 * operand.nb2
    if i3 is not None:
        place += i3 * operand.nb3
    return place


class Operand(Namespace):
    """A tensor that a kernel reads or writes: words for its ``address`` and for the ``parts`` that the kernel
    declares.
    """

    row = _row
    """``row(i1, i2, i3)``: the address of a row, by as many indices as the operand declares strides for."""

    def __init__(self, writes: bool, *parts: str) -> None:
        self.writes = writes
        self.parts = ("address", *parts)

    def at(self, index: int) -> Operand:
        """This operand from word ``index`` of a declaration on."""
        placed = copy.copy(self)
        for offset, part in enumerate(self.parts):
            setattr(placed, part, Number("i64").at(index + offset))
        return placed

    if TYPE_CHECKING:

        def __getattr__(self, part: str) -> Number[int]: ...

        @overload
        def __get__(self, record: None, kind: type) -> Self: ...
        @overload
        def __get__(self, record: Record, kind: type) -> Located: ...
        def __get__(self, record: Record | None, kind: type) -> Self | Located: ...


class Located(Protocol):
    """An :class:`Operand` in a kernel: the values of its parts, of which it has those that are declared."""

    address: int
    nb0: int
    nb1: int
    nb2: int
    nb3: int
    stride: int
    convert: int
    block_bytes: int

    def row(self, i1: int, i2: int | None = None, i3: int | None = None, /) -> int: ...


def integer() -> Number[int]:
    """A word that is an integer, or a kernel's address."""
    return Number("i64")


def real() -> Number[float]:
    """A word that is a float64."""
    return Number("f64")


def integers() -> Numbers[int]:
    """Any number of integers."""
    return Numbers("i64")


def reals() -> Numbers[float]:
    """Any number of float64."""
    return Numbers("f64")


def part(record: type[P]) -> Part[P]:
    """A word that says how many words from the parameters on the fields of ``record`` lie."""
    return Part(record)


def source(*parts: str | tuple[str, ...]) -> Operand:
    """An operand that the kernel only reads, with ``parts`` of its place."""
    return Operand(False, *_flat(parts))


def destination(*parts: str | tuple[str, ...]) -> Operand:
    """An operand that the kernel writes, and perhaps reads, with ``parts`` of its place."""
    return Operand(True, *_flat(parts))


def _flat(parts: Iterable[str | tuple[str, ...]]) -> list[str]:
    return [name for part in parts for name in ((part,) if isinstance(part, str) else part)]


Field: TypeAlias = "Number[Any] | Operand"


class Parameters(Record):
    """The base of declarations: see the module's docstring.  A subclass adds fields.

    Raises TypeError for a field whose name is an attribute of this class.
    """

    fields: ClassVar[Mapping[str, Field]] = {}
    """By name, in the order of their words."""

    def __init_subclass__(cls) -> None:
        declared = {**cls.fields, **{k: v for k, v in vars(cls).items() if isinstance(v, Number | Operand)}}
        fields: dict[str, Field] = {}
        taken = sorted(name for name in declared if hasattr(Parameters, name))
        if taken:
            raise TypeError(f"{cls.__name__}: a field cannot be called {', '.join(taken)}")
        for name, field in declared.items():
            fields[name] = field.at(_size(fields))
            setattr(cls, name, fields[name])
        cls.fields = fields

    @classmethod
    def word_count(cls) -> int:
        """The number of words of the declared fields; the numbers of fields of any number follow them."""
        return _size(cls.fields)

    @classmethod
    def words(cls, **values: Any) -> Words:
        """The words for a value of every field: a number, a :class:`Place`, or a sequence of numbers.

        Raises TypeError for fields that are missing or unknown, and for values of another kind.
        """
        if values.keys() != cls.fields.keys():
            wrong = sorted(values.keys() ^ cls.fields.keys())
            raise TypeError(f"{cls.__name__} declares {', '.join(cls.fields)}; missing or unknown: {', '.join(wrong)}")
        size = _size(cls.fields)
        words: list[Word] = []
        behind: list[Word] = []
        slots: tuple[list[int], list[int]] = ([], [])
        for name, field in cls.fields.items():
            value = values[name]
            if isinstance(field, Operand):
                if not isinstance(value, Place):
                    raise TypeError(f"{cls.__name__}.{name} is an operand: Place(...), not {value!r}")
                words += cls._parts(name, field, value)
                if isinstance(value.address, Ref):
                    slots[field.writes].append(value.address.slot)
            elif isinstance(field, Numbers):
                words.append(size + len(behind))
                if isinstance(value, str | bytes) or not isinstance(value, Iterable):
                    raise TypeError(f"{cls.__name__}.{name} is a sequence of numbers, not {value!r}")
                behind += [cls._word(name, field.kind, each) for each in value]
            else:
                words.append(cls._word(name, field.kind, value))
        return Words([*words, *behind], *slots)

    @classmethod
    def _parts(cls, name: str, operand: Operand, place: Place) -> list[Word]:
        """The words of an operand."""
        try:
            values = [place.part(part) for part in operand.parts]
        except (IndexError, TypeError):
            raise TypeError(
                f"{cls.__name__}.{name} declares {', '.join(operand.parts)}; its Place has the strides {place.nb!r}"
            ) from None
        return [
            value if type(value) is int and _fits(value) else cls._word(f"{name}.{part}", "i64", value)
            for part, value in zip(operand.parts, values, strict=True)
        ]

    @classmethod
    def _word(cls, name: str, kind: str, value: Any) -> Word:
        """A word as the kernel reads it: the bits of an integer are another float's."""
        try:
            if kind == "f64":
                return math.ldexp(value, 0)  # float(value), but not of a text
            if isinstance(value, Kernel):
                return value
            if isinstance(value, Ref):
                operator.index(value.slot), operator.index(value.offset)
                return value
            word = operator.index(value)
        except TypeError:
            kinds = {"i64": "an integer", "f64": "a number"}
            raise TypeError(f"{cls.__name__}.{name} is {kinds[kind]}, not {value!r}") from None
        except OverflowError:
            word = 2**63
        if _fits(word):
            return word
        raise TypeError(f"{cls.__name__}.{name} has 64 bits, and the value does not fit into them")


def _fits(word: int) -> bool:
    return -(2**63) <= word < 2**63


def _size(fields: Mapping[str, Field]) -> int:
    """The number of words of all fields; the numbers of fields of any number follow them."""
    return sum(len(field.parts) if isinstance(field, Operand) else 1 for field in fields.values())


def emitted_number(field: Number[Any], params: Value, *indices: Value | int) -> Value:
    """Emits the load of a field: the same as calling the field in a kernel."""
    numbers = [params.same(index) for index in indices]
    return type(params)(params.b, field.function(params.b, params.ir, *numbers))


def _load(builder: ir.IRBuilder, params: ir.Value, index: ir.Value, kind: str) -> ir.Value:
    from llvmlite import ir

    element = ir.IntType(64) if kind == "i64" else ir.DoubleType()
    address = builder.add(params, builder.mul(index, ir.Constant(params.type, 8)))
    word = builder.load(builder.inttoptr(address, element.as_pointer()), align=8)
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word
