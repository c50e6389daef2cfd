"""Functions and classes that the CPU backend offers by name, beyond the interface (ggml's procedure addresses of its
CPU backend).

=======================  ==============================================================================
``set_n_threads``        ``(backend, n)``  (ggml_backend_set_n_threads)
``set_abort_callback``   ``(backend, callback)``  (ggml_backend_set_abort_callback)
``threadpool``           the class :class:`~ggplug_cpu.team.Team`  (ggml_threadpool_new)
``set_threadpool``       ``(backend, team)``  (ggml_backend_cpu_set_threadpool)
``features``             ``()``: LLVM's names of the features that kernels may use  (ggml_backend_get_features)
``limit_features``       ``(features)``: limits this process and those that it starts, as ``GGPLUG_CPU_FEATURES`` does
``cache``                compiled kernels on disk: ``entries``, ``clear``, ``prebuild``
``quantizer``            the class :class:`~ggplug_cpu.quantization.quantizer.Quantizer`: encodes on all threads
=======================  ==============================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ggplug.cache import KernelFiles
from ggplug_cpu import features
from ggplug_cpu.compiler import FILES

if TYPE_CHECKING:
    from ggplug_cpu.backend import CpuBackend
    from ggplug_cpu.team import Team


def find(name: str) -> Any:
    """The extra of that name, or None."""
    if name == "threadpool":
        from ggplug_cpu.team import Team

        return Team
    if name == "quantizer":
        from ggplug_cpu.quantization.quantizer import Quantizer

        return Quantizer
    return _EXTRAS.get(name)


def set_n_threads(backend: CpuBackend, n_threads: int) -> None:
    """See :meth:`CpuBackend.set_n_threads`."""
    backend.set_n_threads(n_threads)


def set_abort_callback(backend: CpuBackend, callback: Callable[[], Any] | None) -> None:
    """See :meth:`CpuBackend.set_abort_callback`."""
    backend.set_abort_callback(callback)


def set_threadpool(backend: CpuBackend, team: Team) -> None:
    """Sets the thread team of the device, for all of its streams."""
    backend.device.set_team(team)


def feature_names() -> tuple[str, ...]:
    """LLVM's names of the features that kernels are compiled for: ``("avx2", "f16c", "fma", ...)``."""
    return tuple(sorted(features.target().flags))


class KernelCache(KernelFiles):
    """Compiled kernels on disk, and how to compile them ahead of time."""

    def prebuild(self, progress: Callable[[int, int, str], None] | None = None) -> int:
        """Compiles the kernels that encoders and decoders are likely to need; returns how many had to be compiled.

        ``progress(done, total, name)`` is called before each kernel, with the kernel's name.
        """
        from ggplug_cpu import compiler, prebuild

        return compiler.prebuild(prebuild.likely_kernels(), progress)


_EXTRAS: dict[str, Any] = {
    "set_n_threads": set_n_threads,
    "set_abort_callback": set_abort_callback,
    "set_threadpool": set_threadpool,
    "features": feature_names,
    "limit_features": features.limit,
    "cache": KernelCache(FILES.part),
}
