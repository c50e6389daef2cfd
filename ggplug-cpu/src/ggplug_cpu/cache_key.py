"""The keys under which :mod:`ggplug.cache` keeps compiled kernels.

A kernel of this package is known by its arguments and by the source of its module and of those that it imports
(:mod:`ggplug_cpu.own_sources`), which is fast.  Any other is known by its LLVM code, which says all that its machine
code depends on, whatever the kernel was made from.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable
from typing import Any

import numpy

from ggplug_cpu import features
from ggplug_cpu.own_sources import LANGUAGE, ChangedError, is_own, sources
from ggplug_cpu.recorded import Fastmath


def key_of_source(
    function: Callable[..., Any], arguments: tuple[Any, ...], target: features.Target, fastmath: Fastmath = False
) -> str:
    """The key of a kernel of this package; empty for other kernels, and where files of this package have changed."""
    if not is_own(function):
        return ""
    try:
        made_from = f"{function.__module__} {sources(function.__module__)} {sources(LANGUAGE)}"
    except ChangedError:
        return ""
    flags = sorted(fastmath) if isinstance(fastmath, set | frozenset) else fastmath
    return _key(function.__qualname__, repr(arguments), made_from, repr(flags), target.key)


def key_of_code(code: str, target: features.Target) -> str:
    """The key of a kernel by its LLVM code, before it is optimised."""
    return _key(code, target.key)


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join((*parts, _versions())).encode("utf-8", "surrogatepass")).hexdigest()


@functools.cache
def _versions() -> str:
    """Versions of what turns source into code."""
    import llvmlite

    return f"{sys.version}|{llvmlite.__version__}|{numpy.__version__}"
