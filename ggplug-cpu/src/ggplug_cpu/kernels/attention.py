"""Attention in one pass: logits, their softmax, and the values mixed by it, a block of queries at a time.

The logits of a block, a row for each query, stay in the thread's scratch, so what has the size of all queries by all
keys is never in memory.  Both products and the softmax are computed by what computes them alone, with the same results
to the bit.  Keys and values are the weights of products, queries and shares of the softmax their activations.
"""

from __future__ import annotations

from ggplug_cpu.compiler import Body, kernel
from ggplug_cpu.context import aborted, next_chunk, scratch
from ggplug_cpu.kernels.mul_mat_gemm import activations_in_room, product_of_blocks, results_in_room
from ggplug_cpu.kernels.mul_mat_rows import Product
from ggplug_cpu.kernels.soft_max import soft_max_row
from ggplug_cpu.parameters import Parameters, integer

#: What :func:`.mul_mat_gemm.product_of_blocks` is asked for, in this order: ``kind weights activations order order``.
Arguments = tuple[str, str, str, str, str]


class Attention(Parameters):
    """Where the words of the three lie, counted in words from these on, and where in a thread's scratch their memory.

    The scratch begins with what the softmax needs.
    """

    logits = integer()
    soft_max = integer()
    mixed = integer()
    rows = integer()
    """Where the logits of a block lie, in rows of ``row_bytes``."""
    row_bytes = integer()
    panels = integer()
    """Where the products have their packed weights and activations."""


@kernel
def attention(
    kind: str,
    keys: str,
    queries: str,
    keys_order: str,
    queries_order: str,
    mixing_kind: str,
    values: str,
    values_order: str,
) -> Body:
    """Two products with a softmax between them; both have the same matrices, and blocks of the same rows.

    The first four and the last three arguments are those of :func:`.mul_mat_gemm.mul_mat_gemm`.
    """
    to_logits = product_of_blocks(kind, keys, queries, keys_order, queries_order, elsewhere=results_in_room)
    mix = product_of_blocks(mixing_kind, values, "f32", values_order, elsewhere=activations_in_room)

    def body(ctx, params):  # type: ignore[no-untyped-def]
        logits, mixed = params + 8 * Attention.logits(params), params + 8 * Attention.mixed(params)
        softly = params + 8 * Attention.soft_max(params)
        room, stride = scratch(ctx) + Attention.rows(params), Attention.row_bytes(params)
        panels = scratch(ctx) + Attention.panels(params)
        x_of_logits, x_of_mixed = panels + Product.x_offset(logits), panels + Product.x_offset(mixed)
        rows, v_block = Product.rows(logits), Product.v_block(logits)
        v_chunks = -(-rows // v_block)
        n_q, ne02 = Product.ne11(logits), Product.ne02(logits)
        r2, r3 = Product.r2(logits), Product.r3(logits)
        chunks = Product.matrices(logits) * v_chunks
        while not aborted(ctx):
            chunk = next_chunk(ctx)
            if chunk >= chunks:
                return
            matrix = chunk // v_chunks
            first = (chunk - matrix * v_chunks) * v_block
            last = min(first + v_block, rows)
            to_logits(logits, matrix, 0, Product.M(logits), first, last, panels, x_of_logits, room, stride)
            for row in range(first, last):
                copy = row // n_q
                head, batch = matrix % ne02 * r2 + copy % r2, matrix // ne02 * r3 + copy // r2
                place = room + (row - first) * stride
                soft_max_row(ctx, softly, row - copy * n_q, head, batch, place, place)
            mix(mixed, matrix, 0, Product.M(mixed), first, last, panels, x_of_mixed, room, stride)

    return body
