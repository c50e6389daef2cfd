"""What a Python function is made from, as it is in memory: its code, and the values that it reads.

A global or an attribute counts when the function names it; a function that it names counts with all that this one reads
in turn.  Modules of Python, NumPy and llvmlite count by their versions, those of this package by their source.
"""

from __future__ import annotations

import builtins
import dis
import functools
import hashlib
import importlib.util
import os
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GenericAlias,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    UnionType,
    WrapperDescriptorType,
)
from typing import Any

from ggplug_cpu.own_sources import PACKAGE, ChangedError, sources

#: Distributions that are known by their version.
_VERSIONED = ("numpy", "llvmlite")
_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_LIBRARY = os.path.dirname(os.__file__)
#: Names of what finds values that no code names: what is read so cannot be known.
_UNSEEN = frozenset(
    (
        *("__dict__", "__import__", "environ", "eval", "exec", "getattr", "getenv", "globals", "import_module"),
        *("locals", "modules", "open", "vars"),
    )
)
#: Functions of these, which may have other names in a program.
_READERS = (eval, exec, getattr, globals, locals, open, vars, __import__, importlib.import_module, os.getenv)
#: Python's flag of classes that are not compiled into it or a library.
_MADE_BY_A_PROGRAM = 1 << 9
#: Attributes of this package's objects that hold what was made before.
_MADE = frozenset(("addresses", "materialised", "_kernels", "_signature", "__wrapped__", "__annotations__"))
#: Attributes of classes that no code depends on, or that Python sets as it needs them.
_DESCRIBING = frozenset(
    (
        *("__dict__", "__doc__", "__firstlineno__", "__module__", "__slotnames__", "__static_attributes__"),
        *("__weakref__", "_abc_impl"),
    )
)


class _UnknownError(Exception):
    """It cannot be known what a value consists of."""


def digest(*values: Any) -> str | None:
    """A digest of functions or of other values; None where it cannot be known what they read.

    Raises :class:`~ggplug_cpu.own_sources.ChangedError`.
    """
    found = _Digest()
    try:
        for value in values:
            found.add(value)
    except ChangedError:
        raise
    except Exception:  # _UnknownError, and what attributes of a program's objects raise when they are read
        return None
    return found.hash.hexdigest()


def state(function: Callable[..., Any]) -> str | None:
    """Changes when a function, or what it reads, changes, which those of this package do not; None: not known."""
    if is_own(function):
        return ""
    try:
        return digest(function)
    except ChangedError:
        return None


def is_own(function: Callable[..., Any]) -> bool:
    """Whether a module of this package defines the function, and no other function does."""
    if not isinstance(function, FunctionType) or function.__closure__:
        return False
    return _is_of(function.__globals__, PACKAGE) and "<locals>" not in function.__qualname__


