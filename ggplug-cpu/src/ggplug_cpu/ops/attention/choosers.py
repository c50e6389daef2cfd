"""Chooses kernels for attention in one pass: logits k q, their softmax, and the product of values and probabilities."""

from __future__ import annotations

from dataclasses import dataclass

from ggplug import ops
from ggplug.backend import Decline
from ggplug.nodes.groups import Group
from ggplug.patterns import Element, Hole, Names, Pattern, Step, chain, maybe, of, pattern, viewed
from ggplug.tensor import Extents, Tensor
from ggplug.types import F32
from ggplug_cpu.choosing.chooser import GroupChooser
from ggplug_cpu.choosing.entries import RESULT, Entries, slot_of, source_tensor
from ggplug_cpu.choosing.programs import KINDS
from ggplug_cpu.ops.attention.kernels import Attention, AttentionLayer
from ggplug_cpu.ops.attention.kernels import attention as attention_kernel
from ggplug_cpu.ops.attention.kernels import attention_layer as attention_layer_kernel
from ggplug_cpu.ops.mul_mat.fused import finished, finished_rows, strides_in_copy
from ggplug_cpu.ops.mul_mat.layout import layout
from ggplug_cpu.ops.mul_mat.prepare import int8_row_bytes
from ggplug_cpu.ops.mul_mat.products import IN_SCRATCH, InBlocks, OfPacked, Placed, in_blocks, of_packed
from ggplug_cpu.ops.soft_max import kernels as soft_max
from ggplug_cpu.ops.soft_max.choosers import soft_max_words
from ggplug_cpu.parameters import Place, Ref, Words
from ggplug_cpu.tape import Entry

#: Bytes of the logits of a block: with the packed weights that they are multiplied with they fit a second-level cache.
_LOGITS_BYTES = 256 << 10
#: The least rows of a block, if there are as many: packing of keys and values is done once a block.
_LEAST_ROWS = 96
#: Blocks to aim at, so that threads finish together.
_BLOCKS = 48
#: If a product follows: the least queries of a block, which reads all weights again; and the least number of blocks.
_LEAST_ROWS_OF_A_LAYER, _LEAST_BLOCKS = 48, 8


def attention(group: Group, names: Names) -> Entries | Decline:
    """y = v softmax(k q); a copy may exchange axes of the result, and another one those of the values before.

    Names: ``logits``, ``probabilities`` and ``mixed``; ``transposed``, a copy of values; ``copy``, one of the result.
    """
    node, mixed = group.node, names["mixed"]
    nb = mixed.nb if node is mixed else strides_in_copy(mixed, source_tensor(node, 0), node)
    if nb is None:
        return Decline("the copy is not of the whole result, or splits its rows")
    fused = _fused(group, names, Ref(RESULT), nb)
    if isinstance(fused, Decline):
        return fused
    kernel = attention_kernel(*fused.arguments)
    words = Attention.words(**fused.places(Attention.word_count())).followed_by(fused.words)
    return Entries((Entry(kernel, words, fused.tasks),), scratch_bytes=fused.scratch_bytes)


