"""The table of kernels: which function chooses a kernel for which op.

A chooser is ``(profile, node) -> Launches | Decline``, a pure function of the node's signature.  ``supports_op``,
``groups`` and plans all ask :func:`match`.
"""

from __future__ import annotations

from collections.abc import Callable

from ggplug.backend import Decline, Group
from ggplug.ops.base import Op
from ggplug.tensor import Tensor
from ggplug_simt.c.kernels import attention, copy, elementwise, matrix, norms, reduce, rotary, rows, sort
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import NOTHING, Launches

Chooser = Callable[[Profile, Tensor], Launches | Decline]

CHOOSERS: dict[type[Op], Chooser] = {
    op: chooser
    for family in (elementwise, copy, rows, norms, reduce, sort, attention, rotary, matrix)
    for op, chooser in family.CHOOSERS.items()
}
"""Op class -> chooser, from the families."""


def match(profile: Profile, group: Group) -> Launches | Decline:
    """The launches for a group, or why there are none."""
    if len(group) > 1:
        return Decline("every node is computed alone")
    node = group.node
    assert node.op is not None
    if node.size == 0:
        return NOTHING
    for kind in type(node.op).__mro__:
        chooser = CHOOSERS.get(kind)
        if chooser is not None:
            return chooser(profile, node)
    return Decline(f"no kernel for {node.op.name}")
