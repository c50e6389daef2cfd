"""Matrix products of few columns: one dot product for each number of the result; weights are read once, in place.

Memory bandwidth bounds them, so rows of weights are streamed with prefetches, and each row is multiplied with all
columns while it is in the cache.  The order in which a dot product is summed depends only on K and the target: results
are bit-identical for any number of threads, and of columns.
"""

from __future__ import annotations

import functools
import operator

from ggplug_cpu import compiler, features
from ggplug_cpu.compiler import Body, DeviceFunction, device_function, kernel, shared
from ggplug_cpu.context import aborted, load_word, next_chunk, scratch
from ggplug_cpu.ops.mul_mat.epilogue import TILE_BYTES
from ggplug_cpu.ops.mul_mat.rows import Product, fill_table, finish, locate, matrix_address
from ggplug_cpu.parts.programs import over_vectors, read, write
from ggplug_cpu.simd import dots, values
from ggplug_cpu.simd.lookup import permutes_bytes
from ggplug_cpu.simd.memory import LINE, emit_prefetch
from ggplug_cpu.simd.values import F32, I8, I32, I64, Value, constant, emitted, joined, loop, vector
from ggplug_cpu.types import BLOCKS, GROUP, PLAIN, Blocks

#: The most columns these kernels take: what the table of addresses has scratch_row for.
MOST_COLUMNS = 32
#: Columns that one pass multiplies with a row of weights.
_COLUMNS = 4
#: Distance of prefetches in bytes.
_AHEAD = 4096


def _width() -> int:
    return features.target().vector_bytes // 4


def _plain_rows(columns: int) -> int:
    """Rows of weights that are multiplied with one load of activations: with four columns, as many as registers
    allow.
    """
    many = features.has_many_registers()
    return 4 if many or columns == 1 else 2


