"""Ops that call a Python function, which no GPU does."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug_simt.c.profile import Profile


def python_call(profile: Profile, node: Tensor) -> Decline:
    """Declines: the function reads and writes host memory while the host computes."""
    return Decline("Python functions run on host devices, such as the CPU")


CHOOSERS = {ops.PythonCall: python_call}
