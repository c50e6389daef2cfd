"""ggplug: tensor graphs, and so GGUF models, on whatever hardware has a pip-installable backend.

>>> import ggplug as gg
>>> w = gg.tensor([[1.0, 2.0], [3.0, 4.0]])
>>> x = gg.tensor([10.0, 20.0])
>>> gg.compute(gg.mul_mat(w, x)).numpy()
array([ 50., 110.], dtype=float32)

What builds graphs is imported here; what runs them (registry, scheduler, files) is imported when it is first used,
so that ``import ggplug`` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ggplug import errors, ops, types
from ggplug.errors import *  # noqa: F403
from ggplug.graph import Graph
from ggplug.host import asarray, tensor
from ggplug.ops import *  # noqa: F403
from ggplug.tensor import Context, Tensor, new_tensor
from ggplug.types import *  # noqa: F403

if TYPE_CHECKING:
    from ggplug import backend, gguf, host, memory, quants, registry, scheduler, testing
    from ggplug.hookspecs import hookimpl
    from ggplug.memory import allocate, allocate_graph
    from ggplug.registry import (
        device, devices, devices_by_kind, init_best, init_by_kind, init_by_name, load, load_all,
        load_all_from_path, register, register_device, unload,
    )  # fmt: skip
    from ggplug.scheduler import Scheduler, compute

__version__ = "0.1.0"

_MODULES = ("backend", "gguf", "host", "memory", "quants", "registry", "scheduler", "testing")
_LAZY = {
    **dict.fromkeys(("allocate", "allocate_graph"), "memory"),
    **dict.fromkeys(("Scheduler", "compute"), "scheduler"),
    "hookimpl": "hookspecs",
    **dict.fromkeys(
        (
            "device", "devices", "devices_by_kind", "init_best", "init_by_kind", "init_by_name", "load", "load_all",
            "load_all_from_path", "register", "register_device", "unload",
        ),
        "registry",
    ),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"ggplug.{name}")
    home = _LAZY.get(name)
    if home is None:
        raise AttributeError(f"module 'ggplug' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"ggplug.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_LAZY})
