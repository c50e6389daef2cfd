"""Loss functions, and steps of optimisers."""

from __future__ import annotations

import numpy as np

from ggplug.ops.base import Array, Cost, Op, builder, misfit, mismatch
from ggplug.tensor import Spec, Tensor
from ggplug.types import F32

__all__ = [
    "CrossEntropyLoss",
    "CrossEntropyLossBack",
    "OptStepAdamw",
    "OptStepSgd",
    "cross_entropy_loss",
    "cross_entropy_loss_back",
    "opt_step_adamw",
    "opt_step_sgd",
]


def _check_alike(op: Op, *tensors: Tensor) -> None:
    """Raises TypeMismatchError or ShapeError unless all are F32 of one shape."""
    if any(tensor.type is not F32 for tensor in tensors):
        mismatch(op, "takes f32", *tensors)
    if any(tensor.ne != tensors[0].ne for tensor in tensors):
        misfit(op, "all must have the same shape", *tensors)


def _log_soft_max(x: Array) -> Array:
    with np.errstate(all="ignore"):
        shifted = x - x.max(axis=-1, keepdims=True, initial=-np.inf)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class CrossEntropyLoss(Op):
    """y = -sum(labels log(softmax(logits))) / rows, a scalar  (ggml_cross_entropy_loss).

    logits, labels: F32 [n, ...], of the same shape, any strides; labels are probabilities.  The softmax is over ne0,
    and the loss is the mean over all rows, or 0 without rows.
    """

    def result(self, logits: Tensor, labels: Tensor) -> Spec:
        _check_alike(self, logits, labels)
        return Spec(F32, (1, 1, 1, 1), 0)

    def reference(self, logits: Array, labels: Array) -> Array:
        rows = logits.shape[0] * logits.shape[1] * logits.shape[2]
        with np.errstate(all="ignore"):
            return np.array((_log_soft_max(logits) * labels).sum() / -max(1, rows))

    def cost(self, node: Tensor) -> Cost:
        logits = node.src[0]
        return Cost(0 if logits is None else 8 * logits.size, super().cost(node).bytes)


class CrossEntropyLossBack(Op):
    """dx = dy (softmax(logits) - labels) / rows: the gradient of cross_entropy_loss  (ggml_cross_entropy_loss_back).

    dy: an F32 scalar.  logits, labels: as those of :class:`CrossEntropyLoss`.  Result: like logits.
    """

    def result(self, dy: Tensor, logits: Tensor, labels: Tensor) -> Spec:
        _check_alike(self, logits, labels)
        if dy.type is not F32:
            mismatch(self, "dy must be f32", dy, logits, labels)
        if dy.ne != (1, 1, 1, 1):
            misfit(self, "dy must be a scalar", dy, logits, labels)
        return Spec(F32, logits.ne, logits.rank)

    def reference(self, dy: Array, logits: Array, labels: Array) -> Array:
        rows = logits.shape[0] * logits.shape[1] * logits.shape[2]
        with np.errstate(all="ignore"):
            return (np.exp(_log_soft_max(logits)) - labels) * (dy.reshape(1, 1, 1, 1) / max(1, rows))

    def cost(self, node: Tensor) -> Cost:
        return Cost(8 * node.size, super().cost(node).bytes)


def _check_step(op: Op, count: int, params: Tensor, w: Tensor, *others: Tensor) -> Spec:
    """The result of an optimiser's step, a view of w."""
    tensors = (w, *others)
    _check_alike(op, *tensors)
    if any(tensor.nb[0] != 4 and tensor.ne[0] != 1 for tensor in tensors):
        misfit(op, "rows must be contiguous (use gg.cont first)", *tensors)
    if params.type is not F32 or params.ne != (count, 1, 1, 1) or not params.is_contiguous():
        misfit(op, f"params must be {count} contiguous f32", *tensors, params)
    return Spec(F32, w.ne, w.rank, w.nb, w)


class OptStepAdamw(Op):
    """A step of AdamW: updates w and its moments m and v  (ggml_opt_step_adamw; arXiv:1711.05101).

    m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g**2;
    w = (1 - alpha wd) w - alpha (m beta1h) / (sqrt(v beta2h) + eps).
    w, grad (g), m, v: F32, of the same shape, rows contiguous.  params: F32 [7]: alpha, beta1, beta2, eps, wd,
    and beta1h and beta2h, which are 1 / (1 - beta**t) in step t.  Writes w, m and v; the result is a view of w.
    """

    writes = (0, 2, 3)

    def result(self, w: Tensor, grad: Tensor, m: Tensor, v: Tensor, params: Tensor) -> Spec:
        return _check_step(self, 7, params, w, grad, m, v)

    def reference(  # type: ignore[override]  # returns all tensors that it writes
        self, w: Array, grad: Array, m: Array, v: Array, params: Array
    ) -> tuple[Array, Array, Array]:
        alpha, beta1, beta2, eps, wd, beta1h, beta2h = params.reshape(-1)
        with np.errstate(all="ignore"):
            m = beta1 * m + (1 - beta1) * grad
            v = beta2 * v + (1 - beta2) * grad * grad
            return (1 - alpha * wd) * w - alpha * (m * beta1h) / (np.sqrt(v * beta2h) + eps), m, v

    def cost(self, node: Tensor) -> Cost:
        return Cost(16 * node.size, super().cost(node).bytes + 2 * node.nbytes)


class OptStepSgd(Op):
    """A step of stochastic gradient descent: w = (1 - alpha wd) w - alpha grad  (ggml_opt_step_sgd).

    w, grad: F32, of the same shape, rows contiguous.  params: F32 [2]: alpha, wd.  Writes w; the result is a view of w.
    """

    writes = (0,)

    def result(self, w: Tensor, grad: Tensor, params: Tensor) -> Spec:
        return _check_step(self, 2, params, w, grad)

    def reference(self, w: Array, grad: Array, params: Array) -> Array:
        alpha, wd = params.reshape(-1)
        with np.errstate(all="ignore"):
            return (1 - alpha * wd) * w - alpha * grad


cross_entropy_loss = builder(CrossEntropyLoss)
cross_entropy_loss_back = builder(CrossEntropyLossBack)
opt_step_adamw = builder(OptStepAdamw)
opt_step_sgd = builder(OptStepSgd)
