"""The CUDA backend on the stand-in."""

from __future__ import annotations

from cupy_stand_in import StandIn
from ggplug_cuda import CudaRegistration
from ggplug_cuda.devices import CudaDevice


class StandInRegistration(CudaRegistration):
    """The CUDA backend with the stand-in in CuPy's place."""

    def __init__(self, cuda: StandIn) -> None:
        super().__init__()
        self.cuda = cuda


def devices(cuda: StandIn) -> list[CudaDevice]:
    """The devices that the CUDA backend finds on the stand-in."""
    return [device for device in StandInRegistration(cuda).devices() if isinstance(device, CudaDevice)]
