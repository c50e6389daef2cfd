"""The variables of one function: each has one type, and a place in memory that LLVM turns into registers."""

# llvmlite is untyped
# mypy: allow-untyped-calls

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from llvmlite import ir

from ggplug_cpu.language.arithmetic import as_type
from ggplug_cpu.language.names import Type, keeps, llvm_type, spelled
from ggplug_cpu.language.sources import Refusal
from ggplug_cpu.language.values import (
    Computed,
    Known,
    Several,
    Value,
    declared,
    described,
    kind_described,
    kind_of,
    known,
    tuple_described,
    type_of,
)


@dataclass(frozen=True, slots=True)
class _Place:
    """Memory of a number or a vector.  ``kind``: as that of :class:`~ggplug_cpu.language.values.Declared`."""

    type: str
    ir: ir.Value
    kind: Any = None


@dataclass(frozen=True, slots=True)
class _Tuple:
    """What the elements of a tuple stand for.  ``kind``: as that of :class:`~ggplug_cpu.language.values.Several`."""

    items: tuple[_Variable, ...]
    kind: Any


#: What a name stands for.
_Variable: TypeAlias = "_Place | Known | _Tuple"


class Scope:
    """What the names in one function stand for, at the place that is being compiled."""

    def __init__(self, b: ir.IRBuilder, function: Callable[..., Any]) -> None:
        self._b = b
        self._variables: dict[str, _Variable] = {}
        #: Names that are set on every way to here.
        self.set: frozenset[str] = frozenset()
        self._own = frozenset(function.__code__.co_varnames + function.__code__.co_cellvars)
        cells = function.__closure__ or ()
        self._free = dict(zip(function.__code__.co_freevars, cells, strict=True))
        self._globals = function.__globals__

    def read(self, name: str) -> Value:
        """The value of a name.  Raises Refusal for one that has none, or not on every way to here."""
        variable = self._variables.get(name)
        if name in self.set:
            assert variable is not None
            return self._load(variable)
        if variable is not None:
            raise Refusal(
                f"{name} is not set on every way to here", f"set {name} before the branch or the loop that sets it"
            )
        if name in self._own:
            raise Refusal(
                f"{name} is not set before it is read",
                "a function that sets a name never reads a global of that name: give the variable another one",
            )
        if name in self._free:
            try:
                return known(self._free[name].cell_contents)
            except ValueError:  # the enclosing function sets it later
                raise Refusal(f"{name} has no value yet", "set it before the kernel is made") from None
        for names in (self._globals, vars(builtins)):
            if name in names:
                return known(names[name])
        raise Refusal(
            f"there is no {name}", "kernels see their own variables, those of enclosing functions, and globals"
        )

    def write(self, name: str, value: Value) -> None:
        """Sets a variable.  Raises Refusal where it would change its type."""
        variable = self._variables.get(name)
        if variable is None:
            variable = self._variables[name] = self._placed(name, value)
        self._store(name, variable, value)
        self.set |= {name}

    def know(self, name: str, value: Known) -> None:
        """A parameter that is known in the whole function, which does not set it."""
        self._variables[name] = value
        self.set |= {name}

    def place(self, type: Type, name: str) -> ir.Value:
        """Memory for one value, reserved when the function is entered."""
        with self._b.goto_entry_block():
            return self._b.alloca(llvm_type(type), name=name)

    def _placed(self, name: str, value: Value) -> _Variable:
        if isinstance(value, Several):
            items = tuple(self._placed(f"{name}.{i}", item) for i, item in enumerate(value.items))
            return _Tuple(items, value.kind)
        if isinstance(value, Known) and not value.is_number:
            return value
        type = type_of(value)
        assert isinstance(type, str)
        return _Place(type, self.place(type, name), kind_of(value))

    def _load(self, variable: _Variable) -> Value:
        if isinstance(variable, _Place):
            return declared(Computed(variable.type, self._b.load(variable.ir)), variable.kind)
        if isinstance(variable, Known):
            return variable
        return Several(tuple(map(self._load, variable.items)), variable.kind)

    def _store(self, name: str, variable: _Variable, value: Value) -> None:
        if isinstance(variable, _Place):
            if not isinstance(value, Known) or value.is_number:
                type = type_of(value)
                fits = type == variable.type or keeps(type, variable.type)
                if fits and variable.kind in (None, kind_of(value)):
                    converted = as_type(self._b, value, variable.type)
                    assert isinstance(converted, Computed)
                    self._b.store(converted.ir, variable.ir)
                    return
        elif isinstance(variable, Known):
            if isinstance(value, Known) and variable.value is value.value:
                return
        elif isinstance(value, Several) and (len(value.items), value.kind) == (len(variable.items), variable.kind):
            for part, item in zip(variable.items, value.items, strict=True):
                self._store(name, part, item)
            return
        raise Refusal(
            f"{name} changes from {self._described(variable)} to {described(value)}",
            "give what has another type another name",
        )

    def _described(self, variable: _Variable) -> str:
        if isinstance(variable, Known):
            return described(variable)
        if isinstance(variable, _Tuple):
            return tuple_described(variable.items, variable.kind)
        return f"a value of type {spelled(variable.type)}" if variable.kind is None else kind_described(variable.kind)