def attention_layer(group: Group, names: Names) -> Entries | Decline:
    """y = f(w v softmax(k q)): the product of weights and the attended values of all heads, while these are in the
    cache.

    Names: as for :func:`attention`, ``copy`` among them, and ``product``.
    """
    mixed, copy, product = names["mixed"], names["copy"], names["product"]
    heads, whole = mixed.ne[2], source_tensor(product, 1)
    width = 4 * mixed.ne[0]
    nb = strides_in_copy(mixed, source_tensor(copy, 0), copy)
    wanted = 4, width * heads, width, width * heads * mixed.ne[1]
    if nb is None or any(n > 1 and mine != its for n, mine, its in zip(mixed.ne, nb, wanted, strict=True)):
        return Decline("the copy does not make the heads of a query contiguous")
    if whole.nbytes != copy.nbytes or whole.ne[0] != mixed.ne[0] * heads or not whole.is_contiguous():
        return Decline("a row of the product's activations is not the attended values of all heads of a query")
    if source_tensor(names["logits"], 0).ne[2:] != source_tensor(names["logits"], 1).ne[2:]:
        return Decline("several heads share keys")
    if any(node in group.nodes[group.nodes.index(product) :] for node in (copy, mixed)):
        return Decline("the nodes of attention are not in front of the product")
    fused = _fused(group, names, IN_SCRATCH, mixed.nb)
    if isinstance(fused, Decline):
        return fused
    if fused.v_block < _LEAST_ROWS_OF_A_LAYER or mixed.ne[3] * -(-mixed.ne[1] // fused.v_block) < _LEAST_BLOCKS:
        return Decline("there are too few queries for blocks that read all weights again")
    behind = group.nodes[group.nodes.index(product) + 1 :]
    finish = finished_rows if any(isinstance(node.op, ops.RowNorm) for node in behind) else finished
    placed = finish(group, product, behind, Ref(slot_of(group, source_tensor(product, 0))), IN_SCRATCH)
    if isinstance(placed, Decline):
        return placed
    out = of_packed(product, placed, fused.v_block, inside=True)
    if isinstance(out, Decline):
        return out
    return _layer(fused, out, whole.ne[0], width)


def _layer(fused: _FusedAttention, out: OfPacked, K: int, head_bytes: int) -> Entries:
    heads = -(-max(fused.scratch_bytes, fused.panels + out.scratch_bytes) // 128) * 128
    heads_bytes = -(-K // 16) * 64
    rounded = heads + fused.v_block * heads_bytes
    rounded_bytes = 0 if out.totals is None else int8_row_bytes(K, 0, out.totals)
    at = AttentionLayer.word_count()
    words = AttentionLayer.words(
        **fused.places(at),
        out=at + len(fused.words),
        heads=heads,
        heads_bytes=heads_bytes,
        head_bytes=head_bytes,
        rounded=rounded,
        rounded_bytes=rounded_bytes,
    )
    kernel = attention_layer_kernel(*fused.arguments, out.kind, out.packed, out.totals or 0, out.totals is not None)
    words = words.followed_by(fused.words).followed_by(out.words)
    scratch = rounded + fused.v_block * rounded_bytes
    return Entries((Entry(kernel, words, fused.tasks + out.tasks),), scratch_bytes=scratch)


def _rows_of_a_block(logits: Tensor, keys: Tensor, row_bytes: int) -> int:
    matrices = max(1, keys.ne[2] * keys.ne[3])
    rows = logits.nrows // matrices
    blocks = max(1, -(-rows * row_bytes // _LOGITS_BYTES), min(-(-_BLOCKS // matrices), rows // _LEAST_ROWS))
    tile = layout("f32").rows
    return max(1, -(-rows // (blocks * tile))) * tile


@dataclass(frozen=True)
class _FusedAttention:
    """Attention as one kernel computes it: two products, and the words of the softmax between them.

    ``keys``: number of keys; ``row_bytes``: bytes of a row of logits; ``v_block``: queries of a block.
    """

    first: InBlocks
    soft_max: Words
    second: InBlocks
    keys: int
    row_bytes: int
    v_block: int

    @property
    def arguments(self) -> tuple[str, str, str, str]:
        """The compile-time arguments of the kernel."""
        return (*self.first.arguments, self.second.arguments[0])

    @property
    def words(self) -> Words:
        return self.first.words.followed_by(self.soft_max).followed_by(self.second.words)

    @property
    def rows(self) -> int:
        """Offset of the logits in scratch memory."""
        return -(-soft_max.scratch_bytes(self.keys) // 128) * 128

    @property
    def panels(self) -> int:
        """Offset of the products' packed weights and activations in scratch memory."""
        return self.rows + -(-self.v_block * self.row_bytes // 128) * 128

    @property
    def scratch_bytes(self) -> int:
        return self.panels + max(self.first.scratch_bytes, self.second.scratch_bytes)

    @property
    def tasks(self) -> int:
        return self.first.tasks + self.second.tasks

    def places(self, at: int) -> dict[str, int]:
        """The kernel's parameters; ``words`` lie ``at`` words after the first of these."""
        soft_max = at + len(self.first.words)
        return {
            "logits": at,
            "soft_max": soft_max,
            "mixed": soft_max + len(self.soft_max),
            "rows": self.rows,
            "row_bytes": self.row_bytes,
            "panels": self.panels,
        }


def _fused(group: Group, names: Names, result: Ref | int, nb: Extents) -> _FusedAttention | Decline:
    """The parts of attention that stores ``mixed`` at ``result``, with the byte strides ``nb``."""
    logits, probabilities, mixed = names["logits"], names["probabilities"], names["mixed"]
    if sum(group.kept) > 1:
        return Decline("a result inside attention is read by other nodes, too")
    if probabilities.type is not F32:
        return Decline(f"probabilities inside attention are f32, not {probabilities.type.name}")
    values = source_tensor(names["transposed"], 0) if "transposed" in names else source_tensor(mixed, 0)
    if values.type is not source_tensor(mixed, 0).type or values.ne != source_tensor(mixed, 0).ne:
        return Decline("the copy of the values changes their type or extents")

    def place_of(tensor: Tensor) -> Ref:
        return Ref(slot_of(group, tensor))

    row_bytes = -(-logits.nb[1] // 64) * 64
    v_block = _rows_of_a_block(logits, source_tensor(logits, 0), row_bytes)
    placed = Placed(place_of(source_tensor(logits, 0)), place_of(source_tensor(logits, 1)), IN_SCRATCH, logits.nb)
    first = in_blocks(logits, source_tensor(logits, 0), placed, v_block)
    second = in_blocks(mixed, values, Placed(place_of(values), IN_SCRATCH, result, nb), v_block)
    if isinstance(first, Decline):
        return first
    if isinstance(second, Decline):
        return second
    if (first.matrices, first.rows) != (second.matrices, second.rows) or source_tensor(logits, 0).ne[2:] != values.ne[
        2:
    ]:
        return Decline("keys and values have different heads")
    mask_and_sinks = (None if tensor is None else place_of(tensor) for tensor in probabilities.src[1:])
    soft_max = soft_max_words(probabilities, Place(), Place(), *mask_and_sinks)
    return _FusedAttention(first, soft_max, second, logits.ne[0], row_bytes, v_block)


LOGITS, PROBABILITIES, MIXED = (
    of(ops.MulMat, name="logits"),
    of(ops.SoftMax, name="probabilities"),
    of(ops.MulMat, name="mixed"),
)
TRANSPOSED, COPY, PRODUCT = of(ops.Cont, name="transposed"), of(ops.Cont, name="copy"), of(ops.MulMat, name="product")
NORM, ADD, AGAIN = of(ops.RowNorm, name="norm"), of(ops.Add), of(ops.Add, name="again")


def _attended(k: Hole, q: Hole, v: Element, mask: Hole, sinks: Hole) -> Step:
    return MIXED(v, PROBABILITIES(LOGITS(k, q), mask, sinks))


def _mixed_by_all_heads(k: Hole, q: Hole, v: Hole, w: Hole, mask: Hole, sinks: Hole) -> Step:
    return PRODUCT(w, viewed(COPY(viewed(_attended(k, q, TRANSPOSED(v), mask, sinks)))))


GROUPS: dict[Pattern, GroupChooser] = {
    chain(
        "norm of an attention layer",
        *KINDS,
        start=lambda k, q, v, w, c, d, mask=None, sinks=None: NORM(
            AGAIN(ADD(_mixed_by_all_heads(k, q, v, w, mask, sinks), c), d)
        ),
    ): attention_layer,
    chain(
        "attention layer",
        *KINDS,
        start=lambda k, q, v, w, mask=None, sinks=None: _mixed_by_all_heads(k, q, v, w, mask, sinks),
    ): attention_layer,
    pattern(
        "attention",
        lambda k, q, v, mask=None, sinks=None: maybe(
            lambda mixed: COPY(viewed(mixed)), _attended(k, q, maybe(TRANSPOSED, v), mask, sinks)
        ),
    ): attention,
}
