"""The parameters of products' kernels, and functions that find chunks and rows by them.

``weights`` are ``matrices`` matrices of ``M`` rows of ``K`` numbers, numbered ``i02 + ne02 * i03``.

In ``mul_mat``, each is multiplied with ``rows`` rows of activations: ``ne11`` for each of ``r2`` broadcast
copies along the third and ``r3`` along the fourth dimension.  With ``routes`` (``mul_mat_id``), matrix ``e`` is an
expert, and ``routes`` holds, after ``matrices + 1`` words that say where each expert's begin, the pairs of (slot,
token) it serves.  Only experts with ``least`` to ``most`` rows are computed; another kernel computes the others.
"""

from __future__ import annotations

from typing import NamedTuple

from ggplug_cpu.compiler import device_function
from ggplug_cpu.context import load_word, store_word
from ggplug_cpu.ops.mul_mat.epilogue import finish_tile
from ggplug_cpu.parameters import STRIDES, Parameters, destination, integer, source


class Product(Parameters):
    """The parameters of every product's kernel; offsets in bytes."""

    weights = source(STRIDES)
    activations = source(STRIDES)
    result = destination(STRIDES[1:])
    K = integer()
    M = integer()
    matrices = integer()
    rows = integer()
    ne02 = integer()
    ne11 = integer()
    r2 = integer()
    r3 = integer()
    m_block = integer()
    v_block = integer()
    """Rows of weights, and rows of activations, in a chunk."""
    k_block = integer()
    """Numbers of a row that are packed at a time."""
    x_offset = integer()
    """Offset of packed activations in scratch memory; packed weights come first."""
    pack = integer()
    """The kernel that packs a block of weights (see :mod:`.weights`), or 0 for packed weights."""
    routes = source()
    least = integer()
    most = integer()
    epilogue = integer()
    """The kernel that finishes tiles (see :mod:`.epilogue`), or 0."""
    epilogue_words = integer()
    """The index of the epilogue's first word."""
    residual = source()
    """The epilogue's residual, or 0; it is prefetched while a tile is computed."""
    bias = source()
    """The bias, a number for every row of the weights, or 0."""


class Block(NamedTuple):
    """Rows ``m_first`` to ``m_last`` of a matrix of weights by rows ``v_first`` to ``v_last`` of activations."""

    matrix: int
    m_first: int
    m_last: int
    v_first: int
    v_last: int


class Step(NamedTuple):
    """``numbers`` numbers of each row from ``k`` on; ``units``: how many steps of the micro-kernel these are."""

    k: int
    numbers: int
    units: int


#: A route: slot << 32 | token.
SLOT_SHIFT = 32


@device_function
def matrix_address(params: Product, matrix: int) -> int:
    """The address of the first row of a matrix of weights."""
    ne02 = params.ne02
    inside = matrix % ne02 * params.weights.nb2 + matrix // ne02 * params.weights.nb3
    return params.weights.address + inside


@device_function
def finish(params: Product, tile_at: int, table: int, count: int, m_first: int, m_last: int) -> None:
    """Runs the epilogue over elements ``m_first`` to ``m_last`` of the rows in the table."""
    words = int(params) + 8 * params.epilogue_words
    finish_tile(params.epilogue, words, tile_at, table, count, m_first, m_last)


@device_function
def from_result_to_residual(params: Product) -> int:
    """The distance in bytes from an element of the result to that of the residual; 0 without a residual."""
    residual = params.residual.address
    return residual - params.result.address if residual != 0 else 0


