"""Matrix products: by rows for few columns; for many by the vendor's library, or by tiles in local memory."""

from __future__ import annotations

from collections.abc import Sequence

from ggplug import ops
from ggplug.backend import Decline, Group
from ggplug.patterns import Names, Pattern, chain, of, pattern
from ggplug.tensor import Tensor, contiguous_strides
from ggplug.types import F32, I32, Precision
from ggplug_simt.c.kernels.accepted import READABLE, refuse
from ggplug_simt.c.kernels.elementwise import IDENTITY, map_one
from ggplug_simt.c.kernels.epilogue import NONE, STEPS, Epilogue, GroupChooser, checked, epilogue, position, run_of
from ggplug_simt.c.launch import LIMIT, MatrixProduct, launch, launches_of
from ggplug_simt.c.profile import Profile, Tile
from ggplug_simt.c.types import BLOCKS, group_of
from ggplug_simt.library import DST, SCRATCH, Launch, Launches, TensorArgument, argument, argument_of

FEW = 8
"""Columns up to which blocks of a are decoded in registers, for all columns at once."""

FILLED = 3
"""Products with experts use tiles if an expert's columns fill, in the mean, more than a third of a tile."""

DECODED = 256 << 20
"""Bytes of float32 up to which weights are decoded at once for the vendor's library: with fewer, the GPU waits for the
host, which launches each part by itself."""

BATCHES = 16
"""Most matrices of dimension 3 for which the vendor's library is called one by one."""


def _dot(profile: Profile, columns: int, a: Tensor, b: Tensor) -> dict[str, object]:
    """Sizes of ``dot_rows``.

    If many lanes share a row, each reads a word of it, and neighbouring lanes neighbouring words (coalesced loads);
    several rows of a are multiplied with what is read of b.  A single lane reads whole blocks.  The order of a sum does
    not depend on the number of columns, so that each column is computed as alone.
    """
    part = _word(profile, a) if profile.dot_lanes > 1 else _group(profile, a)
    return {
        "VEC": profile.vec,
        "ROWS": profile.dot_rows,
        "TOGETHER": profile.dot_together,
        "COLUMNS": columns,
        **_types(part, a, b),
    }


