"""The key under which :mod:`ggplug.cache` keeps a compiled kernel: a hash of everything that its code is made from.

The key covers the kernel's arguments, the target, and the versions of the compilers.  A kernel of this package is known
by the source of its module and of those that it imports (:mod:`ggplug_cpu.own_sources`), which is fast.  Any other is
known by what it is in memory (:mod:`ggplug_cpu.digests`): its file may have changed since it was imported.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable
from typing import Any

import numpy

from ggplug_cpu import features
from ggplug_cpu.digests import digest, is_own
from ggplug_cpu.own_sources import LANGUAGE, ChangedError, sources
from ggplug_cpu.recorded import Fastmath


def cache_key(
    function: Callable[..., Any], arguments: tuple[Any, ...], target: features.Target, fastmath: Fastmath = False
) -> str:
    """The key of a kernel: sixty-four hex digits, or empty where it is not known what its code is made from."""
    try:
        if is_own(function):
            made_from: str | None = f"{function.__module__} {sources(function.__module__)} {arguments!r}"
        else:
            made_from = digest(function, arguments)
        compiler = sources(LANGUAGE)
    except ChangedError:
        return ""
    if made_from is None:
        return ""
    flags = sorted(fastmath) if isinstance(fastmath, set | frozenset) else fastmath
    text = "\0".join((function.__qualname__, made_from, compiler, repr(flags), target.key, _versions()))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@functools.cache
def _versions() -> str:
    """Versions of what turns source into code."""
    import llvmlite

    return f"{sys.version}|{llvmlite.__version__}|{numpy.__version__}"
