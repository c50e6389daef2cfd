"""A reference device that computes groups: node by node, with results inside of a group in bytes of its own.

It forms the groups that models offer, so that core's part in groups (places, lifetimes, copies, errors) can be tested
without a compiled kernel, and it shows how patterns are declared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ggplug import ops
from ggplug.backend import Decline, Group, Operand
from ggplug.ops.base import Array
from ggplug.patterns import Pattern, chain, of, pattern, viewed
from ggplug.tensor import Tensor
from ggplug.values.arrays import strided
from ggplug_testing.devices.reference import ReferenceDevice, match_reference
from ggplug_testing.judging.oracle import compute_node
from ggplug_testing.running.placement import UNWRITTEN

NORM, ROPE, SET_ROWS = of(ops.RowNorm, name="norm"), of(ops.Rope), of(ops.SetRows)
ADD, MUL, GLU, PRODUCT = of(ops.Add), of(ops.Mul), of(ops.Glu), of(ops.MulMat)
RESIDUAL, GATE, UP = of(ops.Add, name="residual"), of(ops.MulMat, name="first"), of(ops.MulMat, name="second")
SOFT_MAX, LOGITS, MIXED = of(ops.SoftMax), of(ops.MulMat, name="logits"), of(ops.MulMat, name="mixed")
TRANSPOSED, COPIED = of(ops.Cont, name="transposed"), of(ops.Cont, name="copied")

PATTERNS: tuple[Pattern, ...] = (
    pattern(
        "attention",
        lambda k, q, v, mask=None: COPIED(viewed(MIXED(TRANSPOSED(v), SOFT_MAX(LOGITS(k, q), mask)))),
    ),
    pattern("gated_products", lambda gate, up, x: GLU(GATE(gate, x), UP(up, x))),
    chain("product_epilogue", ops.Binary, ops.Unary, start=lambda w, x: PRODUCT(w, x), inplace=True),
    pattern("add_norm_affine", lambda x, y, w, b: ADD(MUL(NORM(RESIDUAL(x, y)), w), b), inplace=("x", "y")),
    pattern("norm_affine", lambda x, w, b: ADD(MUL(NORM(x), w), b), inplace=("x",)),
    pattern("add_norm_scale", lambda x, y, w: MUL(NORM(ADD(x, y)), w), inplace=("x", "y")),
    pattern("norm_scale", lambda x, w: MUL(NORM(x), w), inplace=("x",)),
    pattern("add_norm", lambda x, y: NORM(ADD(x, y)), inplace=("x", "y")),
    pattern(
        "rope_store", lambda cache, x, pos, rows, factors=None: SET_ROWS(cache, viewed(ROPE(x, pos, factors)), rows)
    ),
    chain("elementwise", ops.Binary, ops.Unary, inplace=True),
)
"""What encoders and decoders are made of.  The kernel reads all of a group before it writes, so any source may be
overwritten."""


class FusingDevice(ReferenceDevice):
    """A host device that computes every op with its reference, and the chains of ``patterns`` together."""

    def __init__(self, name: str = "fusing", patterns: Sequence[Pattern] = PATTERNS) -> None:
        super().__init__(name)
        self._patterns = tuple(patterns)

    @property
    def patterns(self) -> Sequence[Pattern]:
        return self._patterns

    def match(self, group: Group) -> Any:
        for node in group.nodes:
            found = match_reference(Group((node,)), self.name)
            if isinstance(found, Decline) or len(group) == 1:
                return found
        if any(each.names(group) is not None for each in self.patterns):
            return interpret_group
        return Decline(f"{self.name} has no pattern for {' '.join(node.op.name for node in group.nodes if node.op)}")


def interpret_group(group: Group, operands: Mapping[Tensor, Operand]) -> None:
    """Computes the nodes of a group with their ops' references, each rounded to its type.

    Everything is read before a result is written, so the last one may share bytes with any source.
    """
    made: dict[Tensor, Any] = {}

    def stored(tensor: Tensor | None) -> Array | None:
        if tensor is None:
            return None
        if tensor.root in made:
            start = tensor.view_offset
            return strided(made[tensor.root][start : start + tensor.nbytes], tensor)
        return operands[tensor].array()

    for node in group.nodes:
        sources = [stored(source) for source in node.src]
        if node.view_src is not None:
            compute_node(node, operands[node].array(), sources)
        else:
            raw = np.full(node.nbytes, UNWRITTEN, np.uint8)
            compute_node(node, strided(raw, node), sources)
            made[node] = raw
    for node, kept in zip(group.nodes, group.kept, strict=True):
        if kept and node in made:
            operands[node].array()[...] = strided(made[node], node)
