"""Ops that call a Python function, which GPUs decline."""

from __future__ import annotations

from ggplug import ops
from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug_simt.c.profile import Profile


def python_call(profile: Profile, node: Tensor) -> Decline:
    """Declines: the function runs on the host, in host memory."""
    return Decline("Python functions run on host devices, such as the CPU")


CHOOSERS = {ops.PythonCall: python_call}
