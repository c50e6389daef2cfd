"""Emits LLVM IR by Python's operators, for intrinsics and register-blocked inner loops.

A :class:`Value` is an LLVM value and the builder that emits code where it is used, so that ``(x * a + b).bitcast(t)``
emits those instructions.  Python numbers become constants of the other operand's type.  Element types decide between
integer and float instructions; integers are signed unless a method says otherwise.

:func:`emitted` makes an intrinsic, which kernels can call, of a function on values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from llvmlite import ir

from .. import compiler, features
from ..language.names import ELEMENTS
from . import lanes

I1, I8, I16, I32, I64 = (ELEMENTS[f"i{bits}"] for bits in (1, 8, 16, 32, 64))
BF16, F16, F32, F64 = (ELEMENTS[name] for name in ("bf16", "f16", "f32", "f64"))

Number = int | float


def vector(element: ir.Type, count: int) -> ir.VectorType:
    return ir.VectorType(element, count)


def vector_named(name: str) -> ir.VectorType:
    """The LLVM type of a vector type's name: ``f32x16``."""
    elem, count = lanes.split(name)
    return ir.VectorType(ELEMENTS[elem], count)


def _suffix(t: ir.Type) -> str:
    """LLVM's mangling of a type in an intrinsic's name."""
    if isinstance(t, ir.VectorType):
        return f"v{t.count}{_suffix(t.element)}"
    if isinstance(t, ir.PointerType):
        return "p0"
    return f"i{t.width}" if isinstance(t, ir.IntType) else str(t.intrinsic_name)


