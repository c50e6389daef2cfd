"""What overrides a method of the interface can be called as the interface says; asked when a class is made.

Otherwise core's own call would fail, in a computation and with a line of core.  Only that is asked: parameters may have
other names where they are given by position, and there may be further ones that nobody has to give.
"""

from __future__ import annotations

import inspect
from functools import cache
from types import FunctionType
from typing import Any, NoReturn

from ggplug.errors import InterfaceError


class Overridable:
    """A base of the interface's classes: raises InterfaceError for a subclass whose methods do not fit theirs.

    The classes of modules that core states the interface in are what others are compared with.
    """

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
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
    """The methods and properties that others may override, by name, out of what wraps them."""
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
        # Whatever else there may be in its place, such as a property, says itself what its value takes.
        reason = _misfit(function, wanted, static=static) if isinstance(function, FunctionType) else ""
        if reason:
            names = ", ".join(inspect.signature(wanted).parameters)
            _refuse(owner, function, f"{reason} of {named}", f"the interface has {wanted.__name__}({names})")


def _misfit(found: FunctionType, wanted: FunctionType, *, static: bool) -> str:
    """How ``found`` cannot be called as ``wanted`` can; an empty string if it can.  ``static``: without ``self``."""
    code, asked = found.__code__, wanted.__code__
    names, given = asked.co_varnames[static : asked.co_argcount], code.co_varnames[: code.co_argcount]
    if len(given) < len(names) and not code.co_flags & inspect.CO_VARARGS:
        return f"does not take the parameter {names[len(given)]!r}"
    demanded, least = len(given) - len(found.__defaults__ or ()), len(names) - len(wanted.__defaults__ or ())
    if demanded > least:
        return f"{'has no default for' if least < len(names) else 'demands'} {given[least]!r}, unlike the parameters"
    own = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    keywords = asked.co_varnames[asked.co_argcount : asked.co_argcount + asked.co_kwonlyargcount]
    for name in keywords:
        if name not in own and name not in given and not code.co_flags & inspect.CO_VARKEYWORDS:
            return f"does not take the parameter {name!r}"
    for name in own:
        if name not in keywords and name not in (found.__kwdefaults__ or {}):
            return f"demands {name!r}, unlike the parameters"
    return ""


def _refuse(owner: type, function: FunctionType, reason: str, remedy: str) -> NoReturn:
    code = function.__code__
    what = f"{owner.__qualname__}.{function.__name__} ({code.co_filename}:{code.co_firstlineno})"
    raise InterfaceError(f"{what} {reason}", got=function, remedy=remedy)
