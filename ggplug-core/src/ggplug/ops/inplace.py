"""The ``_inplace`` forms: the result overwrites the first source, and is a view of it.

The allocator reuses the bytes of intermediates automatically, so graphs do not need these forms to save memory.  They
are for persistent tensors, such as weights, that shall hold the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ggplug.ops.attention import soft_max
from ggplug.ops.base import explained_by
from ggplug.ops.copy import cpy
from ggplug.ops.elementwise import add, div, mul, sub
from ggplug.ops.gradients import soft_max_back
from ggplug.ops.norms import group_norm, l2_norm, norm, rms_norm
from ggplug.ops.partition import add_rel_pos
from ggplug.ops.rotary import rope
from ggplug.ops.triangles import diag_mask_inf, diag_mask_zero
from ggplug.ops.unary import (
    abs,
    ceil,
    cos,
    elu,
    exp,
    expm1,
    fill,
    floor,
    gelu,
    gelu_erf,
    gelu_quick,
    leaky_relu,
    log,
    neg,
    relu,
    round,
    scale,
    sgn,
    sigmoid,
    silu,
    sin,
    softplus,
    sqr,
    sqrt,
    step,
    tanh,
    trunc,
)
from ggplug.tensor import Tensor


def inplace(build: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The in-place form of a builder: it adds a copy of the op's result into the first source."""

    def build_inplace(*args: Any, name: str = "", **parameters: Any) -> Tensor:
        node = build(*args, **parameters)
        first = node.src[0]
        assert first is not None
        return cpy(node, first, name=name)

    build_inplace.__name__ = build_inplace.__qualname__ = f"{build.__name__}_inplace"
    build_inplace.__doc__ = (
        f":func:`{build.__name__}` with its result written into the first source, of which the result is a view."
    )
    explained_by(build)(build_inplace)
    build_inplace.__wrapped__ = build  # type: ignore[attr-defined]  # its signature is this one's
    build_inplace.op = build.op  # type: ignore[attr-defined]
    return build_inplace


abs_inplace = inplace(abs)
add_inplace = inplace(add)
add_rel_pos_inplace = inplace(add_rel_pos)
ceil_inplace = inplace(ceil)
cos_inplace = inplace(cos)
diag_mask_inf_inplace = inplace(diag_mask_inf)
diag_mask_zero_inplace = inplace(diag_mask_zero)
div_inplace = inplace(div)
elu_inplace = inplace(elu)
exp_inplace = inplace(exp)
expm1_inplace = inplace(expm1)
fill_inplace = inplace(fill)
floor_inplace = inplace(floor)
gelu_erf_inplace = inplace(gelu_erf)
gelu_inplace = inplace(gelu)
gelu_quick_inplace = inplace(gelu_quick)
group_norm_inplace = inplace(group_norm)
l2_norm_inplace = inplace(l2_norm)
leaky_relu_inplace = inplace(leaky_relu)
log_inplace = inplace(log)
mul_inplace = inplace(mul)
neg_inplace = inplace(neg)
norm_inplace = inplace(norm)
relu_inplace = inplace(relu)
rms_norm_inplace = inplace(rms_norm)
rope_inplace = inplace(rope)
round_inplace = inplace(round)
scale_inplace = inplace(scale)
sgn_inplace = inplace(sgn)
sigmoid_inplace = inplace(sigmoid)
silu_inplace = inplace(silu)
sin_inplace = inplace(sin)
soft_max_back_inplace = inplace(soft_max_back)
soft_max_inplace = inplace(soft_max)
softplus_inplace = inplace(softplus)
sqr_inplace = inplace(sqr)
sqrt_inplace = inplace(sqrt)
step_inplace = inplace(step)
sub_inplace = inplace(sub)
tanh_inplace = inplace(tanh)
trunc_inplace = inplace(trunc)

__all__ = [name for name in globals() if name.endswith("_inplace")]
