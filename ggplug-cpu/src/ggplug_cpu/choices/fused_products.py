"""Matrix products with what becomes of them: bias, activation and residual, a gate."""

from __future__ import annotations

from ggplug.backend import Decline
from ggplug.groups import Group
from ggplug.patterns import Names
from ggplug.tensor import Tensor
from ggplug.types import F32
from ggplug_cpu.choices.mul_mat import Placed, single
from ggplug_cpu.choices.programs import Source, chained
from ggplug_cpu.choices.steps import RESULT, Steps, given, slot_of
from ggplug_cpu.kernels.mul_mat_epilogue import epilogue_parameters
from ggplug_cpu.parameters import Place, Ref


def with_epilogue(group: Group, names: Names) -> Steps | Decline:
    """y = f(g(a b, c), d) and so on: a product, and elementwise nodes on the tile that is still in the cache."""
    node, product = group.node, group.nodes[0]
    if sum(group.kept) > 1:
        return Decline("a result between the product and the last node has to be written")
    if node.type is not F32:
        return Decline(f"what becomes of a product is f32, not {node.type.name}")
    program = chained(group.nodes[1:], {product: "x0"}, sources=1)
    if isinstance(program, Decline):
        return program
    kinds = [_kind(group, source, node) for source in program.sources]
    for kind in kinds:
        if isinstance(kind, Decline):
            return kind
    places = {f"x{i + 1}": Place(Ref(slot_of(group, s.tensor), s.offset)) for i, s in enumerate(program.sources)}
    words = epilogue_parameters(len(places)).words(result=Place(Ref(RESULT)), constants=program.constants, **places)
    a, b = (Ref(slot_of(group, given(product, i))) for i in (0, 1))
    epilogue = f"{program.text}|{''.join(map(str, kinds))}"
    return single(product, Placed(a, b, Ref(RESULT), node.nb, epilogue, words))


def _kind(group: Group, source: Source, node: Tensor) -> str | Decline:
    """How a row of a source is found: see :mod:`ggplug_cpu.kernels.mul_mat_epilogue`."""
    tensor = source.tensor
    if tensor not in group.sources:
        return Decline(f"{tensor!r} reads a result of the group as a view")
    if tensor.type is not F32 or tensor.nb[0] != 4:
        return Decline(f"{tensor!r} is not f32 without gaps, as the epilogue of a product wants it")
    if source.ne == (node.ne[0], 1, 1, 1):
        return "b"
    if source.ne == node.ne and all(
        n == 1 or mine == its for n, mine, its in zip(node.ne, tensor.nb, node.nb, strict=True)
    ):
        return "r"
    return Decline(f"{tensor!r} is neither one row nor laid out like the result")
