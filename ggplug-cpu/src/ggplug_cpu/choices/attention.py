"""Attention in one pass: the product of keys and queries, its softmax, and the product of values with that."""

from __future__ import annotations

from ggplug.backend import Decline
from ggplug.groups import Group
from ggplug.patterns import Names
from ggplug.tensor import Tensor
from ggplug.types import F32
from ggplug_cpu.choices.fused_products import strides_in_copy
from ggplug_cpu.choices.mul_mat import IN_SCRATCH, InBlocks, Placed, in_blocks
from ggplug_cpu.choices.soft_max import soft_max_words
from ggplug_cpu.choices.steps import RESULT, Steps, given, slot_of
from ggplug_cpu.kernels import soft_max
from ggplug_cpu.kernels.attention import Attention
from ggplug_cpu.kernels.attention import attention as attention_kernel
from ggplug_cpu.kernels.mul_mat_layout import layout
from ggplug_cpu.parameters import Place, Ref, Words
from ggplug_cpu.tape import Entry

#: Logits of a block: what stays in a second-level cache beside the packed weights that they are multiplied with.
_ROOM_BYTES = 256 << 10
#: Rows of a block at least, if there are as many: over them the packing of keys and values is spread.
_LEAST_ROWS = 96
#: Blocks to aim at, so that threads finish together.
_BLOCKS = 48


def attention(group: Group, names: Names) -> Steps | Decline:
    """y = v softmax(k q), of which axes may be exchanged by a copy, as those of the values may be before.

    Names: ``logits``, ``shares`` and ``mixed``; ``turned``, a copy of values; ``copy``, one of the result.
    """
    node, logits, shares, mixed = group.node, names["logits"], names["shares"], names["mixed"]
    if sum(group.kept) > 1:
        return Decline("a result inside of attention has to be written")
    if shares.type is not F32:
        return Decline(f"shares inside of attention are f32, not {shares.type.name}")
    values = given(names["turned"], 0) if "turned" in names else given(mixed, 0)
    if values.type is not given(mixed, 0).type or values.ne != given(mixed, 0).ne:
        return Decline("the copy of the values changes more than their order")
    nb = mixed.nb if node is mixed else strides_in_copy(mixed, given(node, 0), node)
    if nb is None:
        return Decline("the copy is not of the whole result, or takes its rows apart")

    def place_of(tensor: Tensor) -> Ref:
        return Ref(slot_of(group, tensor))

    n, row_bytes = logits.ne[0], -(-logits.nb[1] // 64) * 64
    v_block = _rows_of_a_block(logits, given(logits, 0), row_bytes)
    placed = Placed(place_of(given(logits, 0)), place_of(given(logits, 1)), IN_SCRATCH, logits.nb)
    first = in_blocks(logits, given(logits, 0), placed, v_block)
    second = in_blocks(mixed, values, Placed(place_of(values), IN_SCRATCH, Ref(RESULT), nb), v_block)
    if isinstance(first, Decline):
        return first
    if isinstance(second, Decline):
        return second
    if (first.matrices, first.rows) != (second.matrices, second.rows) or given(logits, 0).ne[2:] != values.ne[2:]:
        return Decline("keys and values have different heads")
    beside = (None if tensor is None else place_of(tensor) for tensor in shares.src[1:])
    softly = soft_max_words(shares, Place(), Place(), *beside)
    return _steps(first, softly, second, soft_max.scratch_bytes(n), row_bytes, v_block)


def _rows_of_a_block(logits: Tensor, keys: Tensor, row_bytes: int) -> int:
    matrices = max(1, keys.ne[2] * keys.ne[3])
    rows = logits.nrows // matrices
    blocks = max(1, -(-rows * row_bytes // _ROOM_BYTES), min(-(-_BLOCKS // matrices), rows // _LEAST_ROWS))
    tile = layout("f32").rows
    return max(1, -(-rows // (blocks * tile))) * tile


def _steps(first: InBlocks, softly: Words, second: InBlocks, scratch: int, row_bytes: int, v_block: int) -> Steps:
    rows = -(-scratch // 128) * 128
    panels = rows + -(-v_block * row_bytes // 128) * 128
    at = Attention.word_count()
    words = Attention.words(
        logits=at, soft_max=at + len(first.words), mixed=at + len(first.words) + len(softly), rows=rows,
        row_bytes=row_bytes, panels=panels,
    )  # fmt: skip
    mixing_kind, values, _, values_order, _ = second.arguments
    kernel = attention_kernel(*first.arguments, mixing_kind, values, values_order)
    words = words.followed_by(first.words).followed_by(softly).followed_by(second.words)
    scratch_bytes = panels + max(first.scratch_bytes, second.scratch_bytes)
    return Steps((Entry(kernel, words, first.tasks + second.tasks),), scratch_bytes=scratch_bytes)
