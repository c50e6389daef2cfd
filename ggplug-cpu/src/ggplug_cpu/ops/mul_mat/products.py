"""Chooses the kernels for ``mul_mat`` and ``mul_mat_id``.

=================  ==================================================================================================
``mul_mat_dot``    few columns (``DOT_COLUMNS``): every number of the result is a dot product, weights are streamed
``mul_mat_gemm``   more columns, or plain weights whose rows are not adjacent numbers: packed panels and register tiles
=================  ==================================================================================================

The latter has a *kind*: see :mod:`.kinds`.

Weights in packed memory (:mod:`ggplug_cpu.packed`) are read by ``mul_mat_gemm`` for any number of columns, so the
results do not depend on the number of columns; except for weights that keep their plain rows.

Activations that a kernel cannot read as they are become rows in the workspace first (``mul_mat_round`` to int8,
``mul_mat_widen`` to f32, ``mul_mat_narrow`` to bf16 for tile registers where many chunks of weights would each do it).
Weights are used in place.  ``mul_mat_id`` first sorts rows by expert (``mul_mat_route``), then runs the same kernels,
each for the experts that have as many rows as it is for.

Results are bit-identical for any number of threads, and differ between kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ggplug.backend import Decline
from ggplug.ops import MulMat, MulMatId
from ggplug.tensor import Extents, Tensor
from ggplug_cpu.choosing.entries import FAULTS, POSITION, RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.compiler import Kernel
from ggplug_cpu.ops.mul_mat import dot, gemm
from ggplug_cpu.ops.mul_mat.activations import Activations, for_dot, for_gemm, in_place, narrowed
from ggplug_cpu.ops.mul_mat.kinds import dot_columns, kind_for, order_of, packed_form, panels_form, refused
from ggplug_cpu.ops.mul_mat.layout import PANEL_BYTES, base_of, layout
from ggplug_cpu.ops.mul_mat.packed import most_in_place, packed_as
from ggplug_cpu.ops.mul_mat.prepare import Routes, mul_mat_route, routes_bytes
from ggplug_cpu.ops.mul_mat.rows import Product
from ggplug_cpu.ops.mul_mat.weights import pack_panels
from ggplug_cpu.parameters import Place, Ref, Words
from ggplug_cpu.tape import WORKSPACE, Entry
from ggplug_cpu.types import BLOCKS, GROUP

#: Least rows of activations of a chunk, if there are as many: packing a block of weights pays only for many rows, the
#: more the faster products are.
_LEAST_ROWS = {"f32": 192, "bf16": 384, "i8": 384, "amx": 384}
#: Least tiles of rows of activations of a chunk with packed weights.
_LEAST_TILES = 4
#: Chunks to aim at, so that threads finish together.
_CHUNKS = 48
#: Chunks to aim at if the rows of the result are not to be cut.
_CHUNKS_OF_WHOLE_ROWS = 8
#: Least bytes of weights of a chunk of ``mul_mat_dot``.
_STREAM_BYTES = 16 << 10
#: Chunks of weights from which on activations are converted to bf16 once for all of them.
_CHUNKS_THAT_NARROW = 3
#: Stands for an address in scratch memory in :class:`Placed`.
IN_SCRATCH = 0
#: Multiplications that take as long as one simple operation on an element.
_PER_ELEMENT = 8


def mul_mat(node: Tensor) -> Entries | Decline:
    """y[m, n] = sum over k of a[k, m] b[k, n].  Takes the types that ggml's CPU backend takes, and any strides."""
    return single(node, Placed(Ref(source(0)), Ref(source(1)), Ref(RESULT), node.nb))