class Value:
    """An LLVM scalar or vector, and the builder that emits further instructions."""

    __slots__ = ("b", "ir")

    def __init__(self, builder: ir.IRBuilder, value: ir.Value) -> None:
        self.b = builder
        self.ir = value

    @property
    def type(self) -> ir.Type:
        return self.ir.type

    @property
    def element(self) -> ir.Type:
        return self.type.element if isinstance(self.type, ir.VectorType) else self.type

    @property
    def count(self) -> int:
        """Lanes; 1 for a scalar."""
        return self.type.count if isinstance(self.type, ir.VectorType) else 1

    @property
    def is_float(self) -> bool:
        return not isinstance(self.element, ir.IntType)

    def constant(self, number: Number, like: ir.Type | None = None) -> Value:
        """``number`` in every lane of a value of this type (or of type ``like``)."""
        return constant(self.b, like if like is not None else self.type, number)

    def same(self, other: Value | Number) -> ir.Value:
        return other.ir if isinstance(other, Value) else self.constant(other).ir

    def _pick(self, other: Value | Number, integer: str, floating: str) -> Value:
        return Value(self.b, getattr(self.b, floating if self.is_float else integer)(self.ir, self.same(other)))

    def __add__(self, other: Value | Number) -> Value:
        return self._pick(other, "add", "fadd")

    def __sub__(self, other: Value | Number) -> Value:
        return self._pick(other, "sub", "fsub")

    def __mul__(self, other: Value | Number) -> Value:
        return self._pick(other, "mul", "fmul")

    def __truediv__(self, other: Value | Number) -> Value:
        return Value(self.b, self.b.fdiv(self.ir, self.same(other)))

    def __radd__(self, other: Number) -> Value:
        return self.constant(other) + self

    def __rsub__(self, other: Number) -> Value:
        return self.constant(other) - self

    def __rmul__(self, other: Number) -> Value:
        return self.constant(other) * self

    def __rtruediv__(self, other: Number) -> Value:
        return self.constant(other) / self

    def __neg__(self) -> Value:
        return Value(self.b, self.b.fneg(self.ir)) if self.is_float else 0 - self

    def __and__(self, other: Value | Number) -> Value:
        return Value(self.b, self.b.and_(self.ir, self.same(other)))

    def __or__(self, other: Value | Number) -> Value:
        return Value(self.b, self.b.or_(self.ir, self.same(other)))

    def __xor__(self, other: Value | Number) -> Value:
        return Value(self.b, self.b.xor(self.ir, self.same(other)))

    def __invert__(self) -> Value:
        return self ^ -1

    def __lshift__(self, other: Value | Number) -> Value:
        return Value(self.b, self.b.shl(self.ir, self.same(other)))

    def __rshift__(self, other: Value | Number) -> Value:
        """Arithmetic shift; see :meth:`lshr`."""
        return Value(self.b, self.b.ashr(self.ir, self.same(other)))

    def lshr(self, other: Value | Number) -> Value:
        return Value(self.b, self.b.lshr(self.ir, self.same(other)))

    def compare(self, predicate: str, other: Value | Number) -> Value:
        """Lane-wise ``<``, ``<=``, ``==``, ``!=``, ``>=`` or ``>``; where a float is NaN only ``!=`` is true."""
        if not self.is_float:
            return Value(self.b, self.b.icmp_signed(predicate, self.ir, self.same(other)))
        emit = self.b.fcmp_unordered if predicate == "!=" else self.b.fcmp_ordered
        return Value(self.b, emit(predicate, self.ir, self.same(other)))

    def __lt__(self, other: Value | Number) -> Value:
        return self.compare("<", other)

    def __le__(self, other: Value | Number) -> Value:
        return self.compare("<=", other)

    def __gt__(self, other: Value | Number) -> Value:
        return self.compare(">", other)

    def __ge__(self, other: Value | Number) -> Value:
        return self.compare(">=", other)

    def equal(self, other: Value | Number) -> Value:
        return self.compare("==", other)

    def unequal(self, other: Value | Number) -> Value:
        return self.compare("!=", other)

    def select(self, yes: Value | Number, no: Value | Number) -> Value:
        """This mask's choice, lane by lane; at least one of the two must be a value."""
        if not isinstance(yes, Value):
            assert isinstance(no, Value)
            yes = no.constant(yes)
        return Value(self.b, self.b.select(self.ir, yes.ir, yes.same(no)))

    def call(self, name: str, result: ir.Type | None, *others: Value) -> Value:
        """Call LLVM's intrinsic ``name`` with this value first."""
        return call(self.b, name, result if result is not None else self.type, self, *others)

    def unary(self, name: str) -> Value:
        """Call an overloaded LLVM intrinsic that maps a type to itself (``sqrt``, ``fabs``, ``floor``, ...)."""
        return self.call(f"llvm.{name}.{_suffix(self.type)}", None)

    def binary(self, name: str, other: Value | Number) -> Value:
        return self.call(f"llvm.{name}.{_suffix(self.type)}", None, Value(self.b, self.same(other)))

    def fma(self, times: Value | Number, plus: Value | Number) -> Value:
        """``self * times + plus``: rounded once if the CPU has such an instruction, else twice."""
        operands = (Value(self.b, self.same(times)), Value(self.b, self.same(plus)))
        return self.call(f"llvm.fmuladd.{_suffix(self.type)}", None, *operands)

    def bitcast(self, t: ir.Type) -> Value:
        return Value(self.b, self.b.bitcast(self.ir, t))

    def bits(self) -> Value:
        """Float lanes as the integers of equal width."""
        width = {"float": 32, "double": 64, "half": 16}[str(self.element)]
        element = ir.IntType(width)
        return self.bitcast(vector(element, self.count) if isinstance(self.type, ir.VectorType) else element)

    def convert(self, element: ir.Type) -> Value:
        """The same numbers in another element type: signed integers, floats truncated towards zero."""
        if element == self.element:
            return self
        target = vector(element, self.count) if isinstance(self.type, ir.VectorType) else element
        return Value(self.b, getattr(self.b, _conversion(self.element, element))(self.ir, target))

    def zext(self, element: ir.Type) -> Value:
        """Unsigned integers in a wider type."""
        target = vector(element, self.count) if isinstance(self.type, ir.VectorType) else element
        return Value(self.b, self.b.zext(self.ir, target))

    def splat(self, count: int) -> Value:
        """This scalar in ``count`` lanes."""
        t = vector(self.type, count)
        undefined = ir.Constant(t, ir.Undefined)
        one = self.b.insert_element(undefined, self.ir, ir.Constant(I32, 0))
        return Value(self.b, self.b.shuffle_vector(one, undefined, _constant(vector(I32, count), [0] * count)))

    def shuffle(self, lanes: Sequence[int], other: Value | None = None) -> Value:
        """The chosen lanes of this vector followed by ``other`` (numbers from ``count`` on choose from ``other``)."""
        second = other.ir if other is not None else ir.Constant(self.type, ir.Undefined)
        mask = _constant(vector(I32, len(lanes)), lanes)
        return Value(self.b, self.b.shuffle_vector(self.ir, second, mask))

    def concat(self, other: Value) -> Value:
        return self.shuffle(range(2 * self.count), other)

    def part(self, start: int, count: int) -> Value:
        return self.shuffle(range(start, start + count))

    def lane(self, index: int) -> Value:
        return Value(self.b, self.b.extract_element(self.ir, ir.Constant(I32, index)))

    def lane_at(self, index: Value) -> Value:
        """The lane whose number is known at run time (or becomes known to LLVM)."""
        return Value(self.b, self.b.extract_element(self.ir, index.ir))

    def sum(self) -> Value:
        """All lanes added, halves first: the same tree on every target."""
        return self._fold(lambda low, high: low + high)

    def max(self) -> Value:
        """The largest lane; NaN lanes as in :meth:`maximum`."""
        return self._fold(lambda low, high: low.maximum(high))

    def min(self) -> Value:
        return self._fold(lambda low, high: low.minimum(high))

    def _fold(self, combine: Callable[[Value, Value], Value]) -> Value:
        value = self
        while value.count > 1:
            half = value.count // 2
            value = combine(value.part(0, half), value.part(half, half))
        return value.lane(0)

    def maximum(self, other: Value | Number) -> Value:
        """The larger, ``self > other ? self : other``: so ``other`` where either is NaN (x86's ``maxps``)."""
        right = Value(self.b, self.same(other))
        return (self > right).select(self, right)

    def minimum(self, other: Value | Number) -> Value:
        right = Value(self.b, self.same(other))
        return (self < right).select(self, right)

    def abs(self) -> Value:
        return self.unary("fabs") if self.is_float else (self < 0).select(-self, self)

    def copysign(self, sign: Value) -> Value:
        return self.binary("copysign", sign)

    def floor(self) -> Value:
        if _has_rounding():
            return self.unary("floor")
        nearest = self.round_even()
        return (nearest > self).select(nearest - 1, nearest).copysign(self)

    def ceil(self) -> Value:
        return -((-self).floor())

    def truncate(self) -> Value:
        return self.abs().floor().copysign(self)

    def round_even(self) -> Value:
        """Round to the nearest integer, ties to even; exact for every float."""
        return self.unary("roundeven") if _has_rounding() else _round_even_by_magic(self)

    def round_away(self) -> Value:
        """Round to the nearest integer, ties away from zero; exact for every float.

        What is added is the float below 0.5, so that 0.49999997 isn't carried to 1 (while 0.5 still is).
        """
        below_half = 0.49999999999999994 if str(self.element) == "double" else 0.4999999701976776123046875
        return (self + self.constant(below_half).copysign(self)).truncate()


