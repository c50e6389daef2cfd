"""ggplug's CUDA devices, through CuPy: NVIDIA's GPUs, and AMD's where CuPy's ROCm build is installed."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

from ggplug.backend import Device, Registration
from ggplug.errors import DeviceNotFoundError, PluginError
from ggplug.hookspecs import hookimpl
from ggplug_simt import SimtRegistration

_INSTALL = 'pip install "ggplug-core[cuda13]" (or cuda12, by the driver; rocm7 for GPUs of AMD)'


class CudaRegistration(SimtRegistration):
    """The CUDA backend; it lists devices without making a context."""

    name = "CUDA"
    version = "0.1.0"
    api_version = 2
    language = "cuda"

    @functools.cached_property
    def cuda(self) -> Any:
        """:mod:`ggplug_cuda.cupy_calls`.

        Raises DeviceNotFoundError if CuPy is not installed, PluginError if it lacks NVIDIA's compiler.
        """
        try:
            return importlib.import_module("ggplug_cuda.cupy_calls")
        except ModuleNotFoundError as error:
            raise DeviceNotFoundError("CuPy is not installed", remedy=_INSTALL) from error
        except ImportError as error:
            lacking = f"CuPy lacks a library of CUDA: {str(error).splitlines()[0]}"
            raise PluginError(lacking, remedy=_INSTALL) from error

    def list_devices(self) -> Sequence[Device]:
        from ggplug_cuda.devices import list_devices

        return list_devices(self, self.cuda)


@hookimpl
def ggplug_backend_registration() -> Registration:
    """The registration, for ggplug's registry."""
    return CudaRegistration()
