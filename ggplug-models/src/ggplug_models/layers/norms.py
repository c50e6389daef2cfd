"""Normalisation of columns, with weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import ggplug as gg
from ggplug.tensor import Tensor
from ggplug_models.layers.names import OF_NORMS
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.weights.weights import Weights

N = TypeVar("N", bound="Norm")

NORM_BIASES = ("attn_norm.bias", "ffn_norm.bias", "output_norm.bias")
"""Of the norms that most architectures have."""


@dataclass(frozen=True)
class Norm:
    """Normalises over ne0, multiplies by ``name.weight``, and adds ``name.bias`` if the file has one.

    In files of some families the weight is called ``name``.

    The weight and the bias have the extents ``ne``, by default those of a column.
    """

    eps: float
    key: ClassVar[str]
    compute: ClassVar[Callable[..., Tensor]]

    @classmethod
    def of(cls: type[N], hp: Hyperparameters) -> N:
        """The norm with the ``eps`` of the file.  Raises ModelError."""
        return cls(hp.number(cls.key, at_least=0))

    def __call__(self, weights: Weights, name: str, x: Tensor, *ne: int) -> Tensor:
        weight = name if name in weights else f"{name}.weight"
        y = type(self).compute(x, eps=self.eps) * weights(weight, *(ne or x.ne[:1]))
        bias = weights.optional(f"{name}.bias", *(ne or x.ne[:1]))
        called = OF_NORMS.get(name, f"{name}_out" if weight == name else name)  # other than the weight is
        return weights.named(called, y if bias is None else y + bias)


class RmsNorm(Norm):
    """Root mean square norm (arXiv:1910.07467)."""

    key = "attention.layer_norm_rms_epsilon"
    compute = gg.rms_norm


class LayerNorm(Norm):
    """Layer norm (arXiv:1607.06450); some families leave the bias out."""

    key = "attention.layer_norm_epsilon"
    compute = gg.norm