def code_parts(code: CodeType) -> tuple[Any, ...]:
    """What code consists of, without the lines where it stands."""
    constants = tuple(code_parts(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return code.co_name, code.co_code, constants, names, counts, getattr(code, "co_exceptiontable", b"")


def _is_of(names: Mapping[str, Any], package: str) -> bool:
    """Whether these are the names of a module in ``package``, and not of another that says so."""
    name = str(names.get("__name__"))
    return name.partition(".")[0] == package and getattr(sys.modules.get(name), "__dict__", None) is names


def _is_versioned(module: object) -> bool:
    """Whether a module of this name is known by a version."""
    top = str(module).partition(".")[0]
    if top in _VERSIONED:
        return True
    if top not in sys.stdlib_module_names:
        return False
    spec = getattr(sys.modules.get(top), "__spec__", None) or importlib.util.find_spec(top)
    file = spec and spec.has_location and spec.origin  # a program may have a module of the same name
    return not file or file.startswith(_LIBRARY)


def _is_of_a_versioned(names: Mapping[str, Any]) -> bool:
    """Whether these are the names of a module that is known by a version."""
    name = str(names.get("__name__"))
    return _is_versioned(name) and getattr(sys.modules.get(name), "__dict__", None) is names


class _Digest:
    """A hash to which values are added."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._seen: dict[int, tuple[int, Any]] = {}
        self._modules: set[tuple[int, frozenset[str]]] = set()

    def _text(self, *parts: str | bytes) -> None:
        for part in parts:
            content = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            self.hash.update(struct.pack("<q", len(content)) + content)

    def add(self, value: Any) -> None:
        """Adds a value.  Raises _UnknownError."""
        kind = type(value)
        self._text(kind.__module__, kind.__qualname__)
        if value is None or value is Ellipsis or value is NotImplemented or kind is bool:
            self._text(repr(value))
        elif kind in (str, bytes):
            self._text(value)
        elif kind is int:
            self._text(hex(value))
        elif kind is float:
            self._text(struct.pack("<d", value))
        elif kind is complex:
            self._text(struct.pack("<dd", value.real, value.imag))
        elif kind is tuple:
            self._all(value)
        elif kind in (set, frozenset):
            self._set(value)
        elif id(value) in self._seen:
            self._text(f"again {self._seen[id(value)][0]}")
        else:
            self._seen[id(value)] = len(self._seen), value  # kept, so that no other gets its id
            self._add_object(value)

    def _all(self, values: Iterable[Any]) -> None:
        values = tuple(values)
        self._text(str(len(values)))
        for each in values:
            self.add(each)

    def _set(self, values: Iterable[Any]) -> None:
        """A set has no order: that of its elements is made from them."""
        if not all(isinstance(each, str | bytes | int | float | None) for each in values):
            raise _UnknownError
        self._all(sorted(values, key=lambda each: (type(each).__name__, repr(each))))

    def _add_object(self, value: Any) -> None:
        if any(value is each for each in _READERS):
            raise _UnknownError
        match value:
            case FunctionType():
                self._function(value)
            case type():
                self._class(value)
            case dict() | MappingProxyType() if type(value) in (dict, MappingProxyType):
                self._all(value.items())
            case list() if type(value) is list:
                self._all(value)
            case staticmethod() | classmethod():
                self.add(value.__func__)
            case property():
                self._all((value.fget, value.fset, value.fdel))
            case MethodType():
                self._all((value.__func__, value.__self__))
            case BuiltinFunctionType() if isinstance(value.__self__, ModuleType | None):
                self._compiled(value.__module__, value.__qualname__)
            case BuiltinFunctionType():
                self._all((value.__qualname__, value.__self__))
            case WrapperDescriptorType() | MethodDescriptorType() | ClassMethodDescriptorType():
                self._compiled(value.__objclass__.__module__, value.__qualname__)
            case GetSetDescriptorType() | MemberDescriptorType():
                self._all((value.__qualname__, value.__objclass__))
            case functools._lru_cache_wrapper():
                self._cached(value)
            case ModuleType():
                self._module(value, None)
            case GenericAlias() | UnionType():
                self._text(repr(value))
            case _ if type(value).__module__ == "typing":
                self._text(repr(value))
            case _:
                self._instance(value)

    def _compiled(self, module: object, name: str) -> None:
        """Adds a function that is written in C, which is known by its module's version alone."""
        if not _is_versioned(module):
            raise _UnknownError
        self._text(str(module), name)

    def _function(self, function: FunctionType) -> None:
        code, names = function.__code__, function.__globals__
        own = _is_of(names, PACKAGE)  # its code is in the source
        parts = code.co_firstlineno if own else code_parts(code)
        self.add((names.get("__name__"), function.__qualname__, parts))
        self.add((function.__defaults__, function.__kwdefaults__))
        self.add({name: value for name, value in vars(function).items() if name != "__wrapped__"})
        read = _names(code)
        for cell in function.__closure__ or ():
            try:
                self._variable(cell.cell_contents, read)
            except ValueError:  # the enclosing function sets it later
                self._text("empty")
        if own:
            self._text(sources(names["__name__"]))
        elif not _is_of_a_versioned(names):
            self._globals(function, read)

    def _globals(self, function: FunctionType, read: frozenset[str]) -> None:
        if read & _UNSEEN:
            raise _UnknownError
        self._imports(function.__code__)
        try:
            annotated = {name: kind for name, kind in function.__annotations__.items() if isinstance(kind, str)}
        except NameError as error:  # annotations are computed when they are read
            raise _UnknownError from error
        self.add(annotated)
        # annotations of the functions in it are constants of its code: the classes that they name count
        classes = {*annotated.values(), *_strings(function.__code__)}
        for name in sorted(read | classes):
            value = function.__globals__.get(name, self)
            if value is not self and (name in read or isinstance(value, type)):
                self._text(name)
                self._variable(value, read)

    def _imports(self, code: CodeType) -> None:
        """Adds what a function imports when it is called."""
        for each in codes(code):
            if _IMPORT_NAME not in each.co_code[::2]:
                continue
            before: list[Any] = [None, None]
            for instruction in dis.get_instructions(each):
                if instruction.opname == "IMPORT_NAME":
                    module, (level, names) = instruction.argval, before
                    if level == 0 and module.partition(".")[0] == PACKAGE:
                        self._all(sources(name) for name in (module, *(f"{module}.{name}" for name in names or ())))
                    elif level != 0 or not _is_versioned(module):
                        raise _UnknownError
                before = [before[1], instruction.argval]

    def _variable(self, value: Any, read: frozenset[str]) -> None:
        """Adds what a name stands for in a function that reads the names ``read``."""
        if isinstance(value, ModuleType):
            self._module(value, read)
        else:
            self.add(value)

    def _module(self, module: ModuleType, read: frozenset[str] | None) -> None:
        """Adds the attributes ``read`` of a module; None: those that are read are not known."""
        names = vars(module)
        self._text(module.__name__)
        if _is_of_a_versioned(names):
            return
        own = _is_of(names, PACKAGE)
        if own:
            self._text(sources(module.__name__))
        elif read is None or "__getattr__" in names:
            raise _UnknownError
        if read is None or (id(module), read) in self._modules:
            return
        self._modules.add((id(module), read))
        for name in sorted(read & names.keys()):
            if not own or isinstance(names[name], ModuleType):
                self._text(name)
                self._variable(names[name], read)

    def _class(self, kind: type) -> None:
        self._text(kind.__module__, kind.__qualname__)
        names = vars(sys.modules.get(kind.__module__, builtins))
        of_module = names.get(kind.__qualname__) is kind
        if of_module and _is_of(names, PACKAGE):
            self._text(sources(kind.__module__))
            return
        if (of_module or not kind.__flags__ & _MADE_BY_A_PROGRAM) and _is_versioned(kind.__module__):
            return
        self.add(kind.__bases__)
        self.add(type(kind))
        for name, value in vars(kind).items():
            if name not in _DESCRIBING and not name.startswith("__annot"):
                self._text(name)
                self.add(value)

    def _cached(self, function: Any) -> None:
        """What it returned before may be of other values than those that it would read now."""
        wrapped = function.__wrapped__
        names = getattr(wrapped, "__globals__", {})
        if not (_is_of(names, PACKAGE) or _is_of_a_versioned(names)):
            raise _UnknownError
        self.add(wrapped)

    def _instance(self, value: Any) -> None:
        kind = type(value)
        self.add(kind)
        own = _is_of(vars(sys.modules.get(kind.__module__, builtins)), PACKAGE)
        if hasattr(value, "__dict__"):
            made = _MADE if own else frozenset()
            self.add({name: each for name, each in vars(value).items() if name not in made})
            if made & vars(value).keys():
                return
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as error:
            raise _UnknownError from error
        if isinstance(reduced, str):
            self._text(reduced)
            return
        for part in reduced:
            self.add(list(part) if isinstance(part, Iterator) else part)


def codes(code: CodeType) -> Iterator[CodeType]:
    """Code, and that of the functions in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes(each)


def _names(code: CodeType) -> frozenset[str]:
    """The globals and attributes that code names."""
    return frozenset(name for each in codes(code) for name in each.co_names)


def _strings(code: CodeType) -> Iterator[str]:
    for each in codes(code):
        for constant in each.co_consts:
            yield from (part for part in (constant if type(constant) is tuple else (constant,)) if type(part) is str)
