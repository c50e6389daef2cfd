"""What this device computes, and how: one ordered table.

A row for single nodes names a class of ops, the types that it takes, and a function from a node to its :class:`Steps`.
A row for nodes that are computed together (:data:`FUSED`) names a pattern and a function from the group.  "Is this
group supported?" and "run this group" are the same call, :func:`find`.  The first row that fits decides; a row whose
function answers with a :class:`~ggplug.backend.Decline` leaves the group to the rows after it.  To add an op, write a
kernel and a row.

Types are written ``source source > result``: each a choice of names of types or of the sets in :data:`TYPE_SETS`, with
``?`` for a source that may be absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ggplug import ops
from ggplug.backend import Decline, Group
from ggplug.ops import Op
from ggplug.patterns import Element, Hole, Names, Pattern, Step, chain, of, pattern, viewed
from ggplug.tensor import Tensor
from ggplug.types import TYPES, Type, by_name
from ggplug_cpu import features
from ggplug_cpu.choices import (
    attention,
    convolution,
    copy,
    deepseek,
    elementwise,
    feed_forward,
    flash_attention,
    fused_products,
    generated,
    gradients,
    interpolation,
    mul_mat,
    norms,
    out_prod,
    padding,
    partition,
    python,
    recurrent,
    reduce,
    rotary,
    rows_added,
    rows_by_index,
    soft_max,
    sort,
    training,
    triangles,
    windows,
)
from ggplug_cpu.choices.programs import KINDS
from ggplug_cpu.choices.steps import Steps
from ggplug_cpu.packed import PackedBufferType
from ggplug_cpu.types import BLOCKS, ENCODED, PLAIN

TYPE_SETS = {
    "float": "|".join(PLAIN),
    "block": "|".join(BLOCKS),
    "encoded": "|".join(ENCODED),
    "any": "|".join(t.name for t in TYPES),
}


@dataclass(frozen=True)
class Row:
    """``types`` fit and ``choose`` agrees: then the node is computed by what ``choose`` returns."""

    op: type[Op]
    types: str
    choose: Callable[[Tensor], Steps | Decline]
    packed: int | None = None
    """Which source may lie in packed memory (:mod:`ggplug_cpu.packed`)."""
    _wanted: tuple[frozenset[Type | None], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        sources, result = self.types.split(">")
        wanted = [_choice(word) for word in [result.strip(), *sources.split()]]
        object.__setattr__(self, "_wanted", tuple(wanted))

    def takes(self, node: Tensor) -> bool:
        """Whether the types of result and sources fit; absent sources at the end need no mention."""
        given = [node.type, *(None if s is None else s.type for s in node.src)]
        wanted = self._wanted
        return all((t in wanted[i]) if i < len(wanted) else t is None for i, t in enumerate(given))


def _choice(word: str) -> frozenset[Type | None]:
    names = "|".join(TYPE_SETS.get(name, name) for name in word.rstrip("?").split("|")).split("|")
    return frozenset([by_name(name) for name in names] + ([None] if word.endswith("?") else []))


TABLE: tuple[Row, ...] = (
    Row(ops.Binary, "float|encoded float > float|encoded", elementwise.binary),
    Row(ops.Unary, "float > float", elementwise.single),
    Row(ops.Glu, "float float? > float", elementwise.single),
    Row(ops.MulMat, "float|block float|block > f32", mul_mat.mul_mat, packed=0),
    Row(ops.MulMatId, "float|block float|block i32 > f32", mul_mat.mul_mat_id, packed=0),
    Row(ops.RowNorm, "float > float", norms.row_norm),
    Row(ops.SoftMax, "float f32|f16? f32? > float", soft_max.soft_max),
    Row(ops.FlashAttnExt, "f32 float|block float|block f16? f32? > f32", flash_attention.flash_attn_ext),
    Row(ops.FlashAttnBack, "f32 float float f32 f16? f32? > f32", flash_attention.flash_attn_back),
    Row(ops.Rotary, "float i32 f32? > float", rotary.rope),
    Row(ops.GetRows, "float|block i32 > f32", rows_by_index.get_rows),
    Row(ops.GetRows, "i32 i32 > i32", rows_by_index.get_rows),
    Row(ops.SetRows, "float|encoded|i32 float i64|i32 > float|encoded|i32", rows_by_index.set_rows),
    Row(ops.Cpy, "any any > any", copy.copy),
    Row(ops.Cont, "any > any", copy.copy),
    Row(ops.Dup, "any > any", copy.copy),
    Row(ops.Concat, "any any > any", copy.concat),
    Row(ops.Repeat, "any > any", copy.repeat),
    Row(ops.SumRows, "float > float", reduce.sum_rows),
    Row(ops.Mean, "float > f32", reduce.sum_rows),
    Row(ops.Sum, "float > float", reduce.sum_all),
    Row(ops.Argmax, "float > i32", reduce.argmax),
    Row(ops.Argsort, "float > i32", sort.argsort),
    Row(ops.TopK, "float > i32", sort.top_k),
    Row(ops.Cumsum, "float > float", reduce.cumsum),
    Row(ops.CountEqual, "i32 i32 > i64", reduce.count_equal),
    Row(ops.GroupNorm, "float > float", norms.group_norm),
    Row(ops.OutProd, "float|block float > f32", out_prod.out_prod),
    Row(ops.AddId, "float float i32 > float", rows_added.add_id),
    Row(ops.GetRowsBack, "float i32 > f32", rows_added.get_rows_back),
    Row(ops.RowGradient, "float float > float", gradients.row_gradient),
    Row(ops.RepeatBack, "float > float", gradients.repeat_back),
    Row(ops.CrossEntropyLoss, "f32 f32 > f32", training.cross_entropy_loss),
    Row(ops.CrossEntropyLossBack, "f32 f32 f32 > f32", training.cross_entropy_loss_back),
    Row(ops.OptStepAdamw, "f32 f32 f32 f32 f32 > f32", training.opt_step_adamw),
    Row(ops.OptStepSgd, "f32 f32 f32 > f32", training.opt_step_sgd),
    Row(ops.Banded, "float > float", triangles.banded),
    Row(ops.Diag, "float > float", triangles.diag),
    Row(ops.SolveTri, "f32 f32 > f32", triangles.solve_tri),
    Row(ops.Pad, "any > any", padding.pad),
    Row(ops.PadReflect1d, "any > any", padding.pad_reflect_1d),
    Row(ops.Roll, "any > any", padding.roll),
    Row(ops.Set, "any any > any", padding.set_window),
    Row(ops.Acc, "float float > float", padding.acc),
    Row(ops.Arange, "> f32", generated.arange),
    Row(ops.TimestepEmbedding, "f32 > f32", generated.timestep_embedding),
    Row(ops.Im2col, "float float > float", convolution.im2col),
    Row(ops.Im2col3d, "float float > float", convolution.im2col_3d),
    Row(ops.Im2colBack, "f32 float > f32", windows.im2col_back),
    Row(ops.Col2im1d, "float > float", windows.col2im_1d),
    Row(ops.Conv2dDirect, "float f32 > f32", convolution.conv_2d),
    Row(ops.Conv3dDirect, "float f32 > f32", convolution.conv_3d),
    Row(ops.Conv2dDwDirect, "float f32 > f32", windows.conv_2d_dw),
    Row(ops.ConvTranspose1d, "float f32 > f32", convolution.conv_transpose_1d),
    Row(ops.ConvTranspose2d, "float f32 > f32", convolution.conv_transpose_2d),
    Row(ops.Pool1d, "float > f32", windows.pool_1d),
    Row(ops.Pool2d, "float > f32", windows.pool_2d),
    Row(ops.Pool2dBack, "f32 float > f32", windows.pool_2d_back),
    Row(ops.Interpolate, "f32 > f32", interpolation.interpolate),
    Row(ops.WinPart, "f32 > f32", partition.win_part),
    Row(ops.WinUnpart, "f32 > f32", partition.win_unpart),
    Row(ops.GetRelPos, "float > f16", partition.get_rel_pos),
    Row(ops.AddRelPos, "f32 f32 f32 > f32", partition.add_rel_pos),
    Row(ops.SsmConv, "f32 f32 > f32", recurrent.ssm_conv),
    Row(ops.SsmScan, "f32 f32 f32 f32 f32 f32 i32 > f32", recurrent.ssm_scan),
    Row(ops.RwkvWkv6, "f32 f32 f32 f32 f32 f32 > f32", recurrent.matrices),
    Row(ops.RwkvWkv7, "f32 f32 f32 f32 f32 f32 f32 > f32", recurrent.matrices),
    Row(ops.GatedLinearAttn, "f32 f32 f32 f32 f32 > f32", recurrent.matrices),
    Row(ops.LightningIndexer, "f32 float|block f32 f16 > f32", deepseek.lightning_indexer),
    Row(ops.Dsv4HcComb, "f32 f32 f32 > f32", deepseek.combined),
    Row(ops.Dsv4HcPre, "f32 f32 > f32", deepseek.before),
    Row(ops.Dsv4HcPost, "f32 f32 f32 f32 > f32", deepseek.behind),
    Row(ops.PythonCall, f"{'any? ' * 9}> any", python.python_call),
    Row(ops.GatedDeltaNet, "f32 f32 f32 f32 f32 f32 > f32", recurrent.gated_delta_net),
)


@dataclass(frozen=True)
class FusedRow:
    """A group that the pattern finds is computed by what ``choose`` returns, unless it declines."""

    pattern: Pattern
    choose: Callable[[Group, Names], Steps | Decline]


NORM, ADD = of(ops.RowNorm, name="norm"), of(ops.Add)
PRODUCT, FIRST, SECOND = (of(ops.MulMat, name=name) for name in ("product", "first", "second"))
ROPE, SET_ROWS = of(ops.Rotary, name="rope"), of(ops.SetRows)
GLU, COPY, AGAIN = of(ops.Glu), of(ops.Cont, name="copy"), of(ops.Add, name="again")

LOGITS, SHARES, MIXED = of(ops.MulMat, name="logits"), of(ops.SoftMax, name="shares"), of(ops.MulMat, name="mixed")
TURNED = of(ops.Cont, name="turned")


def _attended(k: Hole, q: Hole, v: Element, mask: Hole, sinks: Hole) -> Step:
    return MIXED(v, SHARES(LOGITS(k, q), mask, sinks))


SHIFTED, HIDDEN, UP = of(ops.Add, name="shifted"), of(ops.Unary, name="hidden"), of(ops.MulMat, name="up")


def _fed_forward(v: Hole, w: Hole, x: Hole, b: Hole | None = None) -> Step:
    return PRODUCT(v, HIDDEN(UP(w, x) if b is None else SHIFTED(UP(w, x), b)))


def _mixed_by_all_heads(k: Hole, q: Hole, v: Hole, w: Hole, mask: Hole, sinks: Hole) -> Step:
    return PRODUCT(w, viewed(COPY(viewed(_attended(k, q, TURNED(v), mask, sinks)))))


#: In the order of preference: a node belongs to the first group that is found from the end of the graph on.
FUSED: tuple[FusedRow, ...] = (
    FusedRow(
        chain(
            "norm of an attention layer",
            *KINDS,
            start=lambda k, q, v, w, c, d, mask=None, sinks=None: NORM(
                AGAIN(ADD(_mixed_by_all_heads(k, q, v, w, mask, sinks), c), d)
            ),
        ),
        attention.attention_layer,
    ),
    FusedRow(
        chain(
            "attention layer",
            *KINDS,
            start=lambda k, q, v, w, mask=None, sinks=None: _mixed_by_all_heads(k, q, v, w, mask, sinks),
        ),
        attention.attention_layer,
    ),
    FusedRow(
        pattern(
            "attention",
            lambda k, q, v, mask=None, sinks=None: COPY(viewed(_attended(k, q, TURNED(v), mask, sinks))),
        ),
        attention.attention,
    ),
    FusedRow(
        pattern("attention", lambda k, q, v, mask=None, sinks=None: COPY(viewed(_attended(k, q, v, mask, sinks)))),
        attention.attention,
    ),
    FusedRow(
        pattern("attention", lambda k, q, v, mask=None, sinks=None: _attended(k, q, TURNED(v), mask, sinks)),
        attention.attention,
    ),
    FusedRow(
        pattern("attention", lambda k, q, v, mask=None, sinks=None: _attended(k, q, v, mask, sinks)),
        attention.attention,
    ),
    FusedRow(
        chain(
            "norm of a feed-forward layer",
            *KINDS,
            start=lambda w, x, b, v, c, d: NORM(AGAIN(ADD(_fed_forward(v, w, x, b), c), d)),
        ),
        feed_forward.feed_forward,
    ),
    FusedRow(
        chain("feed-forward layer", *KINDS, start=lambda w, x, b, v: _fed_forward(v, w, x, b)),
        feed_forward.feed_forward,
    ),
    FusedRow(
        chain("feed-forward layer without a bias", *KINDS, start=lambda w, x, v: _fed_forward(v, w, x)),
        feed_forward.feed_forward,
    ),
    FusedRow(
        chain("norm of a product and two sums", *KINDS, start=lambda w, x, b, c: NORM(AGAIN(ADD(PRODUCT(w, x), b), c))),
        fused_products.normed,
    ),
    FusedRow(
        chain("norm of a product and a sum", *KINDS, start=lambda w, x, b: NORM(ADD(PRODUCT(w, x), b))),
        fused_products.normed,
    ),
    FusedRow(
        chain("norm of two sums", *KINDS, start=lambda a, b, c: NORM(AGAIN(ADD(a, b), c)), inplace=True), norms.fused
    ),
    FusedRow(chain("norm of a sum", *KINDS, start=lambda a, b: NORM(ADD(a, b)), inplace=True), norms.fused),
    FusedRow(chain("norm", *KINDS, start=lambda x: NORM(x), inplace=True), norms.fused),
    FusedRow(
        pattern("bare norm of a product and two sums", lambda w, x, b, c: NORM(AGAIN(ADD(PRODUCT(w, x), b), c))),
        fused_products.normed,
    ),
    FusedRow(
        pattern("bare norm of a product and a sum", lambda w, x, b: NORM(ADD(PRODUCT(w, x), b))),
        fused_products.normed,
    ),
    FusedRow(pattern("bare norm of a sum", lambda a, b: NORM(ADD(a, b)), inplace=("a", "b")), norms.fused),
    FusedRow(
        pattern("rope into rows", lambda a, x, ids, rows, f=None: SET_ROWS(a, viewed(ROPE(x, ids, f)), rows)),
        rotary.rope_into_rows,
    ),
    FusedRow(pattern("gated products", lambda a, b, x: GLU(FIRST(a, x), SECOND(b, x))), fused_products.gated),
    FusedRow(pattern("rearranged product", lambda a, b: COPY(viewed(PRODUCT(a, b)))), fused_products.rearranged),
    FusedRow(chain("product", *KINDS, start=lambda a, b: PRODUCT(a, b)), fused_products.with_epilogue),
    FusedRow(chain("elementwise", *KINDS, inplace=True), elementwise.chain),
)


def rows_for(kind: type[Op]) -> Iterator[Row]:
    """The rows that an op's class has, in order."""
    for row in TABLE:
        if row.op in kind.kinds:
            yield row


