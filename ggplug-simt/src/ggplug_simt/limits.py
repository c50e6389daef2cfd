"""The limits of a device for launches of any program, and the reasons to decline a group.

A device matches a group before its memory is allocated, and once for all groups with one signature, which has no
offsets of views.  So the largest binding that may be needed counts: a tensor may begin anywhere between two multiples
of ``properties.binding_step``.
"""

from __future__ import annotations

from ggplug.backend import Decline
from ggplug_simt.library import FAULTS, SCRATCH, Launch, Launches, TensorArgument
from ggplug_simt.properties import Properties


def beyond(properties: Properties, found: Launches) -> Decline | None:
    """Why the device cannot run these launches, or None."""
    for launch in found.launches:
        if len(launch.tensors) > properties.max_tensors:
            most = properties.max_tensors
            return Decline(f"{launch.program} has {len(launch.tensors)} tensors, the device binds at most {most}")
        if grid_of(properties, launch)[1] > properties.max_groups:
            return Decline(f"{launch.program} has {launch.groups} work-groups, more than the device's grids")
        for each in launch.tensors:
            if properties.max_binding is not None and _bytes(properties, each) > properties.max_binding:
                return Decline(
                    f"{launch.program} reaches {each.span} bytes of a tensor that may begin anywhere, one binding of "
                    f"the device has at most {properties.max_binding}"
                )
    return None


def grid_of(properties: Properties, launch: Launch) -> tuple[int, int]:
    """The smallest grid of work-groups in two dimensions that holds the launch's."""
    rows = -(-launch.groups // properties.max_groups)
    return (launch.groups, 1) if rows <= 1 else (properties.max_groups, rows)


def _bytes(properties: Properties, each: TensorArgument) -> int:
    """Most bytes of a binding of the tensor."""
    step = properties.binding_step or 1
    begin = each.delta % step if each.position in (SCRATCH, FAULTS) else step - 1
    return begin + each.span
