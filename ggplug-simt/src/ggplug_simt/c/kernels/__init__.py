"""The table of choosers of all families.

A chooser is ``(profile, node) -> Launches | Decline``, a pure function of the node's signature.  Choosers of
patterns, the chains of ops that one kernel computes, also get the tensors that the pattern names.
``supports_op``, ``groups`` and plans all call :func:`match`.
"""

from __future__ import annotations

from collections.abc import Callable

from ggplug.backend import Decline, Group
from ggplug.ops.base import Op
from ggplug.patterns import Pattern
from ggplug.tensor import Tensor
from ggplug_simt.c.kernels import (
    attention,
    copy,
    deepseek,
    elementwise,
    generated,
    gradients,
    images,
    matrix,
    norms,
    out_prod,
    python,
    recurrent,
    reduce,
    rotary,
    rows,
    runs,
    sort,
    training,
    triangles,
    windows,
)
from ggplug_simt.c.kernels.epilogue import GroupChooser
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import NOTHING, Launches

Chooser = Callable[[Profile, Tensor], Launches | Decline]

_FAMILIES = (
    attention,
    copy,
    deepseek,
    elementwise,
    generated,
    gradients,
    images,
    matrix,
    norms,
    out_prod,
    python,
    recurrent,
    reduce,
    rotary,
    rows,
    sort,
    training,
    triangles,
    windows,
)

CHOOSERS: dict[type[Op], Chooser] = {op: chooser for family in _FAMILIES for op, chooser in family.CHOOSERS.items()}
"""Op class -> chooser, from the families."""

GROUPS: dict[Pattern, GroupChooser] = {
    each: chooser for family in (matrix, norms, rotary, runs) for each, chooser in family.GROUPS.items()
}
"""Pattern -> chooser for groups of several nodes, the preferred ones first."""


def match(profile: Profile, group: Group) -> Launches | Decline:
    """The launches for a group, or why there are none."""
    if len(group) > 1:
        for each, choose in GROUPS.items():
            names = each.names(group)
            if names is not None:
                return choose(profile, group, names)
        return Decline("these nodes are computed one by one")
    node = group.node
    assert node.op is not None
    if node.size == 0:
        return NOTHING
    for kind in node.op.kinds:
        chooser = CHOOSERS.get(kind)
        if chooser is not None:
            return chooser(profile, node)
    return Decline(f"no kernel for {node.op.name}")