def single(node: Tensor, placed: Placed, turned: Turned | None = None) -> Entries | Decline:
    """The entries of the product ``node`` with its operands at these places; ``turned``: its weights are these."""
    a, b = source_tensor(node, 0), source_tensor(node, 1)
    assert isinstance(node.op, MulMat)
    refusal = refused(node, a, b, node.op.precision)
    if refusal is not None:
        return refusal
    r2, r3 = b.ne[2] // a.ne[2], b.ne[3] // a.ne[3]
    product = _PlacedProduct(node, a, b, a.ne[2] * a.ne[3], b.ne[1] * r2 * r3, r2, r3, placed, turned=turned)
    kind = kind_for(a, b, node.op.precision)
    few = product.rows <= dot_columns(a, kind)
    if few and turned is not None:
        return Decline("few columns are computed by mul_mat_dot, which reads rows of adjacent numbers")
    if placed.whole_rows and (few or _blocks(product, kind)[0] < a.ne[1]):
        return Decline("the rows of the result are computed in parts")
    if few:
        return _entries([_dot(product, for_dot(a, b, placed.b, 0), product.rows)])
    if kind == "amx" and -(-a.ne[1] // _blocks(product, kind)[0]) >= _CHUNKS_THAT_NARROW:
        return _entries([_gemm(product, narrowed(b, placed.b), kind)])
    return _entries([_gemm(product, for_gemm(kind, b, placed.b, 0), kind)])


@dataclass(frozen=True)
class InBlocks:
    """A product that another kernel computes, block by block, with :func:`.gemm.product_of_blocks`.

    ``arguments``: the first three of that function.  It uses ``scratch_bytes`` of scratch memory, and packs activations
    at offset ``panels_bytes`` of it.  Each of ``matrices`` matrices is multiplied with ``rows`` rows.
    """

    arguments: tuple[str, str, str]
    words: Words
    matrices: int
    rows: int
    panels_bytes: int
    scratch_bytes: int
    tasks: int


def in_blocks(node: Tensor, a: Tensor, placed: Placed, v_block: int) -> InBlocks | Decline:
    """A product that a kernel for several nodes computes: blocks of all weights of a matrix by ``v_block`` rows.

    ``a``: the weights, which may be transposed compared with the node's own; these decide the kind.  Declines products
    of another kernel, with activations to prepare, or with more packed weights than a block.
    """
    own, b = source_tensor(node, 0), source_tensor(node, 1)
    assert isinstance(node.op, MulMat)
    for weights in (own, a):
        refusal = refused(node, weights, b, node.op.precision)
        if refusal is not None:
            return refusal
    if packed_form(a) is not None:
        return Decline("only mul_mat_gemm multiplies packed weights")
    r2, r3 = b.ne[2] // a.ne[2], b.ne[3] // a.ne[3]
    product = _PlacedProduct(node, a, b, a.ne[2] * a.ne[3], b.ne[1] * r2 * r3, r2, r3, placed)
    kind = kind_for(own, b, node.op.precision)
    if kind != kind_for(a, b, node.op.precision):
        return Decline(f"weights of another order would be multiplied as {kind_for(a, b, node.op.precision)}")
    if product.rows <= dot_columns(own, kind):
        return Decline("few columns are computed by mul_mat_dot")
    activations = for_gemm(kind, b, placed.b, 0)
    if activations.entries:
        return Decline("the activations of the product have to be prepared")
    k_block = _k_block(own, kind)
    panels_bytes, scratch = gemm.scratch_plan(kind, a.ne[1], k_block)
    if panels_bytes > PANEL_BYTES:
        return Decline("the packed weights of a matrix are more than a cache holds")
    words = _words(product, activations, kind, a.ne[1], v_block, 1, product.rows, k_block, panels_bytes)
    arguments = kind, activations.elem, activations.order
    return InBlocks(arguments, words, product.matrices, product.rows, panels_bytes, scratch, product.tasks)


@dataclass(frozen=True)
class OfPacked:
    """A product with packed weights that another kernel computes, a block of rows at a time.

    ``kind`` and ``packed`` are arguments of :func:`.gemm.product_of_blocks`; ``activations``: the type that it
    reads, rounded before unless ``totals`` is None, which is then as for :func:`.mul_mat_round`.  A step along K has
    ``k_block`` numbers.  ``nbytes``: of the packed weights.
    """

    kind: str
    packed: str
    activations: Activations
    totals: int | None
    words: Words
    k_block: int
    scratch_bytes: int
    nbytes: int
    tasks: int


def of_packed(node: Tensor, placed: Placed, v_block: int, *, inside: bool = False) -> OfPacked | Decline:
    """A product of packed weights that a kernel for several nodes computes, ``v_block`` rows at a time.

    ``inside``: that kernel computes its activations, f32.  Declines weights that are not one packed matrix, and
    products of another kernel.
    """
    a, b = source_tensor(node, 0), source_tensor(node, 1)
    assert isinstance(node.op, MulMat)
    refusal = refused(node, a, b, node.op.precision)
    if refusal is not None:
        return refusal
    kind = kind_for(a, b, node.op.precision)
    if panels_form(a, kind) is None or a.ne[2] * a.ne[3] != 1:
        return Decline("weights that are not one packed matrix would be packed for each block of rows")
    product = _PlacedProduct(node, a, b, 1, b.nrows, b.ne[2], b.ne[3], placed)
    if product.rows <= dot_columns(a, kind):
        return Decline("few columns are computed by mul_mat_dot")
    m_block, k_block = _rows_of_weights(product, kind), _k_block(a, kind)
    if placed.whole_rows and m_block < a.ne[1]:
        return Decline("the rows of the result are computed in parts")
    activations = in_place(b, placed.b) if inside else for_gemm(kind, b, placed.b, 0)
    shape = layout(kind)
    totals = (shape.quantum if shape.has_minima else 0) if shape.kind == "i8" else None
    packed = packed_as(kind, a.type.name)  # however many rows there are
    x_offset, scratch = gemm.scratch_plan(kind, 0, k_block, packed)
    words = _words(product, activations, kind, m_block, v_block, 1, product.rows, k_block, x_offset, packed)
    return OfPacked(kind, packed, activations, totals, words, k_block, scratch, a.nbytes, product.tasks)


def mul_mat_id(node: Tensor) -> Entries | Decline:
    """y[:, u, t] = as[:, :, ids[u, t]] by b[:, u, t].  An id out of range is a fault; its result is zero."""
    a, b, ids = source_tensor(node, 0), source_tensor(node, 1), source_tensor(node, 2)
    assert isinstance(node.op, MulMatId)
    refusal = refused(node, a, b, node.op.precision)
    if refusal is not None:
        return refusal
    experts, slots, tokens = a.ne[2], ids.ne[0], ids.ne[1]
    words = Routes.words(
        ids=Place(Ref(source(2)), ids.nb),
        routes=Place(Ref(WORKSPACE)),
        result=Place(Ref(RESULT), node.nb),
        faults=Place(Ref(FAULTS)),
        position=Ref(POSITION),
        experts=experts,
        slots=slots,
        tokens=tokens,
        M=node.ne[0],
    )
    route = Entry(mul_mat_route(), words, tasks=1)
    at = -(-routes_bytes(experts, slots, tokens) // 64) * 64
    placed = Placed(Ref(source(0)), Ref(source(1)), Ref(RESULT), node.nb)
    product = _PlacedProduct(node, a, b, experts, slots * tokens, 1, 1, placed, routed=True)
    # dot computes the experts with few rows, gemm the others; no expert has more rows than there are pairs
    kind = kind_for(a, b, node.op.precision)
    few = min(dot_columns(a, kind), product.rows)
    products = [_dot(product, for_dot(a, b, placed.b, at), few)] if few else []
    if product.rows > few:
        if products and base_of(kind) == "i8":  # gemm reads the activations that dot reads
            activations = products[0].activations
        else:
            activations = for_gemm(kind, b, placed.b, max(at, *(p.activations.workspace_bytes for p in products), 0))
        products.append(_gemm(product, activations, kind, least=few + 1))
    return _entries(products, route, at)


# -- parts of entries --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """The places of a product's weights, activations and result, the result's byte strides, and its epilogue.

    ``bias``: is added to every row.  ``epilogue``: the kernel that then finishes tiles (see
    :mod:`ggplug_cpu.ops.mul_mat.epilogue`), ``words``: its parameters; with ``whole_rows`` tiles are whole rows.
    ``residual``: the address of its residual.
    """

    a: Ref
    b: Ref | int
    result: Ref | int
    nb: Extents
    epilogue: Kernel | int = 0
    words: Words = field(default_factory=lambda: Words(()))
    whole_rows: bool = False
    residual: Ref | int = 0
    bias: Ref | int = 0


@dataclass(frozen=True)
class Turned:
    """Weights that are multiplied as if they were transposed and converted to another type.

    ``type_name``: their own type.  ``nb``: byte strides of the transposed ones, whose rows, or blocks of rows, are
    adjacent.
    """

    type_name: str
    nb: Extents


@dataclass(frozen=True)
class _PlacedProduct:
    """A product: ``matrices`` matrices of ``a``, each by ``rows`` rows of ``b``; if ``routed``, by ``rows`` rows in
    all.
    """

    node: Tensor
    a: Tensor
    b: Tensor
    matrices: int
    rows: int
    r2: int
    r3: int
    placed: Placed
    routed: bool = False
    turned: Turned | None = None

    @property
    def tasks(self) -> int:
        return tasks(self.a.ne[0] * self.node.size // _PER_ELEMENT)


@dataclass(frozen=True)
class _Multiplication:
    """The entry of a kernel that multiplies, and the activations that it reads."""

    activations: Activations
    entry: Entry
    scratch_bytes: int


def _entries(products: Sequence[_Multiplication], route: Entry | None = None, workspace_bytes: int = 0) -> Entries:
    """Entries that prepare activations, each once, then those of products; there are no barriers within either."""
    activations = list(dict.fromkeys(id(p.activations) for p in products))
    prepared = [next(p.activations for p in products if id(p.activations) == each) for each in activations]
    preparing = [*([route] if route else []), *(entry for each in prepared for entry in each.entries)]
    entries = [
        replace(entry, barrier_before=i == 0)
        for group in (preparing, [p.entry for p in products])
        for i, entry in enumerate(group)
    ]
    return Entries(
        tuple(entries),
        max(workspace_bytes, *(each.workspace_bytes for each in prepared)),
        max(*(each.scratch_bytes for each in prepared), *(p.scratch_bytes for p in products)),
    )


# products


def _words(
    product: _PlacedProduct,
    x: Activations,
    kind: str,
    m_block: int,
    v_block: int,
    least: int,
    most: int,
    k_block: int = 0,
    x_offset: int = 0,
    packed: str = "",
) -> Words:
    """The parameters of ``mul_mat_gemm`` of a ``kind``; without a kind those of ``mul_mat_dot``, which packs no
    weights.  ``packed``: the layout of packed weights that it reads in place.
    """
    a, b, placed = product.a, product.b, product.placed
    has_panels = panels_form(a, kind) is not None
    order = "packed" if has_panels else order_of(a)
    type_name, nb, through = a.type.name, a.nb, ""
    if product.turned is not None:
        type_name, nb, order = product.turned.type_name, product.turned.nb, "columns"
        if layout(kind).unit == 1 and a.type.name not in (type_name, "f32"):
            through = a.type.name
    words = Product.words(
        weights=_panels(a, kind, placed.a) if has_panels else Place(placed.a, nb),
        activations=Place(x.place, x.nb),
        result=Place(placed.result, placed.nb),
        K=a.ne[0],
        M=a.ne[1],
        matrices=product.matrices,
        rows=product.rows,
        ne02=a.ne[2],
        ne11=b.ne[1],
        r2=product.r2,
        r3=product.r3,
        m_block=m_block,
        v_block=v_block,
        k_block=k_block,
        x_offset=x_offset,
        pack=pack_panels(kind, type_name, order, through) if kind and not packed else 0,
        routes=Place(Ref(WORKSPACE) if product.routed else 0),
        least=least,
        most=most,
        epilogue=placed.epilogue,
        epilogue_words=Product.word_count(),
        residual=Place(placed.residual),
        bias=Place(placed.bias),
    )
    return words.followed_by(placed.words)


def _panels(a: Tensor, kind: str, place: Ref | int) -> Place:
    """The place of the panels of packed weights, with the byte strides of matrices."""
    form = panels_form(a, kind)
    assert form is not None
    assert isinstance(place, Ref)
    matrix = form.matrix_bytes(a.ne[0], a.ne[1])
    return Place(Ref(place.slot, place.offset + form.panels_at(a.nbytes)), (0, 0, matrix, matrix * a.ne[2]))


def _dot(product: _PlacedProduct, x: Activations, most: int) -> _Multiplication:
    a = product.a
    # a 64th of the matrix, but enough to pay for a chunk
    rows = max(-(-a.ne[1] // 64), -(-_STREAM_BYTES // max(1, a.type.row_bytes(a.ne[0]))))
    words = _words(product, x, "", -(-rows // 4) * 4, most, least=1, most=most)
    multiply = dot.mul_mat_dot(a.type.name, dot.is_signed(a.type.name, product.b.type.name))
    entry = Entry(multiply, words, product.tasks)
    return _Multiplication(x, entry, dot.scratch_bytes())


def _gemm(product: _PlacedProduct, x: Activations, kind: str, least: int = 1) -> _Multiplication:
    m_block, v_block = _blocks(product, kind)
    k_block = _k_block(product.a, kind)
    packed = _packed_as(product, kind)
    # packed weights come first in scratch memory, unless they are packed before
    x_offset, scratch = gemm.scratch_plan(kind, 0 if packed else m_block, k_block, packed)
    words = _words(product, x, kind, m_block, v_block, least, product.rows, k_block, x_offset, packed)
    kernel = gemm.mul_mat_gemm(kind, x.elem, x.order, packed)
    return _Multiplication(x, Entry(kernel, words, product.tasks), scratch)


def _packed_as(product: _PlacedProduct, kind: str) -> str:
    """The packed layout that ``mul_mat_gemm`` reads in place, or an empty text if it packs or expands weights."""
    if panels_form(product.a, kind) is None:
        return ""
    packed = packed_as(kind, product.a.type.name)
    # how routed rows are spread over experts is unknown
    rows = product.rows // max(1, product.matrices if product.routed else 1)
    return packed if rows <= most_in_place(kind, packed) else ""


def _k_block(a: Tensor, kind: str) -> int:
    return layout(kind).k_block(a.ne[0], a.ne[1], a.type.block_size)


def _blocks(product: _PlacedProduct, kind: str) -> tuple[int, int]:
    """Rows of weights, and rows of activations, of a chunk of ``mul_mat_gemm``."""
    shape = layout(kind)
    panels, most = _panels_of_a_chunk(product, kind)
    least = _LEAST_ROWS[base_of(kind)]
    if _packed_as(product, kind):  # a chunk packs only activations
        least = _LEAST_TILES * shape.rows
        if shape.is_one_tile(product.rows):  # one tile: all weights in one chunk
            most = panels
    m_chunks = -(-panels // max(1, most))
    matrices = max(1, product.matrices)  # there may be no expert
    # how routed rows are spread over experts is unknown
    v_chunks = 1 if product.routed else min(-(-_CHUNKS // (matrices * m_chunks)), product.rows // least)
    v_chunks = max(1, v_chunks)
    if not product.placed.whole_rows or v_chunks < _CHUNKS_OF_WHOLE_ROWS:
        m_chunks = max(m_chunks, min(panels, -(-_CHUNKS // (3 * matrices * v_chunks))))
    v_block = max(1, -(-product.rows // v_chunks))
    # of turned blocks, whole parts are packed
    multiple = GROUP if product.turned is not None and product.turned.type_name in BLOCKS else shape.columns
    return -(-panels * shape.columns // (m_chunks * multiple)) * multiple, -(-v_block // shape.rows) * shape.rows


def _rows_of_weights(product: _PlacedProduct, kind: str) -> int:
    """Rows of weights of a chunk that only has to fit a cache: parts as equal as possible."""
    panels, most = _panels_of_a_chunk(product, kind)
    return -(-panels // -(-panels // max(1, most))) * layout(kind).columns


def _panels_of_a_chunk(product: _PlacedProduct, kind: str) -> tuple[int, int]:
    """(panels of the weights, most panels of a chunk)."""
    shape = layout(kind)
    most = PANEL_BYTES // max(1, shape.panel_bytes(min(product.a.ne[0], _k_block(product.a, kind))))
    return -(-product.a.ne[1] // shape.columns), most
