"""Attention of few queries (flash decoding): every key and value is read once, in place, for all queries.

Memory bandwidth bounds it.  Rows of one head lie far apart where a cache interleaves heads, so the kernel prefetches
the values of a block while it multiplies the keys, and the next keys before it accumulates the values.
"""

from __future__ import annotations

from ggplug_cpu import features, simd
from ggplug_cpu.compiler import Body, device_function, kernel
from ggplug_cpu.context import aborted, next_chunk, scratch, store_word
from ggplug_cpu.ops.flash_attention.kernels import (
    KEPT,
    KEYS,
    Flash,
    accumulate_softmax,
    begin,
    converted,
    has_zeros,
    key_rows,
    leave,
    mixing,
    query_of,
    rows_of,
    scaled,
    shown,
    value_rows,
)
from ggplug_cpu.ops.mul_mat.dot import dot_plain
from ggplug_cpu.parts.rows import ARGUMENTS
from ggplug_cpu.simd.memory import LINE

#: Most rows of a unit: the capacity of the table of addresses.
MOST_ROWS = 16
#: Offset in scratch memory of the addresses of the products' results; those of queries follow.
_TABLE = ARGUMENTS
#: Offset in scratch memory of the rows.
ROWS_BEGIN = 512
#: Keys that are multiplied at once; half as many with 16 registers.
_TOGETHER = 4
#: Values that are accumulated between prefetches of as many keys.
_MIXED = 16


@kernel
def flash_attention_few(keys_type: str, values_type: str) -> Body:
    """Units of up to :data:`MOST_ROWS` rows.  The arguments are the types that rows are
    read as: ``f32`` for converted rows.
    """
    together = _TOGETHER if features.has_many_registers() else _TOGETHER // 2
    one, two, four = (dot_plain(keys_type, together, rows, cached=True) for rows in (1, 2, 4))
    mix_one, mix_two, mix_four = (mixing(values_type, rows) for rows in (1, 2, 4))
    mix_all = mixing(values_type, 4, all_count=True)

    @device_function
    def fetch(rows: int, stride: int, row_bytes: int, first: int, end: int) -> None:
        for row in range(first, end):
            for line in range(0, row_bytes, LINE):
                simd.prefetch(rows + row * stride + line)

    @device_function
    def products(
        k: int,
        k_stride: int,
        count: int,
        table: int,
        queries: int,
        rows: int,
        dk: int,
        ahead: int,
        ahead_stride: int,
        ahead_bytes: int,
    ) -> None:
        for j in range(0, count, together):
            fetch(ahead, ahead_stride, ahead_bytes, j, min(j + together, count))
            valid = min(count - j, together)
            row = 0
            while row + 4 <= rows:
                four(k + j * k_stride, k_stride, valid, table + 8 * row, queries + 8 * row, 4 * j, dk)
                row += 4
            if row + 2 <= rows:
                two(k + j * k_stride, k_stride, valid, table + 8 * row, queries + 8 * row, 4 * j, dk)
                row += 2
            if row < rows:
                one(k + j * k_stride, k_stride, valid, table + 8 * row, queries + 8 * row, 4 * j, dk)

    @device_function
    def mix(
        kept: int, kept_bytes: int, dv: int, logits: int, v: int, stride: int, count: int, rows: int, all_count: bool
    ) -> None:
        row = 0
        while row + 4 <= rows:
            if all_count:
                mix_all(kept + row * kept_bytes, kept_bytes, dv, logits + row * (4 * KEYS), v, stride, count)
            else:
                mix_four(kept + row * kept_bytes, kept_bytes, dv, logits + row * (4 * KEYS), v, stride, count)
            row += 4
        if row + 2 <= rows:
            mix_two(kept + row * kept_bytes, kept_bytes, dv, logits + row * (4 * KEYS), v, stride, count)
            row += 2
        if row < rows:
            mix_one(kept + row * kept_bytes, kept_bytes, dv, logits + row * (4 * KEYS), v, stride, count)

    @device_function
    def first_keys(params: Flash, unit: int, blocks: int) -> tuple[int, int]:
        """The address of the first keys of a unit, and how many its first block has; none behind the last unit."""
        matrix, key = unit // (blocks * params.parts), unit % params.parts * params.part
        if matrix >= params.batches * params.groups:
            return 0, 0
        return key_rows(params, matrix, key), min(KEYS, params.keys - key)

    def body(ctx: int, params: Flash) -> None:
        memory = scratch(ctx)
        scratch_rows, logits, mixed = (
            memory + params.rows_at,
            memory + params.logits_at,
            params.mixed_at,
        )
        table, queries = memory + _TABLE, memory + _TABLE + 8 * MOST_ROWS
        dk, dv, n_rows, n_keys = params.dk, params.dv, rows_of(params), params.keys
        block, part, parts = params.block, params.part, params.parts
        kept_bytes, k_stride, v_stride = params.kept_bytes, params.k.nb1, params.v.nb1
        k_bytes, v_bytes = params.k.nb0, params.v.nb0
        blocks = -(-n_rows // block)
        units = params.batches * params.groups * blocks * parts
        unit = next_chunk(ctx)
        ahead, n_ahead = first_keys(params, unit, blocks)
        fetch(ahead, k_stride, k_bytes, 0, n_ahead)
        while unit < units and not aborted(ctx):
            matrix, inside = unit // (blocks * parts), unit % (blocks * parts)
            first, number = inside // parts * block, inside % parts
            last = min(first + block, n_rows)
            rows = last - first
            for r in range(rows):
                begin(params, memory + mixed + r * kept_bytes)
                store_word(table + 8 * r, logits + r * (4 * KEYS))
                store_word(queries + 8 * r, query_of(params, matrix, first + r))
            end = min((number + 1) * part, n_keys)
            following = -1
            for key in range(number * part, end, KEYS):
                if key + KEYS < end:
                    ahead, n_ahead = key_rows(params, matrix, key + KEYS), min(KEYS, end - KEYS - key)
                else:
                    following = next_chunk(ctx)
                    ahead, n_ahead = first_keys(params, following, blocks)
                count = shown(params, matrix, first, last, key, min(KEYS, end - key))
                if count == 0:
                    continue
                keys, values = key_rows(params, matrix, key), value_rows(params, matrix, key)
                k, stride = converted(ctx, params.k.convert, keys, k_stride, count, dk, scratch_rows)
                products(k, stride, count, table, queries, rows, dk, values, v_stride, v_bytes)
                v, stride = converted(ctx, params.v.convert, values, v_stride, count, dv, scratch_rows)
                all_count = True
                for r in range(rows):
                    kept = memory + mixed + r * kept_bytes
                    factor = accumulate_softmax(params, matrix, first + r, key, count, kept, logits + r * (4 * KEYS))
                    if factor != 1.0:
                        scaled(kept + KEPT, dv, factor)
                    if has_zeros(kept):
                        all_count = False
                for j in range(0, KEYS, _MIXED):
                    fetch(ahead, k_stride, k_bytes, j, min(j + _MIXED, n_ahead))
                    if j < count:
                        some = min(_MIXED, count - j)
                        powers, held = logits + 4 * j, v + j * stride
                        mix(memory + mixed + KEPT, kept_bytes, dv, powers, held, stride, some, rows, all_count)
            for r in range(rows):
                leave(params, matrix, first + r, number, memory + mixed + r * kept_bytes)
            if following < 0:  # there are no keys
                following = next_chunk(ctx)
            unit = following

    return body
