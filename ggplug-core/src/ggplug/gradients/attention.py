"""Rules of attention as one op."""

from __future__ import annotations

import functools

from ggplug import ops
from ggplug.gradients.rules import Missing, Parts, gradient, packed, wide
from ggplug.tensor import Tensor
from ggplug.types import KERNEL_FLOATS


@gradient(ops.FlashAttnExt)
def _(node: Tensor, dy: Tensor) -> Parts:
    op, (q, k, v, mask, sinks) = node.op, node.src
    assert isinstance(op, ops.FlashAttnExt)
    assert q is not None
    assert k is not None
    assert v is not None

    @functools.cache
    def parts() -> tuple[Tensor, ...]:
        rows = dy if dy.nb[0] == 4 else packed(dy)
        keys, values = (each if each.type in KERNEL_FLOATS else wide(each) for each in (k, v))
        found = ops.flash_attn_back(
            q,
            keys,
            values,
            rows,
            mask=mask,
            sinks=sinks,
            scale=op.scale,
            max_bias=op.max_bias,
            logit_softcap=op.logit_softcap,
        )
        return ops.flash_attn_back_parts(found)

    return (
        lambda: parts()[0],
        lambda: parts()[1],
        lambda: parts()[2],
        Missing("attention takes masks in f16; use gg.soft_max for one that is learnt"),
        lambda: parts()[3],
    )