def _conversion(source: ir.Type, target: ir.Type) -> str:
    from_int, to_int = isinstance(source, ir.IntType), isinstance(target, ir.IntType)
    if from_int and to_int:
        if source.width == 1:
            return "zext"
        return "sext" if target.width > source.width else "trunc"
    if from_int:
        return "uitofp" if source.width == 1 else "sitofp"
    if to_int:
        return "fptosi"
    size = {"half": 2, "bfloat": 2, "float": 4, "double": 8}
    return "fpext" if size[str(target)] > size[str(source)] else "fptrunc"


def _has_rounding() -> bool:
    return features.has("sse4.1") or not features.has("sse2")  # every other architecture's baseline rounds


def _round_even_by_magic(x: Value) -> Value:
    """Adding 2**(mantissa bits) rounds the fraction away, and subtracting it restores the rest; larger numbers have
    none.
    """
    magic = float(2**52 if str(x.element) == "double" else 2**23)
    rounded = (x.abs() + magic) - magic
    return (x.abs() < magic).select(rounded.copysign(x), x)


def constant(b: ir.IRBuilder, t: ir.Type, number: Number) -> Value:
    """``number`` as a constant of type ``t``, in every lane."""
    count = t.count if isinstance(t, ir.VectorType) else 1
    return Value(b, _constant(t, (number,) * count))


def constants(b: ir.IRBuilder, element: ir.Type, numbers: Sequence[Number]) -> Value:
    """A vector constant, lane by lane."""
    return Value(b, _constant(vector(element, len(numbers)), numbers))


def _constant(t: ir.Type, numbers: Sequence[Number]) -> ir.Constant:
    element = t.element if isinstance(t, ir.VectorType) else t
    if isinstance(element, ir.IntType):
        return _known_constant(t, tuple(map(int, numbers)))
    return _known_constant(t, tuple(float(number).hex() for number in numbers))


