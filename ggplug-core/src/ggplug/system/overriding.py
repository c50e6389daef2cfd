"""Checks, when a class is made, that its methods can be called as the interface calls the ones that they override.

Otherwise core's own call would fail during a computation, with a line of core.  Positional parameters may have other
names, and there may be further parameters with defaults.
"""

from __future__ import annotations

import inspect
from functools import cache
from types import FunctionType
from typing import Any, NoReturn

from ggplug.errors import InterfaceError


class Overridable:
    """Base of the interface's classes: raises InterfaceError for a subclass with methods that do not fit theirs.

    Subclasses are compared with the classes in the modules of core that define the interface.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if _states(cls):
            return
        for base in cls.__mro__:
            for name, wanted in _members(base).items() if _states(base) else ():
                owner = next(each for each in cls.__mro__ if name in vars(each))
                if not _states(owner):
                    _check(base, wanted, owner, vars(owner)[name])


def _states(cls: type) -> bool:
    """Whether a class is one of the interface's own."""
    module = str(cls.__module__)
    stating = module in ("ggplug.backend", "ggplug.values.buffers")
    return stating or module.startswith(("ggplug.interface.", "ggplug.discrete."))


@cache
def _members(cls: type) -> dict[str, Any]:
    """The methods and properties that others may override, by name, without wrappers."""
    return {
        name: inspect.unwrap(member) if isinstance(member, FunctionType) else member
        for name, member in vars(cls).items()
        if isinstance(member, (FunctionType, property))
        and (not name.startswith("_") or getattr(member, "__isabstractmethod__", False))
    }


def _check(base: type, wanted: Any, owner: type, found: Any) -> None:
    """Raises InterfaceError if ``found``, a member of ``owner``, does not fit ``wanted``, one of the interface's."""
    named = f"{base.__name__}.{getattr(wanted, 'fget', wanted).__name__}"
    if isinstance(wanted, property):
        if isinstance(found, FunctionType):
            _refuse(owner, found, f"is a method, and {named} a property", "write @property above it")
    else:
        static = isinstance(found, staticmethod)
        function = found.__func__ if static else found
        # Other objects, such as a property that returns a function, are not checked.
        reason = _misfit(function, wanted, static=static) if isinstance(function, FunctionType) else ""
        if reason:
            names = ", ".join(inspect.signature(wanted).parameters)
            _refuse(owner, function, f"{reason} of {named}", f"the interface has {wanted.__name__}({names})")


def _misfit(found: FunctionType, wanted: FunctionType, *, static: bool) -> str:
    """Why ``found`` cannot be called like ``wanted``; empty if it can.  ``static``: without ``self``."""
    code, interface = found.__code__, wanted.__code__
    names, taken = interface.co_varnames[static : interface.co_argcount], code.co_varnames[: code.co_argcount]
    if len(taken) < len(names) and not code.co_flags & inspect.CO_VARARGS:
        return f"does not take the parameter {names[len(taken)]!r}"
    required, least = len(taken) - len(found.__defaults__ or ()), len(names) - len(wanted.__defaults__ or ())
    if required > least:
        return f"{'has no default for' if least < len(names) else 'requires'} {taken[least]!r}, unlike the parameters"
    own = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    keywords = interface.co_varnames[interface.co_argcount : interface.co_argcount + interface.co_kwonlyargcount]
    for name in keywords:
        if name not in own and name not in taken and not code.co_flags & inspect.CO_VARKEYWORDS:
            return f"does not take the parameter {name!r}"
    for name in own:
        if name not in keywords and name not in (found.__kwdefaults__ or {}):
            return f"requires {name!r}, unlike the parameters"
    return ""


def _refuse(owner: type, function: FunctionType, reason: str, remedy: str) -> NoReturn:
    code = function.__code__
    what = f"{owner.__qualname__}.{function.__name__} ({code.co_filename}:{code.co_firstlineno})"
    raise InterfaceError(f"{what} {reason}", got=function, remedy=remedy)
