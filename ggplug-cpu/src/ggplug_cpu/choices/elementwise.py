"""Operations on every element, of one source or of two; the second may repeat (broadcast) to the first."""

from __future__ import annotations

from collections.abc import Sequence

from ggplug import ops
from ggplug.tensor import Tensor, contiguous_strides
from ggplug_cpu.choices.copy import copy_bytes
from ggplug_cpu.choices.nest import Nest, Shape, element_nest, words_of
from ggplug_cpu.choices.places import reading, writing
from ggplug_cpu.choices.steps import RESULT, Steps, given, source, tasks
from ggplug_cpu.kernels.elementwise import elementwise, elementwise_parameters, scratch_bytes
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import WORKSPACE, Entry

#: How much longer than an addition a formula takes, where it does.
_WEIGHTS = {
    **dict.fromkeys(("exp", "log", "sigmoid", "silu", "gelu", "gelu_quick", "swiglu", "geglu", "geglu_quick"), 4),
    **dict.fromkeys(("tanh", "expm1", "elu", "softplus", "gelu_erf", "geglu_erf", "swiglu_oai", "xielu"), 8),
    **dict.fromkeys(("sin", "cos"), 8),
}


def unary(node: Tensor) -> Steps:
    """y = f(x)."""
    op, x = node.op, given(node, 0)
    assert op is not None
    nest = element_nest(node.ne, Shape.of(node), Shape.of(x))
    y_stride, x_stride = nest.inner.strides
    places = writing(Ref(RESULT), node.type, y_stride), reading(Ref(source(0)), x.type, x_stride)
    return _steps(op.name, nest, places, [float(getattr(op, name)) for name in op.parameters])


def binary(node: Tensor) -> Steps:
    """y = f(a, b), b repeated to a's shape."""
    op, a, b = node.op, given(node, 0), given(node, 1)
    assert op is not None
    address_b, shape_b, repeated = Ref(source(1)), Shape.of(b), Steps(())
    if 1 < b.ne[0] < a.ne[0] and b.ne[0] % a.type.block_size:
        # a row of b ends within a block of a: rows as long as those of a, in the workspace
        repeated, shape_b = repeated_rows(b, a.ne[0])
        address_b = Ref(WORKSPACE)
    nest = element_nest(node.ne, Shape.of(node), Shape.of(a), shape_b)
    y_stride, a_stride, b_stride = nest.inner.strides
    places = (
        writing(Ref(RESULT), node.type, y_stride),
        reading(Ref(source(0)), a.type, a_stride),
        reading(address_b, b.type, b_stride),
    )
    steps = _steps(op.name, nest, places)
    return Steps((*repeated.entries, *steps.entries), repeated.workspace_bytes, steps.scratch_bytes)


def repeated_rows(b: Tensor, n: int) -> tuple[Steps, Shape]:
    """Entries that repeat source 1, ``b``, along ne0 to ``n`` elements in the workspace; and what lies there then."""
    ne = (n, *b.ne[1:])
    shape = Shape(ne, contiguous_strides(b.type, ne))
    entry = copy_bytes(b.type, ne, shape, Shape(b.ne, b.nb), Ref(WORKSPACE), Ref(source(1)))
    return Steps((entry,), b.type.row_bytes(n) * b.nrows), shape


def glu(node: Tensor) -> Steps:
    """y = f(x) gate, from two sources or from the halves of one."""
    op, x, gate = node.op, given(node, 0), node.src[1]
    assert isinstance(op, ops.Glu)
    halves = [Ref(source(0)), Ref(source(0), node.ne[0] * x.nb[0])]
    if gate is None:
        gate = x
        if op.swapped:
            halves.reverse()
    else:
        halves[1] = Ref(source(1))
    nest = element_nest(node.ne, Shape.of(node), Shape(node.ne, x.nb), Shape(node.ne, gate.nb))
    y_stride, x_stride, gate_stride = nest.inner.strides
    places = (
        writing(Ref(RESULT), node.type, y_stride),
        reading(halves[0], x.type, x_stride),
        reading(halves[1], gate.type, gate_stride),
    )
    return _steps(op.name, nest, places, [float(getattr(op, name)) for name in op.parameters if name != "swapped"])


def _steps(formula: str, nest: Nest, places: Sequence[Place], constants: Sequence[float] = ()) -> Steps:
    sources = len(places) - 1
    words = words_of(elementwise_parameters(sources), nest, *places, constants=constants)
    program = f"{formula}({','.join(f'x{i}' for i in range(sources))})"
    entry = Entry(elementwise(program), words, tasks(nest.elements, _WEIGHTS.get(formula, 1)))
    return Steps((entry,), scratch_bytes=scratch_bytes(sources))