@functools.lru_cache(maxsize=1 << 12)
def _known_constant(t: ir.Type, numbers: tuple[int | str, ...]) -> ir.Constant:
    """A constant, made once, because writing it down is slow.  Floats are texts, of which those of 0 and -0 differ."""
    plain = [float.fromhex(number) if isinstance(number, str) else number for number in numbers]
    return ir.Constant(t, plain if isinstance(t, ir.VectorType) else plain[0])


def joined(parts: Sequence[Value]) -> Value:
    """The lanes of a power of two of vectors, one after the other."""
    while len(parts) > 1:
        parts = [low.concat(high) for low, high in zip(parts[0::2], parts[1::2], strict=True)]
    return parts[0]


def gathered(scalars: Sequence[Value]) -> Value:
    """A vector of single values."""
    b, t = scalars[0].b, vector(scalars[0].type, len(scalars))
    result = ir.Constant(t, ir.Undefined)
    for i, scalar in enumerate(scalars):
        result = b.insert_element(result, scalar.ir, ir.Constant(I32, i))
    return Value(b, result)


def unpacked(several: Value) -> list[Value]:
    """The elements of a tuple."""
    return [Value(several.b, several.b.extract_value(several.ir, i)) for i in range(several.type.count)]


def packed(elements: Sequence[Value]) -> Value:
    """A tuple of values of one type."""
    b = elements[0].b
    several = ir.Constant(ir.ArrayType(elements[0].type, len(elements)), ir.Undefined)
    for i, element in enumerate(elements):
        several = b.insert_value(several, element.ir, i)
    return Value(b, several)


def call(b: ir.IRBuilder, name: str, result: ir.Type, *arguments: Value) -> Value:
    """Call LLVM's intrinsic ``name``, declared on first use."""
    return Value(b, compiler.llvm_call(b, name, result, *(a.ir for a in arguments)))


def opaque(number: Value, *, each_time: bool = False) -> Value:
    """An int64, or a vector, in a register whose value LLVM cannot analyse.

    With ``each_time`` LLVM cannot assume that it is the same in every iteration, so code that uses it stays in the
    loop.
    """
    t, register = ir.FunctionType(number.type, [number.type]), "r" if number.type == I64 else "x"
    return Value(number.b, number.b.asm(t, "", f"={register},0", [number.ir], side_effect=each_time))


def after(address: Value, number: Value) -> Value:
    """An address that is known only after ``number``, a vector, is: what it is used for is not done earlier (x86)."""
    t = ir.FunctionType(I64, [I64, number.type])
    return Value(address.b, address.b.asm(t, "", "=r,0,x", [address.ir, number.ir], side_effect=False))


def load(address: Value, t: ir.Type, offset: int = 0, align: int = 1) -> Value:
    """Read a ``t`` at ``address + offset`` bytes."""
    b = address.b
    instruction = b.load(_pointer(address, t, offset))
    instruction.align = align
    return Value(b, instruction)


def store(address: Value, value: Value, offset: int = 0, align: int = 1) -> None:
    """Write ``value`` at ``address + offset`` bytes."""
    instruction = address.b.store(value.ir, _pointer(address, value.type, offset))
    instruction.align = align


def _pointer(address: Value, t: ir.Type, offset: int) -> ir.Value:
    return address.b.inttoptr((address + offset).ir if offset else address.ir, t.as_pointer())


def on_stack(b: ir.IRBuilder, count: int) -> Value:
    """The address of ``count`` bytes of the function's stack."""
    with b.goto_entry_block():
        place = b.alloca(I8, count)
        place.align = 64
        return Value(b, b.ptrtoint(place, I64))


def masked_load(address: Value, t: ir.VectorType, mask: Value) -> Value:
    """Read the lanes that ``mask`` selects, and access no other byte; the other lanes are zero."""
    pointer = Value(address.b, address.b.inttoptr(address.ir, t.as_pointer()))
    align = constant(address.b, I32, 1)
    return call(address.b, f"llvm.masked.load.{_suffix(t)}.p0", t, pointer, align, mask, constant(address.b, t, 0))


