"""The lightning indexer of sparse attention, and hyper-connections."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug.types import F16, F32
from ggplug_simt.c.kernels.accepted import READABLE, refuse
from ggplug_simt.c.launch import launch, launches_of, units
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, Launches, TensorArgument, argument

HEADS = 8
"""Heads for which a row of k is read once."""


def lightning_indexer(profile: Profile, node: Tensor) -> Launches | Decline:
    """dst[j, t] = sum over heads of max(q . k, 0) weight, plus the mask."""
    k = node.src[1]
    assert k is not None
    refused = refuse(node, {F32}, {F32}, READABLE, {F32}, {F16})
    if refused is not None:
        return refused
    return _launch(profile, "lightning_indexer", node, {"TK": k.type.name, "HEADS": HEADS})


def combined(profile: Profile, node: Tensor) -> Launches | Decline:
    """A matrix of 4 by 4 for each token."""
    op = node.op
    assert isinstance(op, ops.Dsv4HcComb)
    refused = refuse(node, {F32}, {F32}, {F32}, {F32})
    if refused is not None:
        return refused
    return launches_of(
        launch(
            "deepseek",
            "combine_streams",
            _tensors(node),
            groups=-(-node.ne[2] // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={"VEC": profile.vec, "UNIT": profile.vec},
            eps=op.eps,
            n_iter=op.n_iter,
        )
    )


def before(profile: Profile, node: Tensor) -> Launches | Decline:
    """The weighted sum of streams."""
    refused = refuse(node, {F32}, {F32}, {F32})
    if refused is not None:
        return refused
    return _launch(profile, "streams_before", node, {})


def gated(profile: Profile, node: Tensor) -> Launches | Decline:
    """The sum of streams, each number of them times the sigmoid of its gate, times a factor."""
    op = node.op
    assert isinstance(op, ops.Dsv4HcPreGated)
    refused = refuse(node, {F32}, {F32}, {F32})
    if refused is not None:
        return refused
    return _launch(profile, "streams_gated", node, {}, scale=op.scale)


def behind(profile: Profile, node: Tensor) -> Launches | Decline:
    """Weighted sums of streams, plus the layer's output times a weight for each."""
    refused = refuse(node, *({F32} for _ in range(5)))
    if refused is not None:
        return refused
    return _launch(profile, "streams_behind", node, {})


def _tensors(node: Tensor) -> dict[str, TensorArgument]:
    """The result, and the sources as the op calls them."""
    assert node.op is not None
    tensors = {"dst": argument(DST, node)}
    for position, (name, tensor) in enumerate(zip(node.op.sources, node.src, strict=True)):
        assert tensor is not None
        tensors[name] = argument(position, tensor)
    return tensors


def _launch(
    profile: Profile, kernel: str, node: Tensor, defines: dict[str, object], **scalars: float
) -> Launches | Decline:
    """A launch with a work-item for each unit of the result."""
    return launches_of(
        launch(
            "deepseek",
            kernel,
            _tensors(node),
            groups=-(-units(node.ne, profile.vec) // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={"VEC": profile.vec, "UNIT": profile.vec, **defines},
            **scalars,
        )
    )


CHOOSERS = {
    ops.LightningIndexer: lightning_indexer,
    ops.Dsv4HcComb: combined,
    ops.Dsv4HcPre: before,
    ops.Dsv4HcPreGated: gated,
    ops.Dsv4HcPost: behind,
}
