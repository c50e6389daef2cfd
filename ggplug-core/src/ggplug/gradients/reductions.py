"""Rules of sums, norms, softmax and losses."""

from __future__ import annotations

import math

from ggplug import ops
from ggplug.gradients.rows import reversed_rows
from ggplug.gradients.rules import Missing, Part, Parts, formula, gradient, packed, shaped, sources, summed, wide, zeros
from ggplug.tensor import Tensor

# -- sums ------------------------------------------------------------------------------------------


@gradient(ops.SumRows, ops.Sum)
def _(node: Tensor, dy: Tensor) -> Parts:
    (x,) = sources(node)
    return (lambda: ops.repeat(dy, *x.ne),)


@gradient(ops.Mean)
def _(node: Tensor, dy: Tensor) -> Parts:
    (x,) = sources(node)
    return (lambda: ops.repeat(ops.scale(dy, 1 / max(1, x.ne[0])), *x.ne),)


@gradient(ops.Cumsum)
def _(node: Tensor, dy: Tensor) -> Parts:
    # The sum of an element and all after it, which the sum of all minus those before would round.
    def mirrored(x: Tensor) -> Tensor:
        return shaped(reversed_rows(shaped(x, (1, *x.ne[:2], x.ne[2] * x.ne[3]))), x.ne)

    return (lambda: mirrored(ops.cumsum(mirrored(dy))),)


# -- norms -----------------------------------------------------------------------------------------


@gradient(ops.RmsNorm)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.RmsNorm)
    (x,), eps = sources(node), node.op.eps
    return (lambda: ops.rms_norm_back(dy, wide(x), eps),)


@formula(ops.Norm)
def _(op: ops.Norm, x: Tensor) -> Tensor:
    return ops.rms_norm(ops.sub(x, ops.mean(x)), op.eps)


@formula(ops.L2Norm)
def _(op: ops.L2Norm, x: Tensor) -> Tensor:
    # The limit is one of the sum, because the root of 0 has no gradient.
    return ops.div(x, ops.sqrt(ops.clamp(ops.sum_rows(ops.sqr(packed(x))), op.eps**2, math.inf)))


@formula(ops.GroupNorm)
def _(op: ops.GroupNorm, x: Tensor) -> Tensor:
    channels = max(1, op.channels(x))
    whole = x.ne[2] // channels * channels

    def normed(part: Tensor, count: int) -> Tensor:
        """``part`` with groups of ``count`` channels, each normed."""
        rows = shaped(part, (part.ne[0] * part.ne[1] * count, part.ne[2] // count, part.ne[3], 1))
        return shaped(ops.norm(rows, op.eps), part.ne)

    if whole == x.ne[2]:
        return normed(x, channels)
    first, rest = (
        ops.view(x, *x.ne[:2], count, x.ne[3], nb=x.nb[1:], offset=start * x.nb[2])
        for start, count in ((0, whole), (whole, x.ne[2] - whole))
    )
    last = normed(rest, x.ne[2] - whole)
    return ops.concat(normed(first, channels), last, 2) if whole else last


@formula(ops.RmsNormBack)
def _(op: ops.RmsNormBack, dy: Tensor, x: Tensor) -> Tensor:
    size = ops.scale(ops.mean(ops.sqr(packed(x))), 1, op.eps)
    along = ops.div(ops.mean(ops.mul(x, dy)), size)
    return ops.div(ops.sub(dy, ops.mul(x, along)), ops.sqrt(size))


# -- softmax ---------------------------------------------------------------------------------------


@gradient(ops.SoftMax)
def _(node: Tensor, dy: Tensor) -> Parts:
    assert isinstance(node.op, ops.SoftMax)
    op, (x, mask, _) = node.op, node.src
    y = wide(node)

    def of_mask() -> Tensor:
        assert x is not None
        assert mask is not None
        folded = summed(ops.soft_max_back(dy, y), (x.ne[0], x.ne[1], mask.ne[2], mask.ne[3]))
        return ops.pad(folded, 0, mask.ne[1] - x.ne[1]) if mask.ne[1] > x.ne[1] else folded

    def of_sinks() -> Tensor:
        # What a sink gets from the others: its own probability times the mean of dy.
        mean = ops.sum_rows(ops.mul(dy, y))
        lost = ops.mul(mean, ops.scale(ops.sum_rows(y), 1, -1))
        return shaped(ops.repeat_back(lost, 1, 1, node.ne[2], 1), (node.ne[2], 1, 1, 1))

    scaled: Part = Missing("with ALiBi slopes the mask is a constant") if op.max_bias else of_mask
    return lambda: ops.soft_max_back(dy, y, op.scale), scaled, of_sinks


@formula(ops.SoftMaxBack)
def _(op: ops.SoftMaxBack, dy: Tensor, y: Tensor) -> Tensor:
    mean = ops.sum_rows(ops.mul(y, dy))
    return ops.mul(ops.scale(packed(y), op.scale), ops.sub(dy, mean))


# -- losses ----------------------------------------------------------------------------------------


@gradient(ops.CrossEntropyLoss)
def _(node: Tensor, dy: Tensor) -> Parts:
    logits, labels = sources(node)
    chances = ops.soft_max(packed(logits))
    of_row = ops.scale(dy, 1 / max(1, logits.nrows))

    def of_logits() -> Tensor:
        # cross_entropy_loss_back takes the sum of labels for 1, which it is not in rows that a mask leaves out.
        return ops.mul(ops.sub(ops.mul(chances, ops.sum_rows(labels)), labels), of_row)

    def of_labels() -> Tensor:
        # Minus the logarithms of the probabilities, which may be 0 in F32.
        if not logits.size:
            return zeros(logits.ne)
        rows = shaped(logits, (logits.ne[0], logits.nrows))
        columns, largest = shaped(rows, (1, *rows.ne[:2])), shaped(ops.argmax(rows), (1, logits.nrows))
        below = ops.sub(logits, shaped(ops.get_rows(columns, largest), (1, *logits.ne[1:])))
        size = ops.log(ops.sum_rows(ops.exp(below)))
        return ops.mul(ops.neg(ops.sub(below, size)), of_row)

    return of_logits, of_labels


@formula(ops.CrossEntropyLossBack)
def _(op: ops.CrossEntropyLossBack, dy: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    off = ops.sub(ops.soft_max(packed(logits)), labels)
    return ops.mul(ops.scale(off, 1 / max(1, logits.nrows)), dy)
