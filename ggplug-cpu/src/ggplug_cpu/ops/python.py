"""Nodes that call a Python function: :mod:`ggplug_cpu.interrupted` computes them."""

from __future__ import annotations

from ggplug import ops
from ggplug.tensor import Tensor
from ggplug_cpu.choosing.chooser import Chooser
from ggplug_cpu.choosing.entries import Entries


def python_call(node: Tensor) -> Entries:
    """A stop of the tape, for any types and strides: the function gets the tensors' memory as it is."""
    return Entries((), python=True)


CHOOSERS = (Chooser(ops.PythonCall, f"{'any? ' * 9}> any", python_call),)
