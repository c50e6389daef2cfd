"""Which rows a matrix product multiplies: the parameters of its kernels, and how these find their way with them.

``weights`` are ``matrices`` matrices of ``M`` rows of ``K`` numbers, numbered ``i02 + ne02 * i03``.

Plainly (``mul_mat``), each is multiplied with ``rows`` rows of activations: ``ne11`` for each of ``r2`` broadcast
copies along the third and ``r3`` along the fourth dimension.  Routed (``mul_mat_id``), matrix ``e`` is an expert, and
``routes`` holds, after ``matrices + 1`` words that say where each expert's begin, the pairs of (slot, token) it serves.
Only experts with ``least`` to ``most`` rows are computed: those that have more or fewer are left to another kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from ggplug_cpu.compiler import DeviceFunction, Kernel, device_function
from ggplug_cpu.context import load_word, store_word, word
from ggplug_cpu.kernels.mul_mat_epilogue import finish_tile
from ggplug_cpu.parameters import Ref, Word


@dataclass(frozen=True)
class Product:
    """The parameters of every product's kernel, in the order of its words; strides and offsets in bytes."""

    weights: Ref
    activations: Ref
    result: Ref
    K: int
    M: int
    matrices: int
    rows: int
    ne02: int
    ne11: int
    r2: int
    r3: int
    nb00: int
    nb01: int
    nb02: int
    nb03: int
    nb10: int
    nb11: int
    nb12: int
    nb13: int
    nb1: int
    nb2: int
    nb3: int
    #: Rows of weights, and rows of activations, in a chunk.
    m_block: int = 0
    v_block: int = 0
    #: Where in a thread's scratch activations are packed; weights come first.
    x_offset: int = 0
    routes: Ref | int = 0
    least: int = 0
    most: int = 0
    #: The kernel that finishes tiles (see :mod:`.mul_mat_epilogue`), or 0; word from which on its words lie.
    epilogue: Kernel | int = 0
    epilogue_words: int = 0

    def words(self) -> Sequence[Word]:
        return [getattr(self, field.name) for field in fields(self)]


_INDEX = {field.name: index for index, field in enumerate(fields(Product))}
WEIGHTS, ACTIVATIONS, RESULT = _INDEX["weights"], _INDEX["activations"], _INDEX["result"]
K, M, MATRICES, ROWS = _INDEX["K"], _INDEX["M"], _INDEX["matrices"], _INDEX["rows"]
NE02, NE11, R2, R3 = _INDEX["ne02"], _INDEX["ne11"], _INDEX["r2"], _INDEX["r3"]
NB00, NB01, NB02, NB03 = (_INDEX[f"nb0{i}"] for i in range(4))
NB10, NB11, NB12, NB13 = (_INDEX[f"nb1{i}"] for i in range(4))
NB1, NB2, NB3 = (_INDEX[f"nb{i}"] for i in range(1, 4))
M_BLOCK, V_BLOCK, X_OFFSET = _INDEX["m_block"], _INDEX["v_block"], _INDEX["x_offset"]
ROUTES, LEAST, MOST = _INDEX["routes"], _INDEX["least"], _INDEX["most"]
EPILOGUE, EPILOGUE_WORDS = _INDEX["epilogue"], _INDEX["epilogue_words"]

#: A route: slot << 32 | token.
SLOT_SHIFT = 32


@device_function
def matrix_address(params, matrix):  # type: ignore[no-untyped-def]  # Numba infers the types of device functions
    """Where the first row of a matrix of weights lies."""
    ne02 = word(params, NE02)
    return word(params, WEIGHTS) + matrix % ne02 * word(params, NB02) + matrix // ne02 * word(params, NB03)


@device_function
def finish(params, room, table, count, m_first, m_last):  # type: ignore[no-untyped-def]
    """Numbers ``m_first`` to ``m_last`` of the rows in the table are computed: the epilogue has its turn."""
    words = params + 8 * word(params, EPILOGUE_WORDS)
    finish_tile(word(params, EPILOGUE), words, room, table, count, m_first, m_last)


