"""Attention in one pass: logits, their softmax, and the values mixed by it, a block of queries at a time.

The logits of a block, a row for each query, stay in the thread's scratch memory, so the matrix of all queries by all
keys is never in memory.  The device functions are those of the single ops, so the results are the same to the bit.
Keys and values are the weights of the products, queries and probabilities their activations.

A product of weights and the attended values may follow in the same pass; then these stay in scratch memory, too.
"""

from __future__ import annotations

from typing import NamedTuple

from ggplug_cpu.compiler import Body, DeviceFunction, device_function, kernel
from ggplug_cpu.context import aborted, next_chunk, scratch
from ggplug_cpu.ops.mul_mat.gemm import Rows, activations_from_scratch, product_of_blocks, results_to_scratch
from ggplug_cpu.ops.mul_mat.prepare import round_rows
from ggplug_cpu.ops.mul_mat.rows import Block, Product
from ggplug_cpu.ops.soft_max.kernels import SoftMax, soft_max_row
from ggplug_cpu.parameters import Parameters, integer, part


class Attention(Parameters):
    """The parameters of the three steps, and the offsets of their scratch memory in bytes.

    Scratch memory begins with that of the softmax.
    """

    logits = part(Product)
    soft_max = part(SoftMax)
    mixed = part(Product)
    rows = integer()
    """Offset of the logits of a block, in rows of ``row_bytes``."""
    row_bytes = integer()
    panels = integer()
    """Offset of the packed weights and activations of the products."""


class AttentionLayer(Attention):
    """As :class:`Attention`, for attention and a product of weights and the attended values of all heads."""

    out = part(Product)
    heads = integer()
    """Offset of the rows of attended values, ``heads_bytes`` apart; a head has ``head_bytes`` of each row."""
    heads_bytes = integer()
    head_bytes = integer()
    rounded = integer()
    """Offset of these rows rounded to int8, if the product takes int8."""
    rounded_bytes = integer()


class Mixed(NamedTuple):
    """Rows of probabilities in scratch memory, and those of what is attended; 0 where these stay where they are."""

    base: int
    stride: int
    results: int
    results_stride: int


@kernel
def attention(kind: str, queries: str, order: str, mixing_kind: str) -> Body:
    """Two products with a softmax between them; both have the same matrices, and blocks of the same rows.

    The first three arguments are those of ``mul_mat_gemm``, ``mixing_kind`` is the second product's.
    """
    attend = _attended(kind, queries, order, mixing_kind, activations_from_scratch)

    def body(ctx: int, params: Attention) -> None:
        logits = params.logits
        rows, v_block = logits.rows, logits.v_block
        v_chunks = -(-rows // v_block)
        chunks = logits.matrices * v_chunks
        while not aborted(ctx):
            chunk = next_chunk(ctx)
            if chunk >= chunks:
                return
            matrix = chunk // v_chunks
            first = (chunk - matrix * v_chunks) * v_block
            attend(ctx, params, matrix, first, min(first + v_block, rows), Rows(0, 0))

    return body


@kernel
def attention_layer(
    kind: str,
    queries: str,
    order: str,
    mixing_kind: str,
    out_kind: str,
    packed: str,
    totals: int = 0,
    rounds: bool = False,
) -> Body:
    """Attention, and a product of packed weights and the attended values of all heads of a query.

    The first four arguments are those of :func:`attention`, ``out_kind`` and ``packed`` are that product's;
    ``rounds``: the product takes int8, with ``totals`` as for ``mul_mat_round``.  Every head of a
    query has keys of its own.
    """
    attend = _attended(kind, queries, order, mixing_kind, _from_scratch_to_scratch)
    multiply = product_of_blocks(out_kind, "int8" if rounds else "f32", "rows", packed, activations_from_scratch)
    prepare = _rounded(totals) if rounds else _as_they_are

    def body(ctx: int, params: AttentionLayer) -> None:
        logits, out = params.logits, params.out
        rows, v_block, heads = logits.rows, logits.v_block, logits.ne02
        M, m_block = out.M, out.m_block
        v_chunks = -(-rows // v_block)
        chunks = logits.matrices // heads * v_chunks
        memory = scratch(ctx)
        while not aborted(ctx):
            chunk = next_chunk(ctx)
            if chunk >= chunks:
                return
            text = chunk // v_chunks
            first = (chunk - text * v_chunks) * v_block
            last = min(first + v_block, rows)
            for head in range(heads):
                attended = Rows(memory + params.heads + head * params.head_bytes, params.heads_bytes)
                attend(ctx, params, text * heads + head, first, last, attended)
            attended = prepare(params, memory, last - first, out.K)
            x = memory + params.panels
            for m in range(0, M, m_block):
                block = Block(0, m, min(m + m_block, M), text * rows + first, text * rows + last)
                multiply(out, block, 0, x, attended)

    return body


def _attended(kind: str, queries: str, order: str, mixing_kind: str, relocate: DeviceFunction) -> DeviceFunction:
    """``attend(ctx, params, matrix, first, last, attended)``: queries ``first`` to ``last`` of a matrix of keys.

    ``relocate``: that of the second product, called with a :class:`Mixed` that ends with ``attended``.
    """
    to_logits = product_of_blocks(kind, queries, order, relocate=results_to_scratch)
    mix = product_of_blocks(mixing_kind, "f32", relocate=relocate)

    @device_function
    def attend(ctx: int, params: Attention, matrix: int, first: int, last: int, attended: Rows) -> None:
        logits, mixed = params.logits, params.mixed
        powers = Rows(scratch(ctx) + params.rows, params.row_bytes)
        panels = scratch(ctx) + params.panels
        x_of_logits, x_of_mixed = panels + logits.x_offset, panels + mixed.x_offset
        n_q, ne02 = logits.ne11, logits.ne02
        r2, r3 = logits.r2, logits.r3
        to_logits(logits, Block(matrix, 0, logits.M, first, last), panels, x_of_logits, powers)
        for row in range(first, last):
            copy = row // n_q
            head, batch = matrix % ne02 * r2 + copy % r2, matrix // ne02 * r3 + copy // r2
            place = powers.base + (row - first) * powers.stride
            soft_max_row(ctx, params.soft_max, row - copy * n_q, head, batch, place, place)
        mix(mixed, Block(matrix, 0, mixed.M, first, last), panels, x_of_mixed, Mixed(*powers, *attended))

    return attend


@device_function
def _from_scratch_to_scratch(table: int, capacity: int, row: int, count: int, rows: Mixed) -> None:
    results_to_scratch(table, capacity, row, count, Rows(rows.results, rows.results_stride))
    activations_from_scratch(table, capacity, row, count, Rows(rows.base, rows.stride))


@device_function
def _as_they_are(params: AttentionLayer, memory: int, count: int, K: int) -> Rows:
    return Rows(memory + params.heads, params.heads_bytes)


def _rounded(totals: int) -> DeviceFunction:
    round_all = round_rows(totals)

    @device_function
    def prepare(params: AttentionLayer, memory: int, count: int, K: int) -> Rows:
        rows, row_bytes = memory + params.rounded, params.rounded_bytes
        heads, heads_bytes = memory + params.heads, params.heads_bytes
        round_all(rows, row_bytes, heads, heads_bytes, count, K, 0, K)
        return Rows(rows, row_bytes)

    return prepare
