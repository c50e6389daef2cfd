"""Two products with a program between them, in one pass: a feed-forward layer, a block of rows at a time.

The hidden activations, a step of the second product's K at a time, stay in the thread's scratch memory: the matrix of
all of them is never in memory.  The device functions are those of single products, so the results are the same to the
bit.  The weights are packed, and every block of rows reads them again.
"""

from __future__ import annotations

from ggplug_cpu.compiler import Body, DeviceFunction, device_function, kernel
from ggplug_cpu.context import aborted, next_chunk, scratch
from ggplug_cpu.ops.mul_mat.gemm import (
    Rows,
    activations_from_scratch,
    product_of_blocks,
    results_to_scratch,
    slice_of_blocks,
)
from ggplug_cpu.ops.mul_mat.prepare import round_rows
from ggplug_cpu.ops.mul_mat.rows import Block, Product
from ggplug_cpu.parameters import Parameters, integer, part


class FeedForward(Parameters):
    """The parameters of both products, and offsets of scratch memory in bytes.

    Scratch memory begins with the packed activations.
    """

    up = part(Product)
    down = part(Product)
    hidden = integer()
    """Offset of the hidden activations of a step, in rows ``hidden_bytes`` apart."""
    hidden_bytes = integer()
    rounded = integer()
    """Offset of whole hidden rows rounded to int8, if the second product takes int8."""
    rounded_bytes = integer()


@kernel
def feed_forward(
    up_kind: str,
    up_packed: str,
    activations: str,
    order: str,
    down_kind: str,
    down_packed: str,
    totals: int = 0,
    rounds: bool = False,
) -> Body:
    """A product whose results are the activations of another, with the epilogues of both.

    The arguments are those of ``mul_mat_gemm``; ``rounds``: the second product takes int8, with
    ``totals`` as for ``mul_mat_round``.
    """
    to_hidden = product_of_blocks(up_kind, activations, order, up_packed, results_to_scratch)
    add = slice_of_blocks(down_kind, "int8" if rounds else "f32", down_packed, activations_from_scratch)
    prepare = _rounded(totals) if rounds else _as_they_are

    def body(ctx: int, params: FeedForward) -> None:
        up, down = params.up, params.down
        memory = scratch(ctx)
        rows, v_block = up.rows, up.v_block
        K, k_block, M = down.K, down.k_block, down.M
        up_block, down_block = up.m_block, down.m_block
        while not aborted(ctx):
            first = next_chunk(ctx) * v_block
            if first >= rows:
                return
            last = min(first + v_block, rows)
            for k in range(0, K, k_block):
                end = min(k + k_block, K)
                # so that number k of a row is the first one at its base
                hidden = Rows(memory + params.hidden - 4 * k, params.hidden_bytes)
                for m in range(k, end, up_block):
                    to_hidden(up, Block(0, m, min(m + up_block, end), first, last), 0, memory, hidden)
                rows_of_step = prepare(params, memory, hidden, last - first, K, k, end - k)
                for m in range(0, M, down_block):
                    block = Block(0, m, min(m + down_block, M), first, last)
                    add(down, block, k, end - k, 0, memory, rows_of_step)

    return body


@device_function
def _as_they_are(params: FeedForward, memory: int, hidden: Rows, count: int, K: int, k: int, numbers: int) -> Rows:
    return hidden


def _rounded(totals: int) -> DeviceFunction:
    round_all = round_rows(totals)

    @device_function
    def prepare(params: FeedForward, memory: int, hidden: Rows, count: int, K: int, k: int, numbers: int) -> Rows:
        rows, row_bytes = memory + params.rounded, params.rounded_bytes
        round_all(rows, row_bytes, hidden.base + 4 * k, hidden.stride, count, K, k, numbers)
        return Rows(rows, row_bytes)

    return prepare
