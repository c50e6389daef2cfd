"""Records in memory that Python and kernels write: words at byte offsets, some of them for several threads.

A subclass of :class:`~ggplug_cpu.recorded.Record` lists them::

    class Row(Record):
        kernel = Word(0)
        done = Atomic(128)

    @device_function
    def run(row: Row) -> None:
        call_1(row.kernel, int(row))     # loads the word
        row.kernel = 0                   # stores it
        row.done.add(1)

Python reaches the same words in an array of words: ``words[Row.kernel.number]``.
"""

# llvmlite is untyped
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from ggplug_cpu.compiler import Intrinsic, Namespace, Record

if TYPE_CHECKING:
    from typing import Self

    from llvmlite import ir


class Word(Intrinsic):
    """A 64-bit word that one thread uses at a time, ``offset`` bytes from a record's address."""

    def __init__(self, offset: int) -> None:
        self.offset, self.number = offset, offset // 8
        super().__init__(lambda b, record: b.load(_pointer(b, record, offset), align=8), "i64(i64)")
        #: What an assignment does.
        self.store = Intrinsic(
            lambda b, record, value: b.store(value, _pointer(b, record, offset), align=8), "void(i64, i64)"
        )

    if TYPE_CHECKING:

        @overload
        def __get__(self, record: None, kind: type) -> Self: ...
        @overload
        def __get__(self, record: Record, kind: type) -> int: ...
        def __get__(self, record: Record | None, kind: type) -> Self | int: ...
        def __set__(self, record: Record, value: int) -> None: ...


class Atomic(Namespace):
    """A 64-bit word that several threads use, ``offset`` bytes from a record's address.

    ``value`` is sequentially consistent: later accesses stay behind it (AArch64: LDAR).  ``set(value)`` has release
    order: earlier accesses stay before it (STLR).  ``add(value)`` and ``exchange(value)`` return what the word was
    before, and are sequentially consistent (LDADDAL, SWPAL).
    """

    def __init__(self, offset: int) -> None:
        self.offset, self.number = offset, offset // 8

        def on_pointer(signature: str, emit: Callable[..., Any]) -> Any:
            return Intrinsic(lambda b, record, *values: emit(b, _pointer(b, record, offset), *values), signature)

        self.value: int = on_pointer("i64(i64)", lambda b, place: b.load_atomic(place, "seq_cst", 8))
        self.set: Callable[[int], None] = on_pointer(
            "void(i64, i64)", lambda b, place, value: b.store_atomic(value, place, "release", 8)
        )
        self.add: Callable[[int], int] = on_pointer(
            "i64(i64, i64)", lambda b, place, value: b.atomic_rmw("add", place, value, "seq_cst")
        )
        self.exchange: Callable[[int], int] = on_pointer(
            "i64(i64, i64)", lambda b, place, value: b.atomic_rmw("xchg", place, value, "seq_cst")
        )


def _pointer(b: ir.IRBuilder, record: ir.Value, offset: int) -> ir.Value:
    from llvmlite import ir

    return b.inttoptr(b.add(record, ir.Constant(record.type, offset)), ir.IntType(64).as_pointer())
