"""Tensors in tuples, lists and dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ggplug.tensor import Tensor


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in a value, in order; what is neither a tensor nor holds some is left out."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return []
    return [tensor for each in value for tensor in tensors_in(each)]


def replaced(value: Any, by: Callable[[Tensor], Tensor]) -> Any:
    """The value with ``by(tensor)`` in the place of each tensor."""
    if isinstance(value, Tensor):
        return by(value)
    if isinstance(value, dict):
        return {key: replaced(each, by) for key, each in value.items()}
    if isinstance(value, tuple):
        made = [replaced(each, by) for each in value]
        return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
    return [replaced(each, by) for each in value] if isinstance(value, list) else value
