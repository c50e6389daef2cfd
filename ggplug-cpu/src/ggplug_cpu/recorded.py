"""The objects that the decorators of :mod:`ggplug_cpu.compiler` make, and :mod:`ggplug_cpu.language` compiles."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

#: A function ``(ctx, params)`` that a kernel factory returns; ``params`` is an address or a :class:`Record`.
Body = Callable[[Any, Any], None]
#: ``result(arguments)`` in names of types, or a function from the names of the argument types to that, or to None.
Signature = str | Callable[..., str | None]
Fastmath = bool | frozenset[str] | set[str]


class DeviceFunction:
    """A Python function that kernels may call; it is compiled with them and always inlined."""

    def __init__(self, function: Callable[..., Any], fastmath: Fastmath = False) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.fastmath = fastmath
        #: target key -> its LLVM code for each set of argument types; freed with this object.
        self.materialised: dict[str, Any] = {}

    def __call__(self, *args: Any) -> Any:
        raise TypeError(f"{self.function.__qualname__} is a device function: only kernels can call it")

    def __repr__(self) -> str:
        return f"<device function {self.function.__module__}.{self.function.__qualname__}>"


class TypedFunction(DeviceFunction, Generic[P, R]):
    """A device function of which type checkers know what it takes and returns."""

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


class Intrinsic:
    """A function that emits its LLVM code; see :func:`intrinsic`."""

    record: type[Record] | None = None
    """What lies at the address that it returns, if a declaration says so."""

    def __init__(self, function: Callable[..., Any], signature: Signature) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.signature = signature

    def __call__(self, *args: Any) -> Any:
        raise TypeError(f"{self.function.__qualname__} is an intrinsic: only kernels can call it")

    def __repr__(self) -> str:
        return f"<intrinsic {self.function.__module__}.{self.function.__qualname__}>"


class Namespace:
    """An object, or a class, whose attributes kernels may use as they use a module's."""


class Record(Namespace):
    """Memory whose parts have names.  In a kernel an instance is an address; a subclass declares what lies there.

    Its attributes are those of the class: an intrinsic that takes an address returns what it reads there, one that
    takes more is called or indexed, a device function gets the instance as its first argument, and a
    :class:`Namespace` has further attributes, of the same address.
    """

    if TYPE_CHECKING:

        def __init__(self, address: int) -> None: ...

        def __int__(self) -> int: ...


class Compilable(Protocol):
    """The part of :class:`~ggplug_cpu.compiler.Kernel` that the front end uses."""

    name: str

    @property
    def fastmath(self) -> Fastmath: ...
    def body(self) -> Body: ...
