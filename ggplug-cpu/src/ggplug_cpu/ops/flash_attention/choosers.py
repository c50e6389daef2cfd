"""Chooses the kernel for attention as one op, and the sizes of its units."""

from __future__ import annotations

from typing import Any

from ggplug import ops
from ggplug.ops import alibi_slopes
from ggplug.ops.flash_attention import Attending
from ggplug.tensor import Tensor
from ggplug_cpu import simd
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import RESULT, Entries, source, source_tensor, tasks
from ggplug_cpu.choosing.places import PLAIN, reader
from ggplug_cpu.ops.copy.ready import in_f32
from ggplug_cpu.ops.flash_attention import back, few, tiles
from ggplug_cpu.ops.flash_attention.kernels import KEPT, KEYS, Flash, merge
from ggplug_cpu.ops.mul_mat.kinds import DOT_COLUMNS
from ggplug_cpu.ops.mul_mat.layout import layout
from ggplug_cpu.parameters import Place, Ref, Words
from ggplug_cpu.parts.rows import ARGUMENTS
from ggplug_cpu.tape import WORKSPACE, Entry

#: Most rows of a unit of tiles: keys and values are packed once for all of them, and they have to fit a second-level
#: cache together with the packed block.
_MOST_ROWS = 192
#: Least rows of a unit of tiles, if there are as many.
_LEAST_ROWS = 48
#: Units to aim at, so that threads finish together.
_UNITS = 32
#: Queries of a head that are computed by dot products, however many heads read the same keys.
_FEW_QUERIES = min(DOT_COLUMNS.values())
#: Keys of a part, of few queries and of tiles: the same whatever is computed at the same time, so that a query has the
#: bits that it has alone.
_PART, _PART_OF_TILES = 8 * KEYS, 16 * KEYS
#: Multiplications that take about as long as one simple operation on an element.
_PER_ELEMENT = 8


