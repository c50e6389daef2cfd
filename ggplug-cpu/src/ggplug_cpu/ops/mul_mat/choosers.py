"""The tables of matrix products."""

from __future__ import annotations

from ggplug import ops
from ggplug.patterns import Hole, Pattern, PatternNode, chain, of, pattern, viewed
from ggplug_cpu.choosing.chooser import Chooser, GroupChooser
from ggplug_cpu.choosing.programs import KINDS
from ggplug_cpu.ops.mul_mat.fused import gated, rearranged, turned, with_epilogue
from ggplug_cpu.ops.mul_mat.products import mul_mat, mul_mat_id

CHOOSERS = (
    Chooser(ops.MulMat, "float|block float|block > f32", mul_mat, packed=0),
    Chooser(ops.MulMatId, "float|block float|block i32 > f32", mul_mat_id, packed=0),
)

PRODUCT, FIRST, SECOND = (of(ops.MulMat, name=name) for name in ("product", "first", "second"))
GLU, COPY, WIDE = of(ops.Glu), of(ops.Cont, name="copy"), of(ops.Dup, name="wide")


def of_weights(a: Hole, x: Hole) -> PatternNode:
    """A product of transposed weights, which are converted first: gradients have them."""
    return PRODUCT(COPY(viewed(WIDE(a))), x)


def of_transposed(a: Hole, x: Hole) -> PatternNode:
    """A product of weights without gaps, which a transposed view has."""
    return PRODUCT(COPY(a), x)


GROUPS: dict[Pattern, GroupChooser] = {
    pattern("gated products", lambda a, b, x: GLU(FIRST(a, x), SECOND(b, x))): gated,
    pattern("rearranged product", lambda a, b: COPY(viewed(PRODUCT(a, b)))): rearranged,
    chain("product of transposed weights", *KINDS, start=of_weights): turned,
    chain("product of a transposed view", *KINDS, start=of_transposed): turned,
    pattern("product of transposed weights alone", of_weights): turned,
    pattern("product of a transposed view alone", of_transposed): turned,
    chain("product", *KINDS, start=lambda a, b: PRODUCT(a, b)): with_epilogue,
}
