"""Feed-forward layers in one pass: a product, an activation and another product, each with its epilogue."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.nodes.groups import Group
from ggplug.patterns import Hole, Names, Pattern, Step, chain, of
from ggplug_cpu.choosing.chooser import GroupChooser
from ggplug_cpu.choosing.entries import Entries, slot_of, source_tensor
from ggplug_cpu.choosing.programs import KINDS
from ggplug_cpu.ops.feed_forward.kernels import FeedForward
from ggplug_cpu.ops.feed_forward.kernels import feed_forward as feed_forward_kernel
from ggplug_cpu.ops.mul_mat.fused import finished, finished_rows
from ggplug_cpu.ops.mul_mat.prepare import int8_row_bytes
from ggplug_cpu.ops.mul_mat.products import IN_SCRATCH, OfPacked, of_packed
from ggplug_cpu.parameters import Ref
from ggplug_cpu.tape import Entry

#: Rows of a block.  Each block reads all weights again; its hidden activations and the weights use the second-level
#: cache together.
_MOST_ROWS, _LEAST_ROWS = 96, 48
#: Blocks to aim at, so that threads finish together; and how many there have to be.
_BLOCKS, _LEAST_BLOCKS = 48, 8
#: Most bytes of the packed weights of both products: a third-level cache keeps them, as every block reads them again.
_WEIGHTS_BYTES = 8 << 20


def feed_forward(group: Group, names: Names) -> Entries | Decline:
    """y = f(v g(w x)): the second product reads rows of the first one while they are in the cache.

    Names: ``up`` and ``product``, the first and the second product; ``hidden``, the activations of the second.
    """
    up, hidden, down = names["up"], names["hidden"], names["product"]
    first, second = group.nodes.index(hidden) + 1, group.nodes.index(down) + 1
    if hidden is not source_tensor(down, 1) or group.nodes[first:second] != (down,):
        return Decline("the nodes of both products do not follow each other")
    w, v = (Ref(slot_of(group, source_tensor(each, 0))) for each in (up, down))
    above = finished(group, up, group.nodes[1:first], w, Ref(slot_of(group, source_tensor(up, 1))), inside=True)
    behind = group.nodes[second:]
    finish = finished_rows if any(isinstance(node.op, ops.RowNorm) for node in behind) else finished
    below = finish(group, down, behind, v, IN_SCRATCH)
    if isinstance(above, Decline):
        return above
    if isinstance(below, Decline):
        return below
    rows = hidden.nrows
    v_block = min(_MOST_ROWS, max(_LEAST_ROWS, -(-rows // _BLOCKS)))
    if rows < _LEAST_BLOCKS * v_block:
        return Decline("there are too few rows for blocks that read all weights again")
    one, two = of_packed(up, above, v_block), of_packed(down, below, v_block, inside=True)
    if isinstance(one, Decline):
        return one
    if isinstance(two, Decline):
        return two
    if one.nbytes + two.nbytes > _WEIGHTS_BYTES:
        return Decline("the weights of both products are more than a cache holds")
    return _entries(one, two, hidden.ne[0], v_block)


def _entries(up: OfPacked, down: OfPacked, K: int, v_block: int) -> Entries:
    hidden = -(-max(up.scratch_bytes, down.scratch_bytes) // 128) * 128
    hidden_bytes = -(-min(K, down.k_block) // 16) * 64
    rounded = hidden + v_block * hidden_bytes
    rounded_bytes = 0 if down.totals is None else int8_row_bytes(K, 0, down.totals)
    at = FeedForward.word_count()
    words = FeedForward.words(
        up=at,
        down=at + len(up.words),
        hidden=hidden,
        hidden_bytes=hidden_bytes,
        rounded=rounded,
        rounded_bytes=rounded_bytes,
    )
    x = up.activations
    kernel = feed_forward_kernel(
        up.kind, up.packed, x.elem, x.order, down.kind, down.packed, down.totals or 0, down.totals is not None
    )
    words = words.followed_by(up.words).followed_by(down.words)
    entry = Entry(kernel, words, up.tasks + down.tasks)
    scratch = max(rounded + v_block * rounded_bytes, x.scratch_bytes)
    return Entries((*x.entries, entry), x.workspace_bytes, scratch)


SHIFTED, HIDDEN, UP = of(ops.Add, name="shifted"), of(ops.Unary, name="hidden"), of(ops.MulMat, name="up")
PRODUCT, NORM, ADD, AGAIN = (
    of(ops.MulMat, name="product"),
    of(ops.RowNorm, name="norm"),
    of(ops.Add),
    of(ops.Add, name="again"),
)


def _fed_forward(v: Hole, w: Hole, x: Hole, b: Hole | None = None) -> Step:
    return PRODUCT(v, HIDDEN(UP(w, x) if b is None else SHIFTED(UP(w, x), b)))


GROUPS: dict[Pattern, GroupChooser] = {
    chain(
        "norm of a feed-forward layer",
        *KINDS,
        start=lambda w, x, b, v, c, d: NORM(AGAIN(ADD(_fed_forward(v, w, x, b), c), d)),
    ): feed_forward,
    chain("feed-forward layer", *KINDS, start=lambda w, x, b, v: _fed_forward(v, w, x, b)): feed_forward,
    chain("feed-forward layer without a bias", *KINDS, start=lambda w, x, v: _fed_forward(v, w, x)): feed_forward,
}