def flash_attn_ext(node: Tensor) -> Entries:
    """y = v softmax(scale k q + mask): few queries by dot products, more by tiles."""
    q, k, v = (source_tensor(node, i) for i in range(3))
    matrices = k.ne[2] * k.ne[3]
    rows = q.nrows // max(1, matrices)
    # Several tokens of a sequence have the bits that each has alone: as many as products compute so (DOT_COLUMNS).
    by_tiles = rows > DOT_COLUMNS["f32"] and q.ne[1] > _FEW_QUERIES
    if by_tiles:
        block = _rows_of_a_unit(matrices, rows)
    else:
        block = min(rows, few.MOST_ROWS)
    part = _PART_OF_TILES if by_tiles else _PART
    parts = max(1, -(-k.ne[1] // part))
    lanes = simd.width("f32")
    kept_bytes = KEPT + 4 * (-(-v.ne[0] // lanes) * lanes)
    plan = _Scratch(2 * ARGUMENTS if by_tiles else few.ROWS_BEGIN)
    places: dict[str, Any] = {
        "rows_at": plan.take(max(_converted_bytes(k), _converted_bytes(v))),
        "logits_at": plan.take(4 * KEYS * block),
        "mixed_at": plan.take(kept_bytes * block),
    }
    if by_tiles:
        dk, dv = k.ne[0], v.ne[0]
        size = tiles.table_bytes(block)
        places |= {
            "tables_at": plan.take(3 * size),
            "table_bytes": size,
            "queries_at": plan.take(tiles.side_bytes(block, dk)),
            "powers_at": plan.take(tiles.side_bytes(block, KEYS)),
            "panels_at": plan.take(max(tiles.panels_bytes(KEYS, dk), tiles.panels_bytes(dv, KEYS))),
        }
    read = _place(1, k), _place(2, v)
    words = _words(tiles.Tiled if by_tiles else Flash, node, block, part, parts, kept_bytes, places, *read)
    types = _type_read(k), _type_read(v)
    kernel = tiles.flash_attention_tiles(*types) if by_tiles else few.flash_attention_few(*types)
    work = tasks(q.nrows * k.ne[1] * (k.ne[0] + v.ne[0]) // _PER_ELEMENT)
    entries = [Entry(kernel, words, work)]
    if parts > 1:
        entries.append(Entry(merge(), words, tasks(q.nrows * parts * v.ne[0])))
    workspace = kept_bytes * q.nrows * parts if parts > 1 else 0
    return Entries(tuple(entries), workspace, plan.bytes)


class _Scratch:
    """Lays out a thread's scratch memory, one array after the other."""

    def __init__(self, start: int) -> None:
        self.bytes = start

    def take(self, count: int) -> int:
        """The offset of the next ``count`` bytes."""
        at = self.bytes
        self.bytes += -(-count // 128) * 128
        return at


def _rows_of_a_unit(matrices: int, rows: int) -> int:
    """Rows of a unit, in whole tiles: few enough for :data:`_UNITS` units, and enough to pay for packing."""
    tile = layout("f32").rows
    blocks = max(-(-rows // _MOST_ROWS), min(-(-_UNITS // max(1, matrices)), rows // _LEAST_ROWS), 1)
    return -(-rows // (blocks * tile)) * tile


def _type_read(tensor: Tensor) -> str:
    return PLAIN.get(tensor.type, "f32")


def _converted_bytes(tensor: Tensor) -> int:
    """Bytes of a block of rows, if they have to be converted."""
    return 0 if tensor.type in PLAIN else 4 * KEYS * tensor.ne[0]


def _place(index: int, tensor: Tensor) -> Place:
    """The place of keys or values; the kernels use ``nb0`` as the bytes of a row."""
    nb = (tensor.type.row_bytes(tensor.ne[0]), *tensor.nb[1:])
    return Place(Ref(source(index)), nb, 0 if tensor.type in PLAIN else reader(tensor.type) or 0)


def flash_attn_back(node: Tensor) -> Entries:
    """The gradients of queries, then of keys and values, then of sinks."""
    q, k, v, d = (source_tensor(node, i) for i in range(4))
    assert isinstance(node.op, ops.FlashAttnBack)
    ready_k = in_f32(k, Ref(source(1)), rows=True)
    ready_v = in_f32(v, Ref(source(2)), ready_k.workspace_bytes, rows=True)
    lanes = simd.width("f32")
    left_at = -(-ready_v.workspace_bytes // 64) * 64
    saved_bytes = 4 * (-(-max(1, q.ne[1]) // lanes) * lanes)
    row_bytes = 4 * (max(q.ne[1], k.ne[1]) + 2 * lanes)
    kept_bytes = KEPT + 4 * (-(-max(k.ne[0], v.ne[0]) // lanes) * lanes)
    plan = _Scratch(back.ROWS_BEGIN)
    starts = [*(each.view_offset for each in ops.flash_attn_back_parts(node)), node.nbytes]
    places: dict[str, Any] = {
        "rows_at": plan.take(row_bytes),
        "logits_at": plan.take(row_bytes),
        "wanted_at": plan.take(row_bytes),
        "mixed_at": plan.take(2 * kept_bytes),
        "d": Place(Ref(source(3)), d.nb),
        "saved": Place(Ref(WORKSPACE, left_at)),
        "saved_bytes": saved_bytes,
        "masked": int(node.op.masked),
        "keys_at": starts[1],
        "values_at": starts[2],
        "sinks_at": starts[3],
        "end_at": starts[-1],
    }
    read = (ready.as_place() for ready in (ready_k, ready_v))
    words = _words(back.Back, node, 0, 0, 1, kept_bytes, places, *read)
    work = tasks(q.nrows * k.ne[1] * (k.ne[0] + v.ne[0]) // _PER_ELEMENT)
    entries = (
        *ready_k.entries,
        *ready_v.entries,
        Entry(back.flash_attention_back_queries(), words, work),
        Entry(back.flash_attention_back_keys(), words, work),
        Entry(back.flash_attention_back_sinks(), words, 1),
    )
    workspace = left_at + 4 * saved_bytes * q.ne[2] * q.ne[3]
    scratch = max(plan.bytes, ready_k.scratch_bytes, ready_v.scratch_bytes)
    return Entries(entries, workspace, scratch)


def _words(
    parameters: type[Flash],
    node: Tensor,
    block: int,
    part: int,
    parts: int,
    kept_bytes: int,
    places: dict[str, Any],
    keys: Place,
    mixed: Place,
) -> Words:
    op, (q, k, v), (mask, sinks) = node.op, node.src[:3], node.src[-2:]
    at = len(node.src) - 2
    assert isinstance(op, Attending)
    assert q is not None
    assert k is not None
    assert v is not None
    scale, cap = op.capped()
    slopes = [] if mask is None else [float(slope) for slope in alibi_slopes(q.ne[2], op.max_bias)]
    return parameters.words(
        y=Place(Ref(RESULT), node.nb),
        q=Place(Ref(source(0)), q.nb),
        k=keys,
        v=mixed,
        mask=Place() if mask is None else Place(Ref(source(at)), mask.nb),
        sinks=Place() if sinks is None else Place(Ref(source(at + 1)), sinks.nb),
        kept=Place(Ref(WORKSPACE)) if parts > 1 else Place(),
        dk=k.ne[0],
        dv=v.ne[0],
        keys=k.ne[1],
        queries=q.ne[1],
        heads=q.ne[2],
        groups=k.ne[2],
        batches=q.ne[3],
        mask_heads=1 if mask is None else mask.ne[2],
        mask_batches=1 if mask is None else mask.ne[3],
        block=block,
        part=part,
        parts=parts,
        kept_bytes=kept_bytes,
        scale=scale,
        cap=cap,
        slopes=slopes,
        **places,
    )


CHOOSERS = (
    Chooser(ops.FlashAttnExt, "f32 float|block float|block f16? f32? > f32", flash_attn_ext),
    Chooser(ops.FlashAttnBack, "f32 float float f32 f16? f32? > f32", flash_attn_back),
)
