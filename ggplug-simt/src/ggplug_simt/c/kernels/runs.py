"""Runs of elementwise ops in one pass."""

from __future__ import annotations

from ggplug.backend import Decline, Group
from ggplug.patterns import Names, Pattern, chain
from ggplug_simt.c.kernels.accepted import FLOATS
from ggplug_simt.c.kernels.epilogue import STEPS, GroupChooser, checked, epilogue, position
from ggplug_simt.c.launch import collapsed, launch, launches_of, units
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, Launches, argument


def fused(profile: Profile, group: Group, names: Names) -> Launches | Decline:
    """One work-item for each vec of the result; the run begins with the first source of its first op."""
    x = group.nodes[0].src[0]
    assert x is not None
    declined = checked(group, None)
    if declined is not None:
        return declined
    run = epilogue(group, x, group.nodes)
    if isinstance(run, Decline):
        return run
    if x.type not in FLOATS:
        return Decline(f"{x.type.name} is read by no run of elementwise ops")
    tensors = {"dst": argument(DST, group.node), "x": argument(position(group, x), x), **run.tensors}
    places = collapsed(list(tensors.values()), (1,) * len(tensors))
    return launches_of(
        launch(
            "elementwise",
            "map_run",
            dict(zip(tensors, places, strict=True)),
            groups=-(-units(places[0].ne, profile.vec) // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={"VEC": profile.vec, "TD": group.node.type.name, "TX": x.type.name, **run.defines},
            **run.values,
        )
    )


GROUPS: dict[Pattern, GroupChooser] = {chain("elementwise", *STEPS, inplace=True): fused}
