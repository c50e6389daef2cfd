"""Modules that are imported when they are first used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from ggplug.errors import BusyError


def whole(name: str) -> ModuleType:
    """The module of this name, completely imported.

    Waits for another thread that imports it.  Raises BusyError if this thread is importing it: in a signal handler, or
    a finalizer, that interrupted the import.
    """
    module = import_module(name)
    # What Python's own import system asks before it takes a module out of sys.modules.
    if getattr(module.__spec__, "_initializing", False):
        raise BusyError(
            f"{name} is being imported by this thread: a signal handler or a finalizer interrupted the import and "
            "needs the module",
            thing=name,
            remedy=f"import {name} before, or make the call later",
        )
    return module


def member(package: dict[str, Any], homes: Mapping[str, str], name: str) -> Any:
    """What ``__getattr__`` of a package returns: a name from the module that ``homes`` says, which is imported.

    ``package``: the package's globals, which keep it.  Raises AttributeError if ``homes`` lacks the name; BusyError.
    """
    home = homes.get(name)
    if home is None:
        raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
    value = package[name] = getattr(whole(f"{package['__name__']}.{home}"), name)
    return value
