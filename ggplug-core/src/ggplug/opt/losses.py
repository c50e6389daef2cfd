"""Losses: one number from the outputs of a model and the labels (GGML_OPT_LOSS_TYPE_*)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ggplug import ops
from ggplug.errors import ParameterError
from ggplug.tensor import Tensor

Loss: TypeAlias = "Callable[[Tensor, Tensor | None], Tensor]"
"""``(outputs, labels) -> loss``; a function of one's own may be given, too."""


def mean(outputs: Tensor, labels: Tensor | None = None) -> Tensor:
    """The mean of all outputs."""
    return ops.scale(ops.sum(outputs), 1 / max(1, outputs.size))


def sum(outputs: Tensor, labels: Tensor | None = None) -> Tensor:
    """The sum of all outputs."""
    return ops.sum(outputs)


def cross_entropy(outputs: Tensor, labels: Tensor | None) -> Tensor:
    """The mean over rows of -sum(labels log(softmax(outputs))); a row of labels may be zero, and then adds nothing."""
    return ops.cross_entropy_loss(outputs, _given(labels))


def mean_squared_error(outputs: Tensor, labels: Tensor | None) -> Tensor:
    """The mean of (outputs - labels)**2."""
    return mean(ops.sqr(ops.sub(outputs, _given(labels))))


def _given(labels: Tensor | None) -> Tensor:
    if labels is None:
        raise ParameterError("this loss compares outputs with labels, but there are none")
    return labels