def _word(profile: Profile, a: Tensor) -> int:
    """Elements of a that a lane of many reads at once: 16 bytes of plain numbers; of blocks half a group, or less where
    blocks do not begin at words.
    """
    if a.type in BLOCKS:
        return 16 if a.type.block_bytes % 4 == 0 else 8
    return max(profile.vec, 16 // a.type.block_bytes)


def _group(profile: Profile, a: Tensor) -> int:
    """Elements of a that share a scale, or those of a vector."""
    return max(profile.vec, group_of(a.type))


def _types(part: int, a: Tensor, b: Tensor) -> dict[str, object]:
    """The defines of types, and PLAIN_ROWS for the most frequent case: dense rows of whole parts, b of a plain type."""
    found: dict[str, object] = {"TA": a.type.name, "TB": b.type.name, "PART": part}
    dense = all(t.nb[0] == t.type.block_bytes for t in (a, b))
    if dense and a.ne[0] % part == 0 and not b.type.is_quantized:
        found["PLAIN_ROWS"] = 1
        if a.type in BLOCKS:
            found["SCALED"] = 1
            if BLOCKS[a.type].has_minimum:
                found["SHIFTED"] = 1
    return found


def mul_mat(profile: Profile, node: Tensor) -> Launches | Decline:
    """dst[m, n] = sum over k of a[k, m] b[k, n]."""
    refused = refuse(node, {F32}, READABLE, READABLE)
    if refused is not None:
        return refused
    a, b = node.src
    assert a is not None
    assert b is not None
    if node.ne[1] > FEW and profile.products:
        found = _by_library(profile, node, a, b)
        if found is not None:
            return found
    return launches_of(_product(profile, node, a, b, (argument(DST, node), argument(0, a), argument(1, b))))


def _product(
    profile: Profile, node: Tensor, a: Tensor, b: Tensor, places: Sequence[TensorArgument], run: Epilogue = NONE
) -> Launch | Decline:
    """A product by rows, or by tiles where there are many columns; ``places``: of the result, a and b."""
    tensors = dict(zip(("dst", "a", "b"), places, strict=True))
    m, n, batches = node.ne[0], node.ne[1], node.ne[2] * node.ne[3]
    ratios = {"ratio_2": b.ne[2] // a.ne[2], "ratio_3": b.ne[3] // a.ne[3]}
    if n > FEW:
        tile = profile.tile.fitted(m, n)
        return _tiles(profile, tile, a, b, tensors, -(-n // tile.n) * batches, run, **ratios)
    return launch(
        "matrix",
        "mul_mat_rows",
        {**tensors, **run.tensors},
        groups=-(-m // profile.dot_rows) * batches,
        lanes=profile.dot_lanes,
        defines={**_dot(profile, 1 << (n - 1).bit_length(), a, b), **run.defines},
        **ratios,
        **run.values,
    )


def _read(group: Group, node: Tensor) -> tuple[Tensor, Tensor, TensorArgument, TensorArgument] | Decline:
    """The operands of a product in a group, and their tensor arguments."""
    a, b = node.src
    assert a is not None
    assert b is not None
    refused = refuse(node, {F32}, READABLE, READABLE)
    if refused is not None:
        return refused
    return a, b, argument(position(group, a), a), argument(position(group, b), b)


def fused(profile: Profile, group: Group, names: Names) -> Launches | Decline:
    """A product and a run of elementwise ops on it: bias, activation, residual.

    Declines where the vendor's library multiplies many columns: it is faster by more than the saved passes.
    """
    node = names["mul_mat"]
    declined = checked(group, None)
    if declined is not None:
        return declined
    run = epilogue(group, node, run_of(group, [node]))
    if isinstance(run, Decline):
        return run
    read = _read(group, node)
    if isinstance(read, Decline):
        return read
    a, b, a_at, b_at = read
    if _wins(profile, node, a, b):
        return Decline(LIBRARY_WINS)
    return launches_of(_product(profile, node, a, b, (argument(DST, group.node), a_at, b_at), run))


def gated(profile: Profile, group: Group, names: Names) -> Launches | Decline:
    """A gated unit of two products: the second one into scratch memory, which the first one's epilogue reads."""
    first, second = names["first"], names["second"]
    declined = checked(group, None)
    if declined is not None:
        return declined
    launches: list[Launch | Decline] = []
    strides = contiguous_strides(F32, second.ne)
    scratch = argument_of(SCRATCH, F32, second.ne, strides)
    for node, out in ((second, scratch._replace(written=True)), (first, argument(DST, group.node))):
        read = _read(group, node)
        if isinstance(read, Decline):
            return read
        a, b, a_at, b_at = read
        if _wins(profile, node, a, b):
            return Decline(LIBRARY_WINS)
        run = epilogue(group, first, [group.node], {second: scratch}) if node is first else NONE
        if isinstance(run, Decline):
            return run
        launches.append(_product(profile, node, a, b, (out, a_at, b_at), run))
    return launches_of(*launches, scratch=strides[3] * second.ne[3])


LIBRARY_WINS = f"the vendor's library, which takes products of more than {FEW} columns, takes no epilogue"


def _wins(profile: Profile, node: Tensor, a: Tensor, b: Tensor) -> bool:
    """Whether the vendor's library computes a product."""
    return profile.products and node.ne[1] > FEW and _by_library(profile, node, a, b) is not None


def _tiles(
    profile: Profile,
    tile: Tile,
    a: Tensor,
    b: Tensor,
    tensors: dict[str, TensorArgument],
    across: int,
    run: Epilogue = NONE,
    **ratios: int,
) -> Launch | Decline:
    """All rows of a by ``across`` tiles of columns, listed by ``routes``, if that is among the tensors."""
    routed = {"ROUTED": 1} if "routes" in tensors else {}
    part = _group(profile, a)
    if tile.k % part:
        return Decline(f"a tile's slices of {tile.k} have no whole groups of {part} elements of {a.type.name}")
    return launch(
        "matrix",
        "mul_mat_tiles",
        {**tensors, **run.tensors},
        groups=-(-a.ne[1] // tile.m) * across,
        lanes=min(profile.tile_lanes, tile.blocks),
        defines={
            "VEC": profile.vec,
            "TILE_M": tile.m,
            "TILE_N": tile.n,
            "TILE_K": tile.k,
            "ITEM_M": tile.item_m,
            "ITEM_N": tile.item_n,
            **_types(part, a, b),
            **routed,
            **run.defines,
        },
        **ratios,
        **run.values,
    )


def _by_library(profile: Profile, node: Tensor, a: Tensor, b: Tensor) -> Launches | Decline | None:
    """Decodes weights to float32 in parts and multiplies them by the library; None if it does not take the strides.

    For weights of fewer bits than float32, tensor cores may round b to the bits of F16, unless the op demands F32.
    """
    if not b.size or b.ne[3] > BATCHES or not (_library_reads(b) and _library_reads(node)):
        return None
    columns = _columns(node, a, b)
    if columns is None:
        return None
    n, batches, b_step, dst_step = columns
    assert isinstance(node.op, ops.MulMat)
    product = MatrixProduct(exact=a.type is F32 or node.op.precision == Precision.F32)
    k, m, matrices = a.ne[0], a.ne[1], a.ne[2] * a.ne[3]
    decoded = not _library_reads(a)
    rows = min(m, max(1, DECODED // (4 * k * matrices))) if decoded else m
    launches: list[Launch | Decline] = []
    for first in range(0, m, rows):
        some = min(rows, m - first)
        part = argument_of(0, a.type, (k, some, a.ne[2], a.ne[3]), a.nb, first * a.nb[1])
        if decoded:
            into = argument_of(SCRATCH, F32, part.ne, contiguous_strides(F32, part.ne))
            launches.append(map_one(profile, None, IDENTITY, into._replace(written=True), F32, part, a.type))
            part = into
        a_step = part.nb[2] if a.ne[2] > 1 else 0
        for i3 in range(b.ne[3]):
            a_at = part.delta + i3 // (b.ne[3] // a.ne[3]) * part.nb[3]
            tensors = (
                argument_of(DST, F32, (some, n, batches, 1), (4, node.nb[1], dst_step, 0), 4 * first + i3 * node.nb[3]),
                argument_of(part.position, F32, (k, some, batches, 1), (4, part.nb[1], a_step, 0), a_at),
                argument_of(1, F32, (k, n, batches, 1), (4, b.nb[1], b_step, 0), i3 * b.nb[3]),
            )
            launches.append(Launch(product, 1, 1, tensors, ()))
    return launches_of(*launches, scratch=4 * k * rows * matrices if decoded else 0)


def _library_reads(tensor: Tensor) -> bool:
    """Whether the library takes the strides: dense rows of float32, at whole elements, that do not overlap."""
    step = tensor.nb[1]
    dense = tensor.type is F32 and tensor.nb[0] == 4 and all(nb % 4 == 0 for nb in tensor.nb)
    return dense and 4 * tensor.ne[0] <= step < 4 * LIMIT


def _columns(node: Tensor, a: Tensor, b: Tensor) -> tuple[int, int, int, int] | None:
    """(columns, matrices, stride of matrices in b, in dst) of the library's call; None if there is none.

    Matrices of b that share one of a become one matrix with more columns, if they follow each other; or all of them use
    the same matrix of a.
    """
    n, ratio = b.ne[1], b.ne[2] // a.ne[2]
    if ratio > 1 and n * ratio < LIMIT and b.nb[2] == n * b.nb[1] and node.nb[2] == n * node.nb[1]:
        return n * ratio, a.ne[2], ratio * b.nb[2], ratio * node.nb[2]
    if ratio == 1 or a.ne[2] == 1:
        return n, b.ne[2], b.nb[2], node.nb[2]
    return None


def mul_mat_id(profile: Profile, node: Tensor) -> Launches | Decline:
    """The product with the chosen expert: column by column, or by tiles of columns that chose the same one."""
    refused = refuse(node, {F32}, READABLE, READABLE, {I32})
    if refused is not None:
        return refused
    a, b, ids = node.src
    assert a is not None
    assert b is not None
    assert ids is not None
    tensors = {"dst": argument(DST, node), "a": argument(0, a), "b": argument(1, b), "ids": argument(2, ids)}
    if FILLED * ids.size > profile.tile.n * a.ne[2]:
        return _routed(profile, node, a, b, ids)
    return launches_of(
        launch(
            "matrix",
            "mul_mat_id",
            tensors,
            groups=-(-node.ne[0] // profile.dot_rows) * node.ne[1] * node.ne[2],
            lanes=profile.dot_lanes,
            defines={**_dot(profile, 1, a, b), "ID_TYPE": "int32_t"},
        )
    )


def _routed(profile: Profile, node: Tensor, a: Tensor, b: Tensor, ids: Tensor) -> Launches | Decline:
    """Lists the columns of each expert, then computes tiles for the largest possible number of experts and columns.

    The last list has the columns whose index is out of range.
    """
    experts, columns = a.ne[2], ids.size
    extents = (1 + columns, experts + 1, 1, 1)
    routes = argument_of(SCRATCH, I32, extents, contiguous_strides(I32, extents))
    tile = profile.tile.fitted(node.ne[0], -(-columns // max(1, experts)))
    return launches_of(
        launch(
            "matrix",
            "route",
            {"dst": routes._replace(written=True), "ids": argument(2, ids)},
            groups=experts + 1,
            lanes=profile.row_lanes,
            defines={"VEC": profile.vec, "ID_TYPE": "int32_t"},
            experts=experts,
        ),
        _tiles(
            profile,
            tile,
            a,
            b,
            {"dst": argument(DST, node), "a": argument(0, a), "b": argument(1, b), "routes": routes},
            experts + 1 + columns // tile.n,
        ),
        scratch=contiguous_strides(I32, extents)[2],
    )


PRODUCT, FIRST, SECOND = of(ops.MulMat), of(ops.MulMat, name="first"), of(ops.MulMat, name="second")
GLU = of(ops.Glu)

GROUPS: dict[Pattern, GroupChooser] = {
    pattern("gated_products", lambda gate, up, x: GLU(FIRST(gate, x), SECOND(up, x))): gated,
    chain("product_run", *STEPS, start=lambda w, x: PRODUCT(w, x), inplace=True): fused,
}

CHOOSERS = {ops.MulMat: mul_mat, ops.MulMatId: mul_mat_id}
