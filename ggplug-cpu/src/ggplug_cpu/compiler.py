"""Compiles Python functions to machine code: the decorators for kernels, and the disk cache.

Three decorators, which only *record* the Python function.  The compiler is imported when a kernel has to be compiled,
so a process that finds all its kernels on disk never pays for it::

    from ggplug_cpu import simd
    from ggplug_cpu.compiler import Body, device_function, kernel
    from ggplug_cpu.context import thread_count, thread_index
    from ggplug_cpu.parameters import Parameters, destination, integer, real, source

    @device_function                                         # always inlined
    def square(x: simd.Vector) -> simd.Vector:
        return x * x

    class ScaleSquared(Parameters):                          # the kernel's words: see ggplug_cpu.parameters
        y = destination()
        x = source()
        vectors = integer()
        scale = real()

    @kernel                                                  # a factory: its arguments are compile-time constants
    def scale_squared(type_name: str, in_place: bool = False) -> Body:
        load = simd.load(simd.vec(type_name))                # any Python may run here, at compile time
        def body(ctx: int, p: ScaleSquared) -> None:
            x, y, scale = p.x.address, p.y.address, p.scale
            for i in range(thread_index(ctx), p.vectors, thread_count(ctx)):
                simd.store(y + 64 * i, simd.mul(square(load(x + 64 * i)), scale))
        return body

    handle = scale_squared("f32")                            # a Kernel: memoised, nothing compiled yet
    handle.name                                              # 'scale_squared[f32,False]'
    handle.address()                                         # compiled or loaded from disk on first use

What a body may consist of says :mod:`ggplug_cpu.language`: a small part of Python.  It may use its globals and its
closure; of these, numbers, device functions, intrinsics, and attributes of modules and of :class:`Namespace`.

A function that makes device functions of compile-time constants is :func:`shared`, where kernels have them in common::

    @shared
    def power(exponent):
        @device_function
        def raised(x):
            return x ** exponent
        return raised

**Intrinsics** are written in LLVM code, with llvmlite::

    @intrinsic("f32x16(f32x16, f32x16, f32x16)")             # result(arguments), by the names of types
    def fma(builder, a, x, c):
        return llvm_call(builder, "llvm.fma.v16f32", a.type, a, x, c)

Names of types are those of :mod:`ggplug_cpu.language`, and ``void`` as a result.  An argument is converted to its
declared scalar type (i64 to i32, f64 to f32).  An intrinsic for many types gives a function in place of the signature:
it receives the names of the argument types and returns a signature, or None when they do not fit, as in
``@intrinsic(lambda a, b: f"{a}({a}, {b})")``.  Immediates (a tile's number, a shuffle's pattern) come from the closure:
write a Python function that defines an intrinsic and returns it.

**Loops over scalars** are vectorised by LLVM if it can prove that addresses differ, which it can when a load is made
from a base and an index (``inttoptr`` of the base, then ``gep``), not from an address computed by integers.

Addresses are int64, loads and stores come from ``simd``.  A symbol outside the list in ``loader.py`` (libm and memcpy,
mostly) is a :class:`~ggplug.errors.KernelCompileError` at compile time.

**Floating point** is strict unless ``@kernel(fastmath=...)`` or ``@device_function(fastmath=...)`` says otherwise:
True, or a set of LLVM's flags such as ``{"contract", "reassoc"}``; it covers the decorated function's own arithmetic,
not that of the functions it calls.

**The target** is :func:`ggplug_cpu.features.target`.  Factories and intrinsics may ask ``features.has(...)``: the key
of the disk cache covers the target, so every target keeps its own code.

**The disk cache** keeps machine code.  A kernel of this package is known by its arguments and by the source of its
module and of what that imports, so it is found without the compiler.  Any other kernel is known by its LLVM code, and
so are all of them once files of this package change while a process runs: the compiler of kernels runs in every
process, and LLVM, which takes most of the time, where no process compiled the same code before.  So whatever a factory
reads (globals, files, the environment) may change from process to process.  A handle that has its code keeps it: a
value that is set later counts for the next handle.

Nothing notices that a program sets variables in the modules of this package.  A function that was edited since it was
imported is not compiled: its source is no longer that of its code.
"""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, overload

