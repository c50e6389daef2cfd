"""Rules of rotary position embedding."""

from __future__ import annotations

from ggplug import ops
from ggplug.gradients.rules import Missing, Parts, gradient
from ggplug.ops.base import apply
from ggplug.tensor import Tensor


@gradient(ops.Rope, ops.RopeBack)
def _(node: Tensor, dy: Tensor) -> Parts:
    """Rotation by the negative angles."""
    op = node.op
    assert isinstance(op, ops.Rotary)
    inverse = ops.RopeBack if isinstance(op, ops.Rope) else ops.Rope
    parameters = {name: getattr(op, name) for name in op.parameters}
    return (
        lambda: apply(inverse(**parameters), (dy, *node.src[1:])),
        None,
        Missing("the factors of frequencies are constants"),
    )
