"""Groups whose results lie on a source that they read later."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ggplug.backend import Group, Operand
from ggplug.ops.base import Op
from ggplug.ops.elementwise import Add
from ggplug.ops.matrix import MulMat
from ggplug.ops.norms import RowNorm
from ggplug.ops.unary import Scale, Unary
from ggplug.patterns import Pattern, of, pattern, viewed
from ggplug.tensor import Tensor
from ggplug.values.arrays import strided
from ggplug_testing.devices.fusing import (
    ADD,
    COPIED,
    GATE,
    GLU,
    LOGITS,
    MIXED,
    MUL,
    NORM,
    PATTERNS,
    PRODUCT,
    RESIDUAL,
    SOFT_MAX,
    TRANSPOSED,
    UP,
    FusingDevice,
    interpret_group,
)
from ggplug_testing.judging.oracle import compute_node
from tests.mutation.fault import by_hand

SCALE = of(Scale)

IN_PLACE_OF_ANY: tuple[Pattern, ...] = (
    pattern("add_norm_affine", lambda x, y, w, b: ADD(MUL(NORM(RESIDUAL(x, y)), w), b), inplace=("x", "y", "w", "b")),
    pattern("norm_affine", lambda x, w, b: ADD(MUL(NORM(x), w), b), inplace=("x", "w", "b")),
    pattern("norm_scale", lambda x, w: MUL(NORM(x), w), inplace=("x", "w")),
)
"""Patterns that say of every source that it may be overwritten."""


class GoesOnInItsResult(FusingDevice):
    """Groups that begin with ``start`` read a source where a node needs it, and write before that."""

    def __init__(self, start: type[Op], patterns: Sequence[Pattern] = PATTERNS) -> None:
        super().__init__("faulty", patterns)
        self._start = start

    def match(self, group: Group) -> Any:
        found = super().match(group)
        return self._compute if found is interpret_group and isinstance(group.nodes[0].op, self._start) else found

    def _compute(self, group: Group, operands: Mapping[Tensor, Operand]) -> None:
        straight = all(before in node.src for before, node in itertools.pairwise(group.nodes))
        same = all((node.type, node.ne) == (group.node.type, group.node.ne) for node in group.nodes)
        if not straight or not same:
            return interpret_group(group, operands)
        last = operands[group.node]
        place = strided(last.buffer.bytes(last.offset, group.node.nbytes), group.node)
        for before, node, kept in zip((None, *group.nodes), group.nodes, group.kept, strict=False):
            sources = [None if s is None else place if s is before else operands[s].array() for s in node.src]
            compute_node(node, place, sources)
            if kept:
                operands[node].array()[...] = place


OVER_MATRICES: tuple[Pattern, ...] = (
    pattern(
        "attention",
        lambda k, q, v, mask=None: COPIED(viewed(MIXED(TRANSPOSED(v), SOFT_MAX(LOGITS(k, q), mask)))),
        inplace=("k",),
    ),
    pattern("scores", lambda k, q, mask: SOFT_MAX(SCALE(LOGITS(k, q)), mask), inplace=("k",)),
    pattern("gated_products", lambda gate, up, x: GLU(GATE(gate, x), UP(up, x)), inplace=("up",)),
    pattern("product_bias", lambda w, x, b: ADD(PRODUCT(w, x), b), inplace=("w",)),
    pattern("product_scale", lambda w, x: SCALE(PRODUCT(w, x)), inplace=("w",)),
)
"""Patterns that say of matrices which products read whole that they may be overwritten."""


class StoresRowByRow(FusingDevice):
    """Computes groups of the pattern ``name`` row by row, and reads for each row what it has not overwritten yet."""

    def __init__(self, name: str) -> None:
        super().__init__("faulty", [each for each in OVER_MATRICES if each.name == name])

    def match(self, group: Group) -> Any:
        found = super().match(group)
        return self._compute if found is interpret_group and group.node.ne[1] < 30 else found

    def _compute(self, group: Group, operands: Mapping[Tensor, Operand]) -> None:
        result = operands[group.node].array()
        for row in range(group.node.ne[1]):
            before = result.copy()
            interpret_group(group, operands)
            before[:, :, row] = result[:, :, row]
            result[...] = before


fault = by_hand(StoresRowByRow)
for each in OVER_MATRICES:
    fault(f"overwrites a matrix that it multiplies: {each.name}", "groups")(each.name)

fault = by_hand(GoesOnInItsResult)
fault("overwrites the factor of a norm", "groups", patterns=IN_PLACE_OF_ANY)(RowNorm)
fault("overwrites the scale of a sum's norm", "groups", patterns=IN_PLACE_OF_ANY)(Add)
fault("overwrites what a product is added to", "groups")(MulMat)
fault("overwrites what a run reads later", "groups")(Unary)