from ggplug_cpu import features
from ggplug_cpu.cache_key import key_of_code, key_of_source
from ggplug_cpu.compiling.job import Reference, reference_of
from ggplug_cpu.compiling.obtaining import FILES, CompileEvent, Progress, inspected, obtain, on_compile, translated
from ggplug_cpu.language.declarations import llvm_call
from ggplug_cpu.own_sources import is_own
from ggplug_cpu.recorded import Body, DeviceFunction, Fastmath, Intrinsic, Namespace, Record, Signature, TypedFunction

__all__ = [
    "FILES",
    "Body",
    "CompileEvent",
    "DeviceFunction",
    "Fastmath",
    "Intrinsic",
    "Kernel",
    "KernelFactory",
    "Namespace",
    "Parameter",
    "Record",
    "Signature",
    "device_function",
    "intrinsic",
    "kernel",
    "llvm_call",
    "on_compile",
    "prebuild",
    "shared",
]

#: What a kernel factory's arguments may be.
Parameter = str | int | bool | None
P = ParamSpec("P")
R = TypeVar("R")


# -- what kernels call ------------------------------------------------------------------------------


@overload
def device_function(function: Callable[P, R], /) -> TypedFunction[P, R]: ...
@overload
def device_function(*, fastmath: Fastmath = ...) -> Callable[[Callable[P, R]], TypedFunction[P, R]]: ...
def device_function(
    function: Callable[..., Any] | None = None, /, *, fastmath: Fastmath = False
) -> DeviceFunction | Callable[[Callable[..., Any]], DeviceFunction]:
    """Decorate a Python function that kernels call.  It is compiled once for each combination of argument types."""
    if function is None:
        return lambda function: TypedFunction(function, fastmath)
    return TypedFunction(function, fastmath)


