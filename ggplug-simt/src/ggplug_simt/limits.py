"""The limits of a device that hold for any program: how launches keep to them, and why a group is declined.

A device is asked once for all groups with one signature, wherever their tensors will lie, so what a binding may need at
worst is counted: a view may begin anywhere between two multiples of ``properties.binding_step``.
"""

from __future__ import annotations

from ggplug.backend import Decline, Group
from ggplug_simt.library import DST, FAULTS, SCRATCH, Launch, Launches, TensorArgument
from ggplug_simt.properties import Properties


def beyond(properties: Properties, group: Group, found: Launches) -> Decline | None:
    """Why the device cannot run these launches of a group, or None."""
    for launch in found.launches:
        if len(launch.tensors) > properties.max_tensors:
            most = properties.max_tensors
            return Decline(f"{launch.program} has {len(launch.tensors)} tensors, the device binds at most {most}")
        if grid_of(properties, launch)[1] > properties.max_groups:
            return Decline(f"{launch.program} has {launch.groups} work-groups, more than the device's grids")
        for each in launch.tensors:
            if properties.max_binding is not None and _bytes(properties, group, each) > properties.max_binding:
                return Decline(
                    f"{launch.program} reaches {each.span} bytes of a tensor, one binding of the device has at most "
                    f"{properties.max_binding}"
                )
    return None


def grid_of(properties: Properties, launch: Launch) -> tuple[int, int]:
    """Work-groups in two dimensions, as few as hold all of the launch's."""
    rows = -(-launch.groups // properties.max_groups)
    return (launch.groups, 1) if rows <= 1 else (properties.max_groups, rows)


def _bytes(properties: Properties, group: Group, each: TensorArgument) -> int:
    """Bytes that a binding of the tensor has at most."""
    step = properties.binding_step or 1
    if each.position in (SCRATCH, FAULTS):
        start = each.delta % step
    else:
        tensor = group.operands[each.position - DST]
        assert tensor is not None
        start = each.delta % step if tensor.view_src is None else max(step - tensor.type.alignment, 0)
    return start + each.span
