"""Bodies of kernels that a test compiles and calls without a tape."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from ggplug_cpu.compiler import Body, kernel


def made_of(body: Callable[..., Any], fastmath: Any = False) -> Any:
    """A kernel without arguments whose body is ``body``."""

    def factory() -> Body:
        return body

    factory.__name__ = factory.__qualname__ = body.__name__
    return kernel(fastmath=fastmath)(factory)()


def run(body: Callable[..., Any], *words: float, results: int = 1, type: Any = np.int64) -> list[Any]:
    """What a body writes behind its parameters, as many words as there are results."""
    parameters = np.zeros(len(words) + results, np.int64)
    for i, each in enumerate(words):
        parameters[i : i + 1].view(np.float64 if isinstance(each, float) else np.int64)[0] = each
    native = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(made_of(body).address())
    native(0, parameters.ctypes.data)
    return parameters[len(words) :].view(type).tolist()  # type: ignore[no-any-return]
