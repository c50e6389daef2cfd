"""Nodes that call a Python function: :mod:`ggplug_cpu.interrupted` computes them."""

from __future__ import annotations

from ggplug.tensor import Tensor
from ggplug_cpu.choices.steps import Steps


def python_call(node: Tensor) -> Steps:
    """A stop of the tape, for any types and strides: the function gets the tensors' memory as it is."""
    return Steps((), python=True)
