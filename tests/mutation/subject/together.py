"""The kernels of groups: ``kernel(group, operands)``, each result rounded to its type before it goes on.

A result may lie on a source, so everything is read before something is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ggplug import ops
from ggplug.backend import Group
from ggplug.patterns import Pattern, chain, of, pattern, viewed
from ggplug.tensor import Tensor
from tests.mutation.subject.formulas import BINARY, GATED, ROWS, UNARY
from tests.mutation.subject.kernels import products, rope, set_rows
from tests.mutation.subject.values import Array, Values, repeated, rounded, single, store, wide

NORM, ROPE, SET_ROWS, PRODUCT = of(ops.RowNorm, name="norm"), of(ops.Rope), of(ops.SetRows), of(ops.MulMat)
ADD, MUL, GLU, SHIFT = of(ops.Add), of(ops.Mul), of(ops.Glu), of(ops.Add, name="shift")
GATE, UP = of(ops.MulMat, name="first"), of(ops.MulMat, name="second")

GATED_PRODUCTS = pattern("gated_products", lambda gate, up, x: GLU(GATE(gate, x), UP(up, x)))
EPILOGUE = chain("product_epilogue", ops.Binary, ops.Unary, start=lambda w, x: PRODUCT(w, x), inplace=True)
ADD_NORM_AFFINE = pattern("add_norm_affine", lambda x, y, w, b: SHIFT(MUL(NORM(ADD(x, y)), w), b), inplace=("x", "y"))
NORM_AFFINE = pattern("norm_affine", lambda x, w, b: SHIFT(MUL(NORM(x), w), b), inplace=("x",))
NORM_SCALE = pattern("norm_scale", lambda x, w: MUL(NORM(x), w), inplace=("x",))
ADD_NORM = pattern("add_norm", lambda x, y: NORM(ADD(x, y)), inplace=("x", "y"))
ROPE_STORE = pattern(
    "rope_store", lambda cache, x, pos, rows, factors=None: SET_ROWS(cache, viewed(ROPE(x, pos, factors)), rows)
)
ELEMENTWISE = chain("elementwise", ops.Binary, ops.Unary, inplace=True)

Operands = Mapping[Tensor, Values]


def gated_products(group: Group, operands: Operands) -> None:
    names = GATED_PRODUCTS.names(group)
    assert names is not None
    columns = single(operands[names["x"]])
    first = rounded(products(single(operands[names["gate"]]), columns), names["first"].type)
    second = rounded(products(single(operands[names["up"]]), columns), names["second"].type)
    glu = names["glu"]
    gate, up = (first, second) if glu.src[0] is names["first"] else (second, first)
    keep(group, operands, {names["first"]: first, names["second"]: second})
    store(operands[glu], GATED[type(glu.op)](glu.op, gate.astype(np.float64), up.astype(np.float64)))


def run(group: Group, operands: Operands) -> None:
    """A chain: a product or an elementwise op, and what is done to its result."""
    made: dict[Tensor, Array] = {}
    for node in group.nodes:
        made[node] = rounded(computed(node, made, operands), node.type)
    results = {node: made[node] for node in group.nodes}
    keep(group, operands, results)
    store(operands[group.node], results[group.node])


def computed(node: Tensor, made: Mapping[Tensor, Array], operands: Operands) -> Array:
    """A node of a chain from results before it and from sources."""
    if isinstance(node.op, ops.MulMat):
        weights, columns = (single(operands[s]) for s in node.src if s is not None)
        return products(weights, columns)
    sources = [made[s].astype(np.float64) if s in made else wide(operands[s]) for s in node.src if s is not None]
    if len(sources) == 1:
        return UNARY[type(node.op)](node.op, sources[0])
    a, b = sources
    return BINARY[type(node.op)](node.op, a, repeated(b, a.shape))


def norms(group: Group, operands: Operands) -> None:
    """A norm, perhaps of a sum, perhaps with its scale and shift."""
    names = next(found for each in NORMS if (found := each.names(group)) is not None)
    results: dict[Tensor, Array] = {}
    if "add" in names:
        total = names["add"]
        a, b = (wide(operands[s]) for s in total.src if s is not None)
        values = results[total] = rounded(a + repeated(b, a.shape), total.type)
    else:
        values = wide(operands[names["x"]])
    normed = names["norm"]
    values = results[normed] = rounded(ROWS[type(normed.op)](normed.op, values.astype(np.float64)), normed.type)
    if "mul" in names:
        weights = repeated(wide(operands[names["w"]]), values.shape)
        values = results[names["mul"]] = rounded(values * weights, names["mul"].type)
    if "shift" in names:
        values = values + repeated(wide(operands[names["b"]]), values.shape)
    keep(group, operands, results)
    store(operands[group.node], values)


NORMS = (ADD_NORM_AFFINE, NORM_AFFINE, NORM_SCALE, ADD_NORM)


def rope_store(group: Group, operands: Operands) -> None:
    names = ROPE_STORE.names(group)
    assert names is not None
    turned, last = names["rope"], group.node
    x, factors = operands[names["x"]], names.get("factors")
    values = Values(turned.type, np.zeros(x.bits.shape, x.bits.dtype))
    rope(turned.op, values, x, operands[names["pos"]], None if factors is None else operands[factors])
    if turned in operands:
        operands[turned].bits[...] = values.bits
    source = last.src[1]
    assert source is not None
    rows = Values(source.type, values.bits.reshape(source.ne[::-1]))
    set_rows(last.op, operands[last], operands[last], rows, operands[names["rows"]])


def keep(group: Group, operands: Operands, results: Mapping[Tensor, Array]) -> None:
    """Stores the results inside of a group that are needed outside."""
    for node, kept in zip(group.nodes[:-1], group.kept, strict=False):
        if kept and node in results:
            store(operands[node], results[node])


def cannot_together(group: Group) -> str:
    """Why the kernels of groups do not compute one; empty if nothing is in the way."""
    for each in NORMS:
        names = each.names(group)
        if names is not None and any(names[n].ne != names["norm"].ne for n in ("add", "mul", "shift") if n in names):
            return "the norm is repeated to a larger shape"
    names = ROPE_STORE.names(group)
    if names is None:
        return ""
    source = group.node.src[1]
    if source is None or not source.is_contiguous() or source.size != names["rope"].size:
        return "the turned rows are not read in their order"
    return ""


KERNELS: dict[Pattern, Callable[..., None]] = {
    GATED_PRODUCTS: gated_products,
    EPILOGUE: run,
    ADD_NORM_AFFINE: norms,
    NORM_AFFINE: norms,
    NORM_SCALE: norms,
    ADD_NORM: norms,
    ROPE_STORE: rope_store,
    ELEMENTWISE: run,
}
