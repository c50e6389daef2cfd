"""Normalisation along rows."""

from __future__ import annotations

from collections.abc import Callable

from ggplug import ops
from ggplug.backend import Decline, Group
from ggplug.ops import Op
from ggplug.patterns import Names, Pattern, chain, of, pattern
from ggplug.tensor import Tensor
from ggplug.types import F32
from ggplug_simt.c.kernels.accepted import FLOATS, refuse
from ggplug_simt.c.kernels.copy import move
from ggplug_simt.c.kernels.epilogue import NONE, STEPS, Epilogue, GroupChooser, checked, epilogue, position, run_of
from ggplug_simt.c.launch import launch, launches_of
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, SCRATCH, Launch, Launches, TensorArgument, argument, argument_of

_VARIANTS = {ops.Norm: {"CENTRED": 1}, ops.RmsNorm: {}, ops.L2Norm: {"EUCLIDEAN": 1}}


def normalise(profile: Profile, node: Tensor) -> Launches | Decline:
    """One work-group for each row."""
    refused = refuse(node, FLOATS, FLOATS)
    if refused is not None:
        return refused
    (x,) = node.src
    assert x is not None
    return launches_of(_launch(profile, node, {"dst": argument(DST, node), "x": argument(0, x)}, {"TX": x.type.name}))


def _launch(
    profile: Profile,
    norm: Tensor,
    tensors: dict[str, TensorArgument],
    defines: dict[str, object],
    run: Epilogue = NONE,
) -> Launch | Decline:
    assert isinstance(norm.op, ops.RowNorm)
    return launch(
        "norms",
        "normalise",
        {**tensors, **run.tensors},
        groups=norm.nrows,
        lanes=profile.row_lanes,
        defines={
            "VEC": profile.vec,
            "TD": norm.type.name,
            **defines,
            **_VARIANTS[type(norm.op)],
            **run.defines,
        },
        eps=norm.op.eps,
        **run.values,
    )


def group_norm(profile: Profile, node: Tensor) -> Launches | Decline:
    """Groups of channels of a contiguous tensor are rows, one group of work-items each."""
    refused = refuse(node, FLOATS, FLOATS)
    if refused is not None:
        return refused
    op, x = node.op, node.src[0]
    assert isinstance(op, ops.GroupNorm)
    assert x is not None
    position, kind = 0, x.type
    nb = node.nb  # not x's: along extents of one a contiguous tensor has any strides
    launches: list[Launch | Decline] = []
    if not x.is_contiguous():
        position = SCRATCH
        packed = argument_of(SCRATCH, kind, x.ne, nb)._replace(written=True)
        launches.append(move(profile, kind, packed, argument(0, x)))
    n0, n1, channels, batches = node.ne
    each = min(op.channels(x), channels)
    for first, count, groups in ((0, each, channels // each), (channels // each * each, channels % each, 1)):
        if count:
            ne, strides = (n0 * n1 * count, groups, batches, 1), (nb[0], nb[2] * count, nb[3], nb[3] * batches)
            tensors = {
                "dst": argument_of(DST, node.type, ne, strides, first * nb[2]),
                "x": argument_of(position, kind, ne, strides, first * nb[2]),
            }
            launches.append(
                launch(
                    "norms",
                    "normalise",
                    tensors,
                    groups=groups * batches,
                    lanes=profile.row_lanes,
                    defines={"VEC": profile.vec, "TD": node.type.name, "TX": kind.name, "CENTRED": 1},
                    eps=op.eps,
                )
            )
    return launches_of(*launches, scratch=node.nbytes if position == SCRATCH else 0)


def fused(profile: Profile, group: Group, names: Names) -> Launches | Decline:
    """A norm of x, or of x + y, and a run of elementwise ops on its rows (scale and shift); x + y may be stored,
    too.
    """
    norm, total, x = names["norm"], names.get("add"), names["x"]
    declined = checked(group, total)
    if total is None:
        run = epilogue(group, norm, run_of(group, [norm]))
    else:
        run = epilogue(group, norm, run_of(group, [total, norm]), {total: "value"})
    if declined is not None:
        return declined
    if isinstance(run, Decline):
        return run
    if norm.type is not F32 or x.type not in FLOATS:
        return Decline(f"a norm of {x.type.name} is computed by itself")
    tensors = {"dst": argument(DST, group.node), "x": argument(position(group, x), x)}
    defines: dict[str, object] = {"TX": x.type.name}
    if total is not None:
        y = names["y"]
        if x.type is not F32 or y.type not in FLOATS or x.ne != total.ne or y.ne != total.ne:
            return Decline("a sum that is normalised is one of f32, and of equal extents")
        tensors["y"] = argument(position(group, y), y)
        defines |= {"ADDED": 1, "TY": y.type.name}
        if group.kept[next(n for n, node in enumerate(group.nodes) if node is total)]:
            tensors["kept"] = argument(position(group, total), total)._replace(written=True)
            defines["KEPT"] = 1
    return launches_of(_launch(profile, norm, tensors, defines, run))


NORM, ADD = of(*_VARIANTS, name="norm"), of(ops.Add)

GROUPS: dict[Pattern, GroupChooser] = {
    chain("add_norm_run", *STEPS, start=lambda x, y: NORM(ADD(x, y))): fused,
    pattern("add_norm", lambda x, y: NORM(ADD(x, y))): fused,
    chain("norm_run", *STEPS, start=lambda x: NORM(x), inplace=True): fused,
}

CHOOSERS: dict[type[Op], Callable[[Profile, Tensor], Launches | Decline]] = {
    **dict.fromkeys(_VARIANTS, normalise),
    ops.GroupNorm: group_norm,
}