def shared(maker: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that returns a device function: equal arguments return the same one again.

    Without it, every kernel compiles its own copy of the closure; with it, a process compiles one for each target.
    A program's function is called each time, because what it reads may change.
    """
    if not is_own(maker):
        return maker

    @functools.lru_cache(maxsize=None, typed=True)  # True == 1, yet they are different constants
    def known(key: str, *args: Any, **kwargs: Any) -> R:
        return maker(*args, **kwargs)

    @functools.wraps(maker)
    def made(*args: P.args, **kwargs: P.kwargs) -> R:
        return known(features.target().key, *args, **kwargs)  # type: ignore[arg-type]

    return made


def intrinsic(signature: Signature) -> Callable[[Callable[..., Any]], Intrinsic]:
    """Decorate a function ``(builder, *values)`` that emits LLVM code; see the module's docstring.

    It receives an llvmlite ``IRBuilder`` and LLVM values, and returns an LLVM value, or None for ``void``.
    """
    return lambda function: Intrinsic(function, signature)


# -- kernels ----------------------------------------------------------------------------------------


class Kernel:
    """One specialisation of a kernel: a lazy handle to a native function ``void(int64 ctx, int64 params)``."""

    def __init__(self, factory: KernelFactory, arguments: tuple[Parameter, ...]) -> None:
        self.factory = factory
        self.arguments = arguments
        #: The name in messages: ``add[f32,f32,f32]``, without empty arguments at the end.
        self.name = f"{factory.name}[{','.join(map(str, arguments)).rstrip(',')}]" if arguments else factory.name
        self.addresses: dict[str, int] = {}

    @property
    def fastmath(self) -> Fastmath:
        """LLVM's fast-math flags for the body."""
        return self.factory.fastmath

    def body(self) -> Body:
        """The Python function that is compiled; the factory is called anew."""
        return self.factory.function(*self.arguments)

    def address(self) -> int:
        """The native function's address for the current target; compiles it or loads it from disk on first use.

        Raises :class:`~ggplug.errors.KernelCompileError`, with what is wrong as ``log``.
        """
        target = features.target()
        found = self.addresses.get(target.key)
        if found is None:
            obtain((self,), target)
            found = self.addresses[target.key]
        return found

    @property
    def reference(self) -> Reference | None:
        """Where another process finds this kernel of this package to compile it; None where it does not."""
        return reference_of(self.factory, self.arguments)

    @property
    def ready(self) -> bool:
        """Whether :meth:`address` has the code in memory already."""
        return features.target().key in self.addresses

    def source_key(self) -> str:
        """The key of the disk cache by the source of this package; empty for other kernels."""
        return key_of_source(self.factory.function, self.arguments, features.target(), self.fastmath)

    def cache_key(self) -> str:
        """The key of the disk cache for the current target; hexadecimal.

        Raises :class:`~ggplug.errors.KernelCompileError` for a kernel that is known by its LLVM code and has none.
        """
        return self.source_key() or key_of_code(translated(self, features.target()), features.target())

    def assembly(self) -> str:
        """The machine code as text, compiled anew; for authors of kernels."""
        return inspected(self, features.target(), "assembly")

    def llvm_ir(self) -> str:
        """The optimised LLVM code as text, compiled anew; for authors of kernels."""
        return inspected(self, features.target(), "llvm")

    def __repr__(self) -> str:
        return f"<kernel {self.name}>"


class KernelFactory:
    """The result of :func:`kernel`: called with compile-time arguments, it returns a :class:`Kernel`."""

    def __init__(self, function: Callable[..., Body], fastmath: Fastmath) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.fastmath = fastmath
        self.name = function.__name__
        self._signature = inspect.signature(function)
        self._kernels: dict[Any, Kernel] = {}

    def __call__(self, *args: Parameter, **kwargs: Parameter) -> Kernel:
        # True == 1 and both hash alike, yet they are different constants: the types are part of the key
        memo = (args, tuple(map(type, args)), tuple(kwargs.items()), tuple(map(type, kwargs.values())))
        try:
            found = self._kernels.get(memo)
        except TypeError:  # not hashable, so not a constant: _bind says which
            found = None
        if found is None:
            found = self._kernels[memo] = self._bind(args, kwargs)
        return found

    def _bind(self, args: tuple[Parameter, ...], kwargs: dict[str, Parameter]) -> Kernel:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = tuple(bound.arguments.values())
        for name, value in bound.arguments.items():
            # A subclass may have more to it than it is equal by; members of an enumeration have not.
            if type(value) not in (str, int, bool, type(None)) and not isinstance(value, enum.IntEnum | enum.StrEnum):
                raise TypeError(
                    f"kernel {self.name}: argument {name} is {value!r}; a kernel's arguments are str, int, bool or None"
                )
            if isinstance(value, str) and not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
                raise TypeError(f"kernel {self.name}: argument {name} is {value!r}, which is no text: half a character")
        memo = (arguments, tuple(map(type, arguments)), (), ())
        return self._kernels.setdefault(memo, Kernel(self, arguments))

    def __repr__(self) -> str:
        return f"<kernel factory {self.function.__module__}.{self.name}{self._signature}>"


@overload
def kernel(function: Callable[..., Body], /) -> KernelFactory: ...
@overload
def kernel(*, fastmath: Fastmath = ...) -> Callable[[Callable[..., Body]], KernelFactory]: ...
def kernel(
    function: Callable[..., Body] | None = None, /, *, fastmath: Fastmath = False
) -> KernelFactory | Callable[[Callable[..., Body]], KernelFactory]:
    """Decorate a factory ``(compile-time arguments) -> body(ctx, params)``; see the module's docstring."""
    if function is None:
        return lambda function: KernelFactory(function, fastmath)
    return KernelFactory(function, fastmath)


def prebuild(kernels: Iterable[Kernel], progress: Progress | None = None) -> int:
    """Make every one of ``kernels`` ready to run; returns how many had to be compiled.

    ``progress``: called with how many are ready, how many there are, and the name of one that is next.
    """
    return obtain(kernels, features.target(), progress)
