"""Groups around matrix products: epilogues (bias, activation, residual), gated products, copies with exchanged axes,
weights that are transposed first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ggplug import ops
from ggplug.backend import Decline
from ggplug.nodes.groups import Group
from ggplug.patterns import Names
from ggplug.tensor import Extents, Tensor
from ggplug.types import F32
from ggplug_cpu.choosing.entries import RESULT, Entries, slot_of, source_tensor
from ggplug_cpu.choosing.nest import Shape, row_nest, words_of
from ggplug_cpu.choosing.programs import NOTHING, Source, chained, sources_of
from ggplug_cpu.ops.mul_mat.epilogue import epilogue_parameters, mul_mat_epilogue
from ggplug_cpu.ops.mul_mat.kinds import order_of
from ggplug_cpu.ops.mul_mat.norm import mul_mat_norm
from ggplug_cpu.ops.mul_mat.products import IN_SCRATCH, Placed, Turned, single
from ggplug_cpu.ops.norms.kernels import FIRST_STEPS, norm_parameters
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import WORKSPACE
from ggplug_cpu.types import BLOCKS, PLAIN


def with_epilogue(group: Group, names: Names) -> Entries | Decline:
    """y = f(g(a b, c), d) and so on: a product, and elementwise nodes on a tile that is still in the cache."""
    product = group.nodes[0]
    placed = finished(group, product, group.nodes[1:], *_operands(group, product))
    return placed if isinstance(placed, Decline) else single(product, placed)


def turned(group: Group, names: Names) -> Entries | Decline:
    """y = f(cont(transpose(a)) b, c), of weights that may be converted first: their panels are made of ``a`` itself."""
    a, copy, product = names["a"], names["copy"], names["product"]
    view = source_tensor(copy, 0)
    wide = names.get("wide", view)
    if sum(group.kept) > 1:
        return Decline("a result before the last node is read by other nodes, too")
    if a.type.name not in PLAIN and a.type.name not in BLOCKS:
        return Decline(f"the CPU device multiplies no weights of {a.type.name}")
    if copy.ne != view.ne or order_of(a) != ("columns" if wide is view else "rows"):
        return Decline("the numbers of the weights' columns are not adjacent")
    if wide is not view and (view.ne, view.nb, view.view_offset) != (_exchanged(wide.ne), _exchanged(wide.nb), 0):
        return Decline("the copy is not of the transposed weights")
    nb = a.nb if wide is view else _exchanged(a.nb)
    behind = group.nodes[group.nodes.index(product) + 1 :]
    weights, x = Ref(slot_of(group, a)), Ref(slot_of(group, source_tensor(product, 1)))
    placed = finished(group, product, behind, weights, x) if behind else Placed(weights, x, Ref(RESULT), product.nb)
    return placed if isinstance(placed, Decline) else single(product, placed, Turned(a.type.name, nb))


def _exchanged(extents: Extents) -> Extents:
    return extents[1], extents[0], *extents[2:]


def normed(group: Group, names: Names) -> Entries | Decline:
    """y = f(norm(g(a b, c, d)), w): rows of a product are added to others and normalised while they are in the
    cache.
    """
    product = names["product"]
    placed = finished_rows(group, product, group.nodes[1:], *_operands(group, product))
    return placed if isinstance(placed, Decline) else single(product, placed)


def _operands(group: Group, product: Tensor) -> tuple[Ref, Ref]:
    a, b = (Ref(slot_of(group, source_tensor(product, i))) for i in (0, 1))
    return a, b


def finished(
    group: Group, product: Tensor, nodes: Sequence[Tensor], a: Ref, b: Ref | int, *, inside: bool = False
) -> Placed | Decline:
    """The places of a product with the elementwise ``nodes`` after it as its epilogue; its weights are at ``a``.

    ``inside``: the result of these stays in scratch memory.
    """
    result: Ref | int = IN_SCRATCH if inside else Ref(RESULT)
    node = nodes[-1]
    if sum(group.kept) > 1:
        return Decline("a result between the product and the last node is read by other nodes, too")
    if node.type is not F32:
        return Decline(f"a product's epilogue is f32, not {node.type.name}")
    bias, rest, known = _biased(group, product, nodes)
    if not rest:
        return Placed(a, b, result, node.nb, bias=bias)
    program = chained(rest, known, sources=1)
    if isinstance(program, Decline):
        return program
    kinds = _kinds(group, program.sources, node)
    if isinstance(kinds, Decline):
        return kinds
    if "r" in kinds and inside:
        return Decline("a result that is not in memory has no residual of its strides")
    places = {f"x{i + 1}": Place(Ref(slot_of(group, s.tensor), s.offset)) for i, s in enumerate(program.sources)}
    words = epilogue_parameters(len(places)).words(result=Place(result), constants=program.constants, **places)
    epilogue = mul_mat_epilogue(program.text, kinds)
    residual = _residual(group, program.sources, kinds)
    return Placed(a, b, result, node.nb, epilogue, words, residual=residual, bias=bias)


def finished_rows(group: Group, product: Tensor, nodes: Sequence[Tensor], a: Ref, b: Ref | int) -> Placed | Decline:
    """As :func:`finished`, where a norm is among the ``nodes``, the last ones of the group."""
    node = group.node
    at = next(i for i, each in enumerate(nodes) if isinstance(each.op, ops.RowNorm))
    norm = nodes[at]
    assert isinstance(norm.op, ops.RowNorm)
    if sum(group.kept) > 1:
        return Decline("a result between the product and the last node is read by other nodes, too")
    if any(each.type is not F32 for each in group.nodes):
        return Decline("a product's epilogue is f32")
    bias, rest, known = _biased(group, product, nodes[:at])
    before = chained(rest, known, sources=1) if rest else NOTHING
    if isinstance(before, Decline):
        return before
    step, _ = FIRST_STEPS[norm.op.name]
    behind = chained(nodes[at + 1 :], {norm: "r0"}, before=step, sources=1)
    if isinstance(behind, Decline):
        return behind
    sources = [*before.sources, *behind.sources]
    kinds = _kinds(group, sources, node)
    if isinstance(kinds, Decline):
        return kinds
    parameters = norm_parameters(1 + len(before.sources), len(behind.sources), False)
    places = [Place(Ref(RESULT))] * 2 + [Place(Ref(slot_of(group, s.tensor), s.offset)) for s in sources]
    nest = row_nest(node.ne, *[Shape.of(node)] * len(places))
    words = words_of(
        parameters,
        nest,
        *places,
        eps=norm.op.eps,
        constants=[*before.constants, *behind.constants],
    )
    epilogue = mul_mat_norm(norm.op.name, before.text, behind.text, kinds)
    residual = _residual(group, sources, kinds)
    return Placed(a, b, Ref(RESULT), node.nb, epilogue, words, True, residual, bias)


def _biased(
    group: Group, product: Tensor, nodes: Sequence[Tensor]
) -> tuple[Ref | int, Sequence[Tensor], dict[Tensor, str]]:
    """(address of the bias that the first node after a product adds, or 0; the other nodes; the names of known
    results).

    The product's kernel itself adds a bias.
    """
    total, *rest = nodes
    readers = [node for node in group.nodes if product in node.src]
    if isinstance(total.op, ops.Add) and total.type is F32 and readers == [total]:
        for source in sources_of(total):
            if source.tensor is not product and _kind(group, source, total) == "b":
                return Ref(slot_of(group, source.tensor)), rest, {total: "x0"}
    return 0, nodes, {product: "x0"}


def _kinds(group: Group, sources: Iterable[Source], node: Tensor) -> str | Decline:
    """The kinds of the sources of a program whose result is ``node``: see :mod:`ggplug_cpu.ops.mul_mat.epilogue`."""
    kinds = [_kind(group, source, node) for source in sources]
    refusal = next((kind for kind in kinds if isinstance(kind, Decline)), None)
    return "".join(map(str, kinds)) if refusal is None else refusal


def _residual(group: Group, sources: Iterable[Source], kinds: str) -> Ref | int:
    """The address of the first source with the extents and strides of the result; 0 if there is none."""
    alike = (source for source, kind in zip(sources, kinds, strict=True) if kind == "r")
    return next((Ref(slot_of(group, source.tensor), source.offset) for source in alike), 0)


def _kind(group: Group, source: Source, node: Tensor) -> str | Decline:
    """The kind of a source: see :mod:`ggplug_cpu.ops.mul_mat.epilogue`."""
    tensor = source.tensor
    if tensor not in group.sources:
        return Decline(f"{tensor!r} reads a result of the group as a view")
    if tensor.type is not F32 or tensor.nb[0] != 4:
        return Decline(f"{tensor!r} is not contiguous f32, as the epilogue of a product requires")
    if source.ne == (node.ne[0], 1, 1, 1):
        return "b"
    if source.ne == node.ne and all(
        n == 1 or mine == its for n, mine, its in zip(node.ne, tensor.nb, node.nb, strict=True)
    ):
        return "r"
    return Decline(f"{tensor!r} is neither one row nor laid out like the result")


def gated(group: Group, names: Names) -> Entries | Decline:
    """y = f(a x) (b x): the first product is stored in the workspace, the second is multiplied with it tile by tile."""
    node, first, second = group.node, names["first"], names["second"]
    if sum(group.kept) > 1:
        return Decline("one of the products is read by other nodes, too")
    if node.type is not F32:
        return Decline(f"a product's epilogue is f32, not {node.type.name}")
    program = chained([node], {first: "x1", second: "x0"}, sources=2)
    if isinstance(program, Decline):
        return program
    x = Ref(slot_of(group, names["x"]))

    def ahead(at: int) -> Entries | Decline:
        """The entries of the first product, ``at`` bytes after the beginning of the workspace."""
        return single(first, Placed(Ref(slot_of(group, source_tensor(first, 0))), x, Ref(WORKSPACE, at), node.nb))

    def behind(at: int) -> Entries | Decline:
        """The entries of the second product and the epilogue."""
        between, weights = Ref(WORKSPACE, at), Ref(slot_of(group, source_tensor(second, 0)))
        words = epilogue_parameters(1).words(result=Place(Ref(RESULT)), constants=program.constants, x1=Place(between))
        epilogue = mul_mat_epilogue(program.text, "r")
        return single(second, Placed(weights, x, Ref(RESULT), node.nb, epilogue, words, residual=between))

    at = 0
    for chosen in (ahead(0), behind(0)):
        if isinstance(chosen, Decline):
            return chosen
        at = max(at, -(-chosen.workspace_bytes // 64) * 64)
    one, two = ahead(at), behind(at)
    assert isinstance(one, Entries)
    assert isinstance(two, Entries)
    # the second product mostly reads the activations that were prepared for the first
    shared = one.entries[:-1] == two.entries[:-1]
    entries = *one.entries, *(two.entries[-1:] if shared else two.entries)
    return Entries(entries, at + node.nbytes, max(one.scratch_bytes, two.scratch_bytes))


def rearranged(group: Group, names: Names) -> Entries | Decline:
    """y = cont(a view of a b): the product is stored into the copy; rows of the weights stay rows."""
    node, product = group.node, names["product"]
    if sum(group.kept) > 1:
        return Decline("the product is read by other nodes, too")
    nb = strides_in_copy(product, source_tensor(node, 0), node)
    if nb is None:
        return Decline("the copy is not of the whole product, or splits its rows")
    a, b = (Ref(slot_of(group, source_tensor(product, i))) for i in (0, 1))
    return single(product, Placed(a, b, Ref(RESULT), nb))


def strides_in_copy(product: Tensor, view: Tensor, copy: Tensor) -> Extents | None:
    """Byte strides that store ``product`` into the ``copy`` of its ``view``; None unless the view exchanges whole
    axes.
    """
    if copy.type is not product.type or copy.ne != view.ne or copy.size != product.size:
        return None
    steps = {}
    for n, nb, to in zip(view.ne, view.nb, copy.nb, strict=True):
        if n > 1:
            steps[n, nb] = to
    strides = tuple(0 if n == 1 else steps.get((n, nb)) for n, nb in zip(product.ne, product.nb, strict=True))
    if None in strides or strides[0] not in (0, 4):
        return None
    return (4, *strides[1:])  # type: ignore[return-value]
