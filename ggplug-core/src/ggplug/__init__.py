"""ggplug: tensor graphs, and GGUF models, on all hardware that has a pip-installable backend.

>>> import ggplug as gg
>>> w = gg.tensor([[1.0, 2.0], [3.0, 4.0]])
>>> x = gg.tensor([10.0, 20.0])
>>> gg.compute(gg.mul_mat(w, x)).numpy()
array([ 50., 110.], dtype=float32)

Modules that build graphs are imported here; those that run them (registry, scheduler, files) are imported when they are
first used, so that ``import ggplug`` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# "X as X" marks names for type checkers as public.
from ggplug import errors as errors
from ggplug import ops as ops
from ggplug import types as types
from ggplug.errors import *  # noqa: F403
from ggplug.graph import Graph as Graph
from ggplug.host import asarray as asarray
from ggplug.host import tensor as tensor
from ggplug.ops import *  # noqa: F403
from ggplug.system.lazy import member, whole
from ggplug.tensor import Context as Context
from ggplug.tensor import Tensor as Tensor
from ggplug.tensor import new_tensor as new_tensor
from ggplug.types import *  # noqa: F403

if TYPE_CHECKING:
    from ggplug import backend as backend
    from ggplug import gguf as gguf
    from ggplug import gradients as gradients
    from ggplug import host as host
    from ggplug import memory as memory
    from ggplug import opt as opt
    from ggplug import quantizing as quantizing
    from ggplug import quants as quants
    from ggplug import registry as registry
    from ggplug import scheduler as scheduler
    from ggplug import testing as testing
    from ggplug import trace as trace
    from ggplug.gradients import grad as grad
    from ggplug.gradients import remat as remat
    from ggplug.gradients import value_and_grad as value_and_grad
    from ggplug.hookspecs import hookimpl as hookimpl
    from ggplug.immediate import compute as compute
    from ggplug.memory import allocate as allocate
    from ggplug.memory import allocate_graph as allocate_graph
    from ggplug.quants import dequantize as dequantize
    from ggplug.quants import quantize as quantize
    from ggplug.registry import device as device
    from ggplug.registry import devices as devices
    from ggplug.registry import devices_by_kind as devices_by_kind
    from ggplug.registry import init_best as init_best
    from ggplug.registry import init_by_kind as init_by_kind
    from ggplug.registry import init_by_name as init_by_name
    from ggplug.registry import load as load
    from ggplug.registry import load_all as load_all
    from ggplug.registry import load_all_from_path as load_all_from_path
    from ggplug.registry import register as register
    from ggplug.registry import register_device as register_device
    from ggplug.registry import unload as unload
    from ggplug.saved import LoadedGraph as LoadedGraph
    from ggplug.saved import load_graph as load_graph
    from ggplug.scheduler import Scheduler as Scheduler
    from ggplug.scheduler import fit_placement as fit_placement

__version__ = "0.1.0"

_MODULES = (
    "backend",
    "gguf",
    "gradients",
    "host",
    "memory",
    "opt",
    "quantizing",
    "quants",
    "registry",
    "scheduler",
    "testing",
    "trace",
)
_LAZY = {
    **dict.fromkeys(("allocate", "allocate_graph"), "memory"),
    **dict.fromkeys(("dequantize", "quantize"), "quants"),
    **dict.fromkeys(("LoadedGraph", "load_graph"), "saved"),
    **dict.fromkeys(("Scheduler", "fit_placement"), "scheduler"),
    **dict.fromkeys(("grad", "remat", "value_and_grad"), "gradients"),
    "compute": "immediate",
    "hookimpl": "hookspecs",
    **dict.fromkeys(
        (
            "device",
            "devices",
            "devices_by_kind",
            "init_best",
            "init_by_kind",
            "init_by_name",
            "load",
            "load_all",
            "load_all_from_path",
            "register",
            "register_device",
            "unload",
        ),
        "registry",
    ),
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return whole(f"ggplug.{name}")
    return member(globals(), _LAZY, name)


def __dir__() -> list[str]:
    hidden = {"Any", "TYPE_CHECKING", "annotations", "member", "whole"}
    return sorted({*globals(), *_MODULES, *_LAZY} - hidden)
