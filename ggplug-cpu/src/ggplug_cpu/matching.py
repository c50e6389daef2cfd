"""Finds the kernels for a group in the tables of the families (:mod:`ggplug_cpu.ops`).

Support queries and plans both call :func:`match`.  The first chooser that fits and does not return a
:class:`~ggplug.backend.Decline` decides.
"""

from __future__ import annotations

import gc
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from ggplug.backend import Decline, Group
from ggplug.patterns import Pattern
from ggplug.tensor import Operation, Tensor
from ggplug_cpu import features, ops
from ggplug_cpu.choosing.chooser import Chooser, GroupChooser
from ggplug_cpu.choosing.entries import Entries
from ggplug_cpu.packed import PackedBufferType


def _tables() -> dict[str, ModuleType]:
    """Family -> the module that has its tables."""
    found: dict[str, ModuleType] = {}
    collects = gc.isenabled()
    gc.disable()  # all that is made here stays: to search it for garbage costs milliseconds and finds none
    try:
        for each in sorted(pkgutil.iter_modules(ops.__path__), key=lambda each: each.name):
            found[each.name] = importlib.import_module(f"{ops.__name__}.{each.name}{'.choosers' if each.ispkg else ''}")
    finally:
        if collects:
            gc.enable()
    return found


_TABLES = _tables()

#: The families that have groups, in the order of preference: longer groups before those that they contain.
_PREFERRED = ("attention", "feed_forward", "norms", "rotary", "mul_mat", "elementwise")

CHOOSERS: tuple[Chooser, ...] = tuple(
    chooser for module in _TABLES.values() for chooser in getattr(module, "CHOOSERS", ())
)
"""The choosers of single nodes, from the families."""

GROUPS: dict[Pattern, GroupChooser] = {
    pattern: choose for family in _PREFERRED for pattern, choose in _TABLES[family].GROUPS.items()
}
"""The choosers of groups of several nodes.  Graphs are searched from the end; a node joins the first group found."""


def choosers_of(kind: type[Operation]) -> Iterator[Chooser]:
    """The choosers of an op's class, in order."""
    for each in CHOOSERS:
        if each.op in kind.kinds:
            yield each


def match(group: Group) -> Entries | Decline:
    """The entries that compute a group, or why it declines.

    A pure function of :func:`~ggplug.nodes.groups.signature_of`.
    """
    packed = _unreadable_layout(group)
    if packed is not None:
        return packed
    if len(group) > 1:
        return _match_several(group)
    node = group.node
    op = node.op
    assert op is not None
    if nothing_to_do(node):
        return Entries(())
    reason = ""
    for each in choosers_of(type(op)):
        if each.takes(node):
            chosen = each.choose(node)
            if not isinstance(chosen, Decline):
                return chosen
            reason = reason or chosen.reason
    return Decline(reason or _refusal(node, op))


def _unreadable_layout(group: Group) -> Decline | None:
    """Why a group is declined, if it reads or writes memory in a packed layout that its kernels do not know."""
    for node in group.nodes:
        for i, source in enumerate(node.src):
            kind = None if source is None else source.root.buffer_type
            if kind is None or not kind.has_own_layout or source is None or node.op is None:
                continue
            if all(each.packed != i for each in choosers_of(type(node.op))):
                return Decline(f"{node.op.name} on the CPU reads its source {i} as plain bytes, not in {kind.name}")
            if source.view_src is not None:
                return Decline(f"{node.op.name} on the CPU reads no view of a tensor in {kind.name}")
            if not isinstance(kind, PackedBufferType) or kind.target != features.target():
                return Decline(f"weights in {kind.name} were not packed for the instructions that are used now")
    return None


def _match_several(group: Group) -> Entries | Decline:
    reason = ""
    for pattern, choose in GROUPS.items():
        names = pattern.names(group)
        if names is not None:
            chosen = choose(group, names)
            if not isinstance(chosen, Decline):
                return chosen
            reason = reason or chosen.reason
    together = ", ".join(node.op.name for node in group.nodes if node.op is not None)
    return Decline(reason or f"the CPU device does not compute {together} together")


def nothing_to_do(node: Tensor) -> bool:
    """Whether a node has no elements, or writes no elements; choosers get no such nodes."""
    assert node.op is not None
    if 0 in node.ne:
        return True
    return bool(node.op.writes) and any(s is not None and 0 in s.ne for s in node.src)


def _refusal(node: Tensor, op: Operation) -> str:
    takes = [each.types for each in choosers_of(type(op))]
    if not takes:
        return f"the CPU device has no kernel for {op.name}"
    types = " ".join("-" if s is None else s.type.name for s in node.src)
    return f"the CPU device's {op.name} does not take {types} > {node.type.name}, but {', '.join(takes)}"
