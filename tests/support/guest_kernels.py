"""Kernels that a guest asks the host for."""

from __future__ import annotations

import os

from ggplug_cpu.compiler import Body, kernel
from ggplug_cpu.context import store_word


@kernel
def writing(value: int) -> Body:
    def body(ctx: int, params: int) -> None:
        store_word(params, value)

    return body


@kernel
def refused_by_the_host() -> Body:
    if "GGPLUG_COMPILER" not in os.environ:
        raise ValueError("not here")

    def body(ctx: int, params: int) -> None:
        store_word(params, 3)

    return body