@device_function
def _locate_plain(params: Product, chunk: int, matrix: int, before: int) -> tuple[int, int, int, int, int]:
    rows = params.rows
    m_chunks = -(-params.M // params.m_block)
    v_chunks = -(-rows // params.v_block)
    matrix = chunk // (m_chunks * v_chunks)
    inside = chunk - matrix * (m_chunks * v_chunks)
    return matrix, inside // v_chunks, inside % v_chunks, rows, 0


@device_function
def _locate_routed(params: Product, chunk: int, matrix: int, before: int) -> tuple[int, int, int, int, int]:
    m_chunks = -(-params.M // params.m_block)
    starts = params.routes.address
    while matrix < params.matrices:
        rows = load_word(starts + 8 * matrix + 8) - load_word(starts + 8 * matrix)
        v_chunks = 0
        if rows >= params.least and rows <= params.most:
            v_chunks = -(-rows // params.v_block)
        if chunk < before + m_chunks * v_chunks:
            inside = chunk - before
            return matrix, inside // v_chunks, inside % v_chunks, rows, before
        before += m_chunks * v_chunks
        matrix += 1
    return matrix, 0, 0, 0, before


@device_function
def locate(params: Product, chunk: int, matrix: int, before: int) -> tuple[int, int, int, int, int]:
    """Finds chunk number ``chunk``.

    Returns (matrix, block of weights, block of rows, the matrix's rows, before); the matrix is ``matrices`` when there
    is no such chunk.  ``matrix`` and ``before`` are those of an earlier chunk, from which the search continues, at
    first 0.
    """
    if params.routes.address != 0:
        return _locate_routed(params, chunk, matrix, before)
    return _locate_plain(params, chunk, matrix, before)


@device_function
def fill_table(params: Product, matrix: int, row: int, count: int, table: int, capacity: int) -> None:
    """Fills the table of a tile with addresses.

    Stores ``capacity`` addresses of rows of the result, then as many of rows of activations, for the ``count`` rows
    from ``row`` on of those that ``matrix`` is multiplied with; the last is repeated.
    """
    if params.routes.address != 0:
        _fill_routed(params, matrix, row, count, table, capacity)
    else:
        _fill_plain(params, matrix, row, count, table, capacity)


@device_function
def _matrix_of_result(params: Product, i2: int, i3: int) -> int:
    return params.result.address + i2 * params.result.nb2 + i3 * params.result.nb3


@device_function
def _matrix_of_activations(params: Product, i2: int, i3: int) -> int:
    place = params.activations.address
    return place + i2 * params.activations.nb2 + i3 * params.activations.nb3


@device_function
def _fill_plain(params: Product, matrix: int, row: int, count: int, table: int, capacity: int) -> None:
    ne11, ne02, r2, r3 = params.ne11, params.ne02, params.r2, params.r3
    copy = row // ne11
    i1 = row - copy * ne11
    first2 = matrix % ne02 * r2
    i2 = first2 + copy % r2
    i3 = matrix // ne02 * r3 + copy // r2
    result = _matrix_of_result(params, i2, i3) + i1 * params.result.nb1
    source = _matrix_of_activations(params, i2, i3) + i1 * params.activations.nb1
    for r in range(capacity):
        store_word(table + 8 * r, result)
        store_word(table + 8 * (capacity + r), source)
        if r + 1 < count:
            i1 += 1
            if i1 < ne11:
                result += params.result.nb1
                source += params.activations.nb1
            else:
                i1 = 0
                i2 += 1
                if i2 == first2 + r2:
                    i2 = first2
                    i3 += 1
                result = _matrix_of_result(params, i2, i3)
                source = _matrix_of_activations(params, i2, i3)


@device_function
def _fill_routed(params: Product, matrix: int, row: int, count: int, table: int, capacity: int) -> None:
    starts = params.routes.address
    route = starts + 8 * (params.matrices + 1) + 8 * (load_word(starts + 8 * matrix) + row)
    for r in range(capacity):
        pair = load_word(route + 8 * min(r, count - 1))
        slot, token = pair >> SLOT_SHIFT, pair & 0xFFFFFFFF
        result = params.result.row(slot, token)
        source = slot % params.ne11 * params.activations.nb1 + token * params.activations.nb2
        store_word(table + 8 * r, result)
        store_word(table + 8 * (capacity + r), params.activations.address + source)