@device_function
def _locate_plain(params, chunk, matrix, before):  # type: ignore[no-untyped-def]
    rows = word(params, ROWS)
    m_chunks = -(-word(params, M) // word(params, M_BLOCK))
    v_chunks = -(-rows // word(params, V_BLOCK))
    matrix = chunk // (m_chunks * v_chunks)
    inside = chunk - matrix * (m_chunks * v_chunks)
    return matrix, inside // v_chunks, inside % v_chunks, rows, 0


@device_function
def _locate_routed(params, chunk, matrix, before):  # type: ignore[no-untyped-def]
    m_chunks = -(-word(params, M) // word(params, M_BLOCK))
    starts = word(params, ROUTES)
    while matrix < word(params, MATRICES):
        rows = load_word(starts + 8 * matrix + 8) - load_word(starts + 8 * matrix)
        v_chunks = 0
        if rows >= word(params, LEAST) and rows <= word(params, MOST):
            v_chunks = -(-rows // word(params, V_BLOCK))
        if chunk < before + m_chunks * v_chunks:
            inside = chunk - before
            return matrix, inside // v_chunks, inside % v_chunks, rows, before
        before += m_chunks * v_chunks
        matrix += 1
    return matrix, 0, 0, 0, before


def locate(routed: bool) -> DeviceFunction:
    """``locate(routed)(params, chunk, matrix, before)``: what chunk number ``chunk`` is.

    Returns (matrix, block of weights, block of rows, the matrix's rows, before); the matrix is ``matrices`` when there
    is no such chunk.  ``matrix`` and ``before`` are those of an earlier chunk, at first 0: the search goes on there.
    """
    return _locate_routed if routed else _locate_plain


def fill_table(routed: bool) -> DeviceFunction:
    """``fill_table(routed)(params, matrix, row, count, table, capacity)``: where rows of a product lie.

    Writes ``capacity`` addresses of rows of the result, then as many of rows of activations, for the ``count`` rows
    from ``row`` on of those that ``matrix`` is multiplied with; the last is repeated.
    """
    return _fill_routed if routed else _fill_plain


@device_function
def _fill_plain(params, matrix, row, count, table, capacity):  # type: ignore[no-untyped-def]
    ne11, ne02, r2, r3 = word(params, NE11), word(params, NE02), word(params, R2), word(params, R3)
    copy = row // ne11
    i1 = row - copy * ne11
    first2 = matrix % ne02 * r2
    i2 = first2 + copy % r2
    i3 = matrix // ne02 * r3 + copy // r2
    result = word(params, RESULT) + i1 * word(params, NB1) + i2 * word(params, NB2) + i3 * word(params, NB3)
    source = word(params, ACTIVATIONS) + i1 * word(params, NB11) + i2 * word(params, NB12) + i3 * word(params, NB13)
    for r in range(capacity):
        store_word(table + 8 * r, result)
        store_word(table + 8 * (capacity + r), source)
        if r + 1 < count:
            i1 += 1
            if i1 < ne11:
                result += word(params, NB1)
                source += word(params, NB11)
            else:
                i1 = 0
                i2 += 1
                if i2 == first2 + r2:
                    i2 = first2
                    i3 += 1
                result = word(params, RESULT) + i2 * word(params, NB2) + i3 * word(params, NB3)
                source = word(params, ACTIVATIONS) + i2 * word(params, NB12) + i3 * word(params, NB13)


@device_function
def _fill_routed(params, matrix, row, count, table, capacity):  # type: ignore[no-untyped-def]
    starts = word(params, ROUTES)
    route = starts + 8 * (word(params, MATRICES) + 1) + 8 * (load_word(starts + 8 * matrix) + row)
    for r in range(capacity):
        pair = load_word(route + 8 * min(r, count - 1))
        slot, token = pair >> SLOT_SHIFT, pair & 0xFFFFFFFF
        result = word(params, RESULT) + slot * word(params, NB1) + token * word(params, NB2)
        source = slot % word(params, NE11) * word(params, NB11) + token * word(params, NB12)
        store_word(table + 8 * r, result)
        store_word(table + 8 * (capacity + r), word(params, ACTIVATIONS) + source)