def masked_gather(address: Value, offsets: Value, t: ir.VectorType, mask: Value) -> Value:
    """Read the numbers at ``address`` plus ``offsets`` (int32, in bytes) in the lanes that ``mask`` selects.

    The other lanes are zero, and no byte is accessed for them.
    """
    b = address.b
    places = address.splat(t.count) + offsets.convert(I64)
    pointers = Value(b, b.inttoptr(places.ir, ir.VectorType(t.element.as_pointer(), t.count)))
    name = f"llvm.masked.gather.{_suffix(t)}.v{t.count}p0"
    return call(b, name, t, pointers, constant(b, I32, 1), mask, constant(b, t, 0))


def masked_store(address: Value, value: Value, mask: Value) -> None:
    """Write the lanes that ``mask`` selects, and access no other byte.

    If it selects all lanes, the store is not masked: a masked store that misses the cache takes many times as long
    (seen on Zen 5), and later loads of its bytes wait until it has reached the cache.
    """
    b = address.b
    pointer = Value(b, b.inttoptr(address.ir, value.type.as_pointer()))
    name = f"llvm.masked.store.{_suffix(value.type)}.p0"
    bits = ir.IntType(mask.count)
    with b.if_else(mask.bitcast(bits).equal(-1).ir) as (whole, part):
        with whole:
            store(address, value)
        with part:
            call(b, name, ir.VoidType(), value, pointer, constant(b, I32, 1), mask)


def copy(destination: Value, source: Value, count: Value) -> None:
    """Copy ``count`` bytes between ranges that do not overlap."""
    places = (_bytes_at(destination), _bytes_at(source))
    call(count.b, "llvm.memcpy.p0.p0.i64", ir.VoidType(), *places, count, constant(count.b, I1, 0))


def fill(destination: Value, byte: Value | int, count: Value) -> None:
    """Set ``count`` bytes."""
    value = byte if isinstance(byte, Value) else constant(count.b, I8, byte)
    call(count.b, "llvm.memset.p0.i64", ir.VoidType(), _bytes_at(destination), value, count, constant(count.b, I1, 0))


def _bytes_at(address: Value) -> Value:
    return Value(address.b, address.b.inttoptr(address.ir, I8.as_pointer()))


def first_lanes(count: int, n: Value) -> Value:
    """The mask of the first ``n`` (int64) of ``count`` lanes; all for ``n`` >= ``count``, none for ``n`` <= 0."""
    numbers = constants(n.b, I32, range(count))
    limit = n.maximum(0).minimum(count).convert(I32)
    return limit.splat(count) > numbers


def loop(count: Value, carried: Sequence[Value], body: Callable[[Value, list[Value]], Sequence[Value]]) -> list[Value]:
    """Emit ``for i in range(count)``: ``body(i, carried)`` returns the next carried values.

    Returns the carried values after the last iteration (the initial ones for ``count`` <= 0).
    """
    b = count.b
    before = b.block
    head, inner, after = (b.append_basic_block(name) for name in ("loop.head", "loop.body", "loop.end"))
    b.branch(head)
    b.position_at_end(head)
    index = b.phi(count.type)
    phis = [b.phi(value.type) for value in carried]
    index.add_incoming(ir.Constant(count.type, 0), before)
    for phi, value in zip(phis, carried, strict=True):
        phi.add_incoming(value.ir, before)
    b.cbranch(b.icmp_signed("<", index, count.ir), inner, after)
    b.position_at_end(inner)
    following = body(Value(b, index), [Value(b, phi) for phi in phis])
    index.add_incoming(b.add(index, ir.Constant(count.type, 1)), b.block)
    for phi, value in zip(phis, following, strict=True):
        phi.add_incoming(value.ir, b.block)
    b.branch(head)
    b.position_at_end(after)
    return [Value(b, phi) for phi in phis]


def emitted(signature: str | Callable[..., str | None]) -> Callable[[Callable[..., Value | None]], compiler.Intrinsic]:
    """Decorate a function of :class:`Value` to make an intrinsic of it; ``signature`` as in :func:`compiler.intrinsic`.

    A function without arguments receives the builder instead.
    """

    def decorate(function: Callable[..., Value | None]) -> compiler.Intrinsic:
        @functools.wraps(function)
        def emit(builder: ir.IRBuilder, *arguments: ir.Value) -> ir.Value | None:
            out = function(*(Value(builder, a) for a in arguments)) if arguments else function(builder)
            return None if out is None else out.ir

        return compiler.intrinsic(signature)(emit)

    return decorate
