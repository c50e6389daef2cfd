"""Losses, and steps of optimisers."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor, contiguous_strides
from ggplug.types import F32
from ggplug_simt.c.kernels.accepted import refuse
from ggplug_simt.c.kernels.reduce import add_up
from ggplug_simt.c.launch import launch, launches_of
from ggplug_simt.c.profile import Profile
from ggplug_simt.library import DST, NOTHING, SCRATCH, Launches, argument, argument_of


def cross_entropy_loss(profile: Profile, node: Tensor) -> Launches | Decline:
    """The loss of each row into scratch memory, and their sum."""
    refused = refuse(node, {F32}, {F32}, {F32})
    if refused is not None:
        return refused
    logits, labels = node.src
    assert logits is not None
    assert labels is not None
    ne = (logits.nrows, 1, 1, 1)
    losses = argument_of(SCRATCH, F32, ne, contiguous_strides(F32, ne))
    if not logits.size:
        losses = losses._replace(ne=(0, 1, 1, 1), span=0)  # the sum of nothing
    total = add_up(profile, argument(DST, node), F32, losses, F32, 1.0 / max(1, logits.nrows))
    if not logits.size:
        return launches_of(total, scratch=4)
    each = launch(
        "training",
        "cross_entropy",
        {"dst": losses._replace(written=True), "logits": argument(0, logits), "labels": argument(1, labels)},
        groups=logits.nrows,
        lanes=profile.row_lanes,
        defines={"VEC": profile.vec},
    )
    return launches_of(each, total, scratch=4 * logits.nrows)


def cross_entropy_loss_back(profile: Profile, node: Tensor) -> Launches | Decline:
    """The gradient of the loss: one work-group for each row."""
    refused = refuse(node, {F32}, {F32}, {F32}, {F32})
    if refused is not None:
        return refused
    tensors = {"dst": argument(DST, node)}
    for position, (name, each) in enumerate(zip(("dy", "logits", "labels"), node.src, strict=True)):
        assert each is not None
        tensors[name] = argument(position, each)
    return launches_of(
        launch(
            "training",
            "cross_entropy_back",
            tensors,
            groups=node.nrows,
            lanes=profile.row_lanes,
            defines={"VEC": profile.vec},
            rows=node.nrows,
        )
    )


def optimiser(profile: Profile, node: Tensor) -> Launches | Decline:
    """A step of an optimiser: one work-item for each element."""
    if not node.size:
        return NOTHING
    adam = isinstance(node.op, ops.OptStepAdamw)
    names = ("grad", "m", "v", "settings") if adam else ("grad", "settings")
    tensors = {"dst": argument(DST, node)}
    for position, (name, each) in enumerate(zip(names, node.src[1:], strict=True)):
        assert each is not None
        tensors[name] = argument(position + 1, each)._replace(written=name in ("m", "v"))
    return launches_of(
        launch(
            "training",
            "adamw" if adam else "sgd",
            tensors,
            groups=-(-node.size // profile.unit_lanes),
            lanes=profile.unit_lanes,
            defines={"VEC": profile.vec},
        )
    )


CHOOSERS = {
    ops.CrossEntropyLoss: cross_entropy_loss,
    ops.CrossEntropyLossBack: cross_entropy_loss_back,
    ops.OptStepAdamw: optimiser,
    ops.OptStepSgd: optimiser,
}
