"""A ggplug backend over PyTorch's tensors: memory that the host does not see, a queue of its own, and sixty ops.

Everything here works on PyTorch's CPU tensors; a device of another kind differs in where ``TorchBuffer`` allocates, and
in what ``submit`` hands work to.
"""

from __future__ import annotations

from collections.abc import Sequence

from ggplug.backend import Device, Registration
from ggplug.hookspecs import hookimpl


class TorchRegistration(Registration):
    name = "Torch"
    version = "0.1.0"
    api_version = 2

    def __init__(self) -> None:
        self._devices: list[Device] = []

    def devices(self) -> Sequence[Device]:
        if not self._devices:
            from ggplug_torch.device import TorchDevice  # importing torch takes a second

            self._devices.append(TorchDevice())
        return self._devices


@hookimpl
def ggplug_backend_registration() -> Registration:
    return TorchRegistration()