def sums_of(vectors: list[Value]) -> Value:
    """The sums of the lanes of each of ``vectors``, as one vector.  Lanes are added by halves, as in ``Value.sum``."""
    n = len(vectors)
    pieces = 1  # partial sums in one vector
    while len(vectors) > 1:
        lanes = vectors[0].count
        size = lanes // pieces
        vectors = [_halved(a, b, size) for a, b in zip(vectors[0::2], vectors[1::2], strict=True)]
        pieces *= 2
    (merged,) = vectors
    while merged.count > n:
        size = merged.count // n
        low = [piece * size + i for piece in range(n) for i in range(size // 2)]
        merged = merged.shuffle(low) + merged.shuffle([lane + size // 2 for lane in low])
    return merged


def _halved(a: Value, b: Value, size: int) -> Value:
    """Adds the halves of every run of ``size`` lanes of ``a``, then of ``b``."""
    low = [start + i for start in range(0, 2 * a.count, size) for i in range(size // 2)]
    return a.shuffle(low, b) + a.shuffle([lane + size // 2 for lane in low], b)


def _write(sums: Value, place: Value, valid: Value) -> None:
    """Write the first ``valid`` of a few sums."""
    if sums.count == 1:
        values.store(place, sums)
    else:
        values.masked_store(place, sums, values.first_lanes(sums.count, valid))


@functools.cache
def dot_plain(type_name: str, rows: int, columns: int, *, cached: bool = False) -> compiler.Intrinsic:
    """``dot_plain(...)(w, stride, valid, results, xs, offset, numbers)``: ``rows`` rows of weights by ``columns``.

    Rows lie ``stride`` bytes apart from ``w`` on; there are ``valid``.  ``xs`` points to the addresses of the columns'
    f32 activations, ``results`` to those of their results, which are ``offset`` bytes behind.  ``cached``: the next
    rows are not prefetched, and results have places for all ``rows``, of which those behind ``valid`` are arbitrary.
    """
    t = PLAIN[type_name]

    def emit(w: Value, stride: Value, valid: Value, results: Value, xs: Value, offset: Value, numbers: Value) -> None:
        b, width = w.b, _width()
        sources = [w + stride * (valid - 1).minimum(r) for r in range(rows)]
        x = [values.load(xs, I64, 8 * c, align=8) for c in range(columns)]

        def step(i: Value, sums: list[Value]) -> list[Value]:
            at = i * width
            weights = [t.read(source + at * t.elem_bytes, width) for source in sources]
            for source in () if cached else sources:
                emit_prefetch(source + stride * rows + at * t.elem_bytes, locality=2)
            for c in range(columns):
                y = values.load(x[c] + at * 4, vector(F32, width))
                for r in range(rows):
                    sums[c * rows + r] = weights[r].fma(y, sums[c * rows + r])
            return sums

        whole, rest = numbers.lshr(width.bit_length() - 1), numbers & (width - 1)
        sums = loop(whole, [constant(b, vector(F32, width), 0)] * (rows * columns), step)

        def tail(_: Value, sums: list[Value]) -> list[Value]:
            at = whole * width
            weights = [t.read_first(source + at * t.elem_bytes, width, rest) for source in sources]
            mask = values.first_lanes(width, rest)
            for c in range(columns):
                y = values.masked_load(x[c] + at * 4, vector(F32, width), mask)
                for r in range(rows):
                    sums[c * rows + r] = weights[r].fma(y, sums[c * rows + r])
            return sums

        sums = loop(rest.unequal(0).zext(I64), sums, tail)
        places = [values.load(results, I64, 8 * c, align=8) + offset for c in range(columns)]
        at_once = cached and rows * columns <= width
        merged = sums_of(sums) if at_once else None
        for c, place in enumerate(places):
            if merged is not None:
                values.store(place, merged.part(c * rows, rows))
            else:
                _write(sums_of(sums[c * rows : (c + 1) * rows]), place, valid)

    return emitted("void(i64, i64, i64, i64, i64, i64, i64)")(emit)


def totals_of(type_name: str) -> int:
    """The number of rounded activations per total, for weights of a block type; 0 where it needs no totals."""
    t = BLOCKS[type_name]
    return t.group if t.has_minima else 0


def offset_of_sums(type_name: str, activations: str) -> int:
    """The offset of a block type that is corrected by sums of the rounded activations; 0 if no sums are needed.

    If the target multiplies unsigned with signed bytes, weights stay unsigned, and the offset times the sums of
    activations is subtracted; if it multiplies signed bytes, the offset is subtracted from the weights.
    """
    unsigned = dots.int8_product(_width()) == "u8i8" and not is_signed(type_name, activations)
    return BLOCKS[type_name].offset if unsigned else 0


def is_signed(weights: str, activations: str) -> bool:
    """Whether :func:`mul_mat_dot` multiplies ``signed`` weights with activations of a type."""
    width = _width()
    if weights not in BLOCKS or activations in BLOCKS or dots.int8_product(width) != "u8i8":
        return False
    return dots.signed_is_faster(width, BLOCKS[weights].limits[1] * 128)


def _parts_in_a_vector() -> int:
    return max(1, 4 * _width() // GROUP)


def _blocks_together(t: Blocks) -> int:
    """Blocks of a row whose scales are multiplied with those of activations at once: those whose products fill a
    vector; where a vector holds one part, those whose scales fill the smallest vector.
    """
    parts = 1 if 4 * _width() < GROUP else max(_parts_in_a_vector(), 4 if _width() == GROUP // 4 else 1)
    return max(1, parts // t.parts)


def blocks_at_once(t: Blocks) -> int:
    """Blocks of a row in a step of the inner loop: those that fill a vector, and at least a cache line.

    So every cache line is prefetched once, and the loop body is long enough to hide the latency of its sums.
    """
    if 4 * _width() >= GROUP:
        return _blocks_together(t)
    return 1 << (-(-LINE // t.block_bytes) - 1).bit_length()


@functools.cache
def dot_blocks(type_name: str, rows: int, columns: int, signed: bool = False) -> compiler.Intrinsic:
    """``dot_blocks(...)(w, distance, results, xs, offset, stride, numbers)``: ``rows`` rows of blocks by ``columns``.

    Row ``i`` lies ``i * distance`` rows of ``stride`` bytes behind ``w``, its results ``4 * i * distance`` bytes behind
    ``offset``.  The rest is as for :func:`dot_plain`, but activations are int8 from ``mul_mat_round``, with the sums
    and totals that the type of weights needs.  ``signed``: as for :func:`mul_mat_dot`.
    """
    t = BLOCKS[type_name]

    def emit(
        w: Value, distance: Value, results: Value, xs: Value, offset: Value, stride: Value, numbers: Value
    ) -> None:
        b = w.b
        at_once, together = blocks_at_once(t), _blocks_together(t)
        x = [_Activations(values.load(xs, I64, 8 * c, align=8), numbers, t) for c in range(columns)]
        sources = [w + distance * stride * r for r in range(rows)]

        def step(i: Value, carried: list[Value]) -> list[Value]:
            position, sums = carried[0], carried[1:]
            for source in sources:
                for line in range(0, at_once * t.block_bytes, LINE):
                    emit_prefetch(source + position + (_AHEAD + line), 0 if columns == 1 else 3)
            for first in range(0, at_once, together):
                places = [source + position + first * t.block_bytes for source in sources]
                sums = _add_blocks(t, signed, places, x, i * at_once + first, sums, together)
            return [position + at_once * t.block_bytes, *sums]

        blocks = numbers.lshr(t.block_size.bit_length() - 1)
        whole = blocks.lshr(at_once.bit_length() - 1)
        zero = constant(b, vector(F32, _width()), 0)
        position, *sums = loop(whole, [constant(b, I64, 0), *([zero] * (rows * columns))], step)
        if at_once > 1:

            def tail(i: Value, sums: list[Value]) -> list[Value]:
                places = [source + position + i * t.block_bytes for source in sources]
                return _add_blocks(t, signed, places, x, whole * at_once + i, sums, 1)

            sums = loop(blocks & (at_once - 1), sums, tail)
        for c in range(columns):
            place = values.load(results, I64, 8 * c, align=8) + offset
            for r in range(rows):
                values.store(place + distance * (4 * r), sums[r * columns + c].sum())

    return emitted("void(i64, i64, i64, i64, i64, i64, i64)")(emit)


class _Activations:
    """A column of int8 activations: where its numbers, scales, totals and sums begin."""

    def __init__(self, row: Value, numbers: Value, t: Blocks) -> None:
        self.numbers = row
        self.scales = row + numbers
        self.totals = self.scales + numbers.lshr(3)
        behind = (numbers << 2).lshr(t.group.bit_length() - 1)
        self.sums = self.totals + behind if t.has_minima else self.totals


def _add_blocks(
    t: Blocks,
    signed: bool,
    places: list[Value],
    x: list[_Activations],
    block: Value,
    sums: list[Value],
    blocks: int,
) -> list[Value]:
    """The products of ``blocks`` blocks of every row of weights by every column, added to ``sums``.

    ``places`` are those of the rows' blocks, ``block`` is the first one's number in its row.
    """
    b, width, columns = block.b, _width(), len(x)
    product = "i8i8" if signed else dots.int8_product(width)
    largest = dots.LARGEST_ROUNDED if signed else t.limits[1] * 128
    parts = blocks * t.parts
    in_a_vector = min(_parts_in_a_vector(), parts)
    span = max(4 * min(width, GROUP // 4 * in_a_vector), t.group)  # numbers whose sums are scaled together
    read = t.quants if product == "u8i8" else t.signed
    addresses = [[place + j * t.block_bytes for j in range(blocks)] for place in places]
    factors = [t.factors(each) for each in addresses]
    first_part = block * t.parts
    at_once = None
    permutes = product == "u8i8" and permutes_bytes() and blocks == 1 and in_a_vector == 2
    if t.at_once is not None and permutes:
        at_once = t.at_once(places)
    # for every group: the scale of the weights times that of the activations
    of_groups = [part * GROUP // t.group + i for part in range(parts) for i in range(GROUP // t.group)]
    scaled = []
    for column in x:
        factor = values.load(column.scales + first_part * 4, vector(F32, parts))
        if t.group < GROUP:
            factor = factor.shuffle([group * t.group // GROUP for group in of_groups])
        scaled.append([each.scales.part(0, len(of_groups)) * factor for each in factors])
    if t.sums_of_groups is not None and permutes:
        assert not t.has_minima
        of_rows = t.sums_of_groups(places, [column.numbers + first_part * GROUP for column in x])
        for r, of_columns in enumerate(of_rows):
            for c, term in enumerate(of_columns):
                sums[r * columns + c] = _fma_of_lanes(scaled[c][r], term, sums[r * columns + c])
        return sums
    for first in range(0, parts, in_a_vector):
        chosen = [divmod(first + j, t.parts) for j in range(in_a_vector)]
        if at_once is None:
            quants = [joined([read(each[j], constant(b, I64, part)) for j, part in chosen]) for each in addresses]
        else:
            quants = [each[first // in_a_vector] for each in at_once]
        i = first_part + first
        for c in range(columns):
            y = values.load(x[c].numbers + i * GROUP, vector(I8, GROUP * in_a_vector))
            start = None
            if product == "u8i8" and t.offset:
                start = values.load(x[c].sums + i * GROUP, vector(I32, GROUP // 4 * in_a_vector))
            for r in range(len(places)):
                for at in range(0, GROUP * in_a_vector, span):
                    begun = None if start is None else start.part(at // 4, span // 4)
                    lanes = min(width, span // 4)
                    term = _dot(product, largest, begun, quants[r].part(at, span), y.part(at, span), lanes).convert(F32)
                    group = (first * GROUP + at) // t.group
                    spread = [group + (4 * lane // t.group if span > t.group else 0) for lane in range(lanes)]
                    factors_of_lanes = scaled[c][r].shuffle(spread)
                    if lanes < width:  # a single last block: the upper lanes add nothing
                        nothing = constant(b, term.type, 0)
                        term, factors_of_lanes = term.concat(nothing), factors_of_lanes.concat(nothing)
                    sums[r * columns + c] = term.fma(factors_of_lanes, sums[r * columns + c])
    if t.has_minima:
        groups = blocks * t.groups
        for c in range(columns):
            totals = values.load(x[c].totals + block * (4 * t.groups), vector(F32, groups))
            for r in range(len(places)):
                minima = factors[r].minima
                assert minima is not None
                sums[r * columns + c] = _fma_of_lanes(minima.part(0, groups), totals, sums[r * columns + c])
    return sums


def _fma_of_lanes(a: Value, b: Value, sums: Value) -> Value:
    """``a * b`` added to lanes of ``sums``, whose number may be larger or smaller."""
    width = sums.count
    while a.count < width:
        nothing = constant(a.b, a.type, 0)
        a, b = a.concat(nothing), b.concat(nothing)
    for first in range(0, a.count, width):
        sums = a.part(first, width).fma(b.part(first, width), sums)
    return sums


def _dot(product: str, largest: int, start: Value | None, quants: Value, y: Value, width: int) -> Value:
    """int8 dot products in ``width`` lanes; where vectors are narrower than a block, its parts add up."""
    parts = [(quants.part(i, 4 * width), y.part(i, 4 * width)) for i in range(0, quants.count, 4 * width)]
    total = constant(y.b, vector(I32, width), 0)
    if start is None:
        for q, x in parts:
            total = dots.emit_dot(product, total, q, x, mixed=True, largest=largest)
        return total
    begun = [
        dots.emit_dot(product, start.part(i * width, width), q, x, largest=largest) for i, (q, x) in enumerate(parts)
    ]
    return functools.reduce(operator.add, begun)


@emitted("void(i64, i64, i64, i64)")
def _add_bias(row: Value, bias: Value, first: Value, last: Value) -> None:
    """Adds elements ``first`` to ``last`` of the bias to a row of the result."""
    begin = first * 4

    def visit(at: Value, mask: Value | None, _: list[Value]) -> list[Value]:
        place = row + begin + at
        write(place, read(place, mask) + read(bias + begin + at, mask), mask)
        return []

    over_vectors(last - first, [], visit)


@kernel
def mul_mat_dot(weights: str, signed: bool = False) -> Body:
    """Rows of ``weights`` by at most ``MOST_COLUMNS`` columns: f32 rows for plain types, int8 rows for block types.

    ``signed``: numbers of blocks are signed, and no activation is -128: faster where an instruction needs that.
    """
    one, some = _columns(weights, 1, signed), _columns(weights, _COLUMNS, signed)

    def body(ctx: int, params: Product) -> None:
        table = scratch(ctx)
        k, m_all, matrices = params.K, params.M, params.matrices
        m_block, stride = params.m_block, params.weights.nb1
        matrix, before = 0, 0
        while not aborted(ctx):
            matrix, m_chunk, _, rows, before = locate(params, next_chunk(ctx), matrix, before)
            if matrix >= matrices:
                return
            fill_table(params, matrix, 0, rows, table, MOST_COLUMNS)
            base = matrix_address(params, matrix)
            m_first = m_chunk * m_block
            m_last = min(m_first + m_block, m_all)
            if rows == 1:
                one(table, base, stride, m_first, m_last, rows, k)
            else:
                some(table, base, stride, m_first, m_last, rows, k)
            if params.bias.address != 0:
                for row in range(rows):
                    _add_bias(load_word(table + 8 * row), params.bias.address, m_first, m_last)
            finish(params, table + 16 * MOST_COLUMNS, table, rows, m_first, m_last)

    return body


def scratch_bytes() -> int:
    """Bytes of scratch memory: the addresses of columns, and the parameters of an epilogue."""
    return 16 * MOST_COLUMNS + TILE_BYTES


def _columns(weights: str, columns: int, signed: bool) -> DeviceFunction:
    """``run(table, base, stride, m_first, m_last, rows, k)``: rows of weights by all columns, ``columns`` at a time."""
    return _block_columns(weights, columns, signed) if weights in BLOCKS else _plain_columns(weights, columns)


@shared
def _plain_columns(weights: str, columns: int) -> DeviceFunction:
    step = _plain_rows(columns)
    dot = dot_plain(weights, step, columns)
    most = MOST_COLUMNS

    @device_function
    def run(table: int, base: int, stride: int, m_first: int, m_last: int, rows: int, k: int) -> None:
        for m in range(m_first, m_last, step):
            for column in range(0, rows, columns):
                results = table + 8 * column
                dot(base + m * stride, stride, m_last - m, results, results + 8 * most, 4 * m, k)

    return run


@shared
def _block_columns(weights: str, columns: int, signed: bool) -> DeviceFunction:
    # Several streams, each over its part of the rows, so that each prefetch hits what its stream reads next.
    streams = 2 if BLOCKS[weights].sums_of_groups is None else 4
    dot = dot_blocks(weights, streams, columns, signed)
    most = MOST_COLUMNS

    @device_function
    def run(table: int, base: int, stride: int, m_first: int, m_last: int, rows: int, k: int) -> None:
        distance = (m_last - m_first) // streams
        for m in range(m_first, m_last - (streams - 1) * distance):  # the last rows of a part are the next one's first
            for column in range(0, rows, columns):
                results = table + 8 * column
                dot(base + m * stride, distance, results, results + 8 * most, 4 * m, stride, k)

    return run
