"""Reports what a GPU computes, and how fast: ``python -m ggplug_cuda.gpu_report --data FOLDER OUT.json``.

The report is that of :mod:`ggplug_testing.gpu_report`; this module adds CUDA's devices, with the facts that only CuPy
has. Nothing has to be installed but CuPy and what ggplug-core needs for itself: with the folders of source in
``PYTHONPATH``, the backend is registered by hand.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ggplug.backend import Device
from ggplug_cuda import CudaRegistration

try:
    from ggplug_testing.gpu_report import Door, Step, main
    from ggplug_testing.gpu_report.figures import factors, library_product
    from ggplug_testing.gpu_report.step import Answer, registered
except ModuleNotFoundError as error:
    if __name__ != "__main__" or error.name != "ggplug_testing":
        raise
    lacking = "the report is in the conformance suite, which is not installed"
    print(f'error: {lacking} (pip install "ggplug-core[test]")', file=sys.stderr)
    sys.exit(2)

_PROPERTIES = "multiProcessorCount clockRate memoryClockRate memoryBusWidth l2CacheSize sharedMemPerBlock ECCEnabled"


def facts(device: Any) -> Mapping[str, Any]:
    """Versions of driver and libraries, and the GPU's properties from CUDA."""
    import cupy

    cuda = device.cuda
    return {
        "cupy": cupy.__version__,
        "cuda_driver": cuda.runtime.driverGetVersion(),
        "cuda_runtime": cuda.runtime.runtimeGetVersion(),
        "nvrtc": ".".join(map(str, cuda.nvrtc.getVersion())),
        **{key: device.facts[key] for key in _PROPERTIES.split() if key in device.facts},
    }


def figures(device: Any) -> Iterator[Step]:
    """The matrix product of the vendor's library, with which ggplug's products are compared."""
    for kind in ("float32", "float16"):
        yield Step(f"the same by cupy.matmul, {kind}", functools.partial(matmul, device, kind))


def matmul(device: Any, kind: str) -> Answer:
    """CuPy's product, measured like ggplug's."""
    import cupy

    with cupy.cuda.Device(device.number):
        columns, weights = (cupy.asarray(values.astype(kind)) for values in factors())

        def run(count: int) -> None:
            for _ in range(count):
                cupy.matmul(columns, weights.T)
            cupy.cuda.get_current_stream().synchronize()

        return library_product(run)


def find(name: str | None) -> Sequence[Device]:
    """CUDA's devices."""
    return registered(CudaRegistration())


DOOR = Door("ggplug_cuda.gpu_report", find, facts, figures)

if __name__ == "__main__":
    sys.exit(main(door=DOOR))