def find(group: Group) -> Steps | Decline:
    """What computes a group, or why nothing does.  A pure function of :func:`~ggplug.groups.signature_of`."""
    packed = _packed_elsewhere(group)
    if packed is not None:
        return packed
    if len(group) > 1:
        return _find_fused(group)
    node = group.node
    op = node.op
    assert op is not None
    if nothing_to_do(node):
        return Steps(())
    reason = ""
    for row in rows_for(type(op)):
        if row.takes(node):
            steps = row.choose(node)
            if not isinstance(steps, Decline):
                return steps
            reason = reason or steps.reason
    return Decline(reason or _refusal(node, op))


def _packed_elsewhere(group: Group) -> Decline | None:
    """Why a group is declined that reads or writes memory with a layout that its kernels were not written for."""
    for node in group.nodes:
        for i, source in enumerate(node.src):
            kind = None if source is None else source.root.buffer_type
            if kind is None or not kind.has_own_layout or source is None or node.op is None:
                continue
            if all(row.packed != i for row in rows_for(type(node.op))):
                return Decline(f"{node.op.name} on the CPU reads its source {i} as plain bytes, not in {kind.name}")
            if source.view_src is not None:
                return Decline(f"{node.op.name} on the CPU reads no view of a tensor in {kind.name}")
            if not isinstance(kind, PackedBufferType) or kind.target != features.target():
                return Decline(f"weights in {kind.name} were not packed for the instructions that are used now")
    return None


def _find_fused(group: Group) -> Steps | Decline:
    reason = ""
    for row in FUSED:
        names = row.pattern.names(group)
        if names is not None:
            steps = row.choose(group, names)
            if not isinstance(steps, Decline):
                return steps
            reason = reason or steps.reason
    together = ", ".join(node.op.name for node in group.nodes if node.op is not None)
    return Decline(reason or f"the CPU device does not compute {together} together")


def nothing_to_do(node: Tensor) -> bool:
    """Whether a node is empty, or writes nothing because what it would write is; functions of rows see none such."""
    assert node.op is not None
    if 0 in node.ne:
        return True
    return bool(node.op.writes) and any(s is not None and 0 in s.ne for s in node.src)


def _refusal(node: Tensor, op: Op) -> str:
    takes = [row.types for row in rows_for(type(op))]
    if not takes:
        return f"the CPU device has no kernel for {op.name}"
    given = " ".join("-" if s is None else s.type.name for s in node.src)
    return f"the CPU device's {op.name} does not take {given} > {node.type.name}, but {', '.join(takes)}"
