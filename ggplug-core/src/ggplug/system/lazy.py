"""Modules that are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ggplug.errors import BusyError


def whole(name: str) -> ModuleType:
    """The module of this name, imported to its end.

    Another thread that imports it is waited for.  Raises BusyError where this very thread is in the middle of importing
    it: in a signal handler, or a finalizer, that interrupted the import.
    """
    module = import_module(name)
    # What Python's own import system asks before it takes a module out of sys.modules.
    if getattr(module.__spec__, "_initializing", False):
        raise BusyError(
            f"{name} is being imported by what this call was made from within: a signal handler or a finalizer "
            "interrupted its first use",
            thing=name,
            remedy=f"do it when that has ended, or import {name} before",
        )
    return module
