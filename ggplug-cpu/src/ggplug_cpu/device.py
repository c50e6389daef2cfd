"""The CPU as a device: ordinary memory, one team of threads, and a table of kernels."""

from __future__ import annotations

import functools
import platform
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ggplug import host
from ggplug.backend import Buffer, BufferType, Capabilities, Decline, Group, Memory, check_parameters
from ggplug.types import BufferUsage, DeviceKind
from ggplug_cpu import features
from ggplug_cpu.threaded import ThreadedDevice

if TYPE_CHECKING:
    from ggplug.patterns import Pattern
    from ggplug_cpu.backend import CpuBackend
    from ggplug_cpu.choosing.entries import Entries


class CpuDevice(ThreadedDevice):
    """This machine's processor.  All its streams compute on one :attr:`team` of threads, one computation at a time."""

    name = "CPU"
    kind = DeviceKind.CPU
    capabilities = Capabilities(buffer_from_host=True)

    def __init__(self) -> None:
        super().__init__()
        self._buffer_type = host.HostBufferType(self.name, self)
        self._packed: dict[str, BufferType] = {}

    # -- properties

    @property
    def description(self) -> str:  # type: ignore[override]
        """The processor's name, the instructions that kernels are compiled for, and how many threads there are."""
        return f"{processor_name()} ({_instructions()}), {self.n_threads} threads"

    def memory(self) -> Memory:
        return host.memory()

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        """Memory for packed weights: see :class:`~ggplug_cpu.packed.PackedBufferType`."""
        from ggplug_cpu.ops.mul_mat.kinds import packed_forms
        from ggplug_cpu.packed import PackedBufferType

        target = features.target()
        with self._lock:
            if target.key not in self._packed:
                self._packed[target.key] = PackedBufferType(self, target, packed_forms())
            return (self._packed[target.key],)

    def buffer_from_host(self, memory: Any, *, usage: BufferUsage = BufferUsage.ANY) -> Buffer:
        """A buffer over the caller's memory, which is used in place; read-only maps give read-only buffers."""
        return self._buffer_type.wrap(memory, usage=usage)

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """True for host memory in the tensors' own layout, and for weights packed for the current instructions."""
        return buffer_type.is_host or buffer_type is self._packed.get(features.target().key)

    # -- ops

    def match(self, group: Group) -> Entries | Decline:
        """The kernels that compute a group, or the reason why it declines; see :mod:`ggplug_cpu.matching`."""
        from ggplug_cpu.matching import match

        return match(group)

    @property
    def variant(self) -> Any:
        """The instructions that kernels are compiled for."""
        return features.target()

    @functools.cached_property
    def patterns(self) -> Sequence[Pattern]:
        """The chains of ops that it computes as groups: see :mod:`ggplug_cpu.matching`."""
        from ggplug_cpu.matching import GROUPS

        return list(GROUPS)

    def init(self, **params: Any) -> CpuBackend:
        """A new stream.

        ``n_threads`` applies to the device, for all of its streams; ``abort_callback`` applies to this stream only: see
        the setters of :class:`~ggplug_cpu.backend.CpuBackend`.  Raises ParameterError for any other parameter.
        """
        from ggplug_cpu.backend import CpuBackend

        check_parameters(self, params, ("n_threads", "abort_callback"))
        return CpuBackend(self, **params)


@functools.cache
def processor_name() -> str:
    """The processor's name, from the operating system."""
    try:
        if sys.platform == "linux":
            with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
                for line in file:
                    key, _, value = line.partition(":")
                    if key.strip().lower() in ("model name", "cpu model", "hardware"):
                        return " ".join(value.split())
        if sys.platform == "win32":
            import winreg

            path = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key_handle:
                return " ".join(str(winreg.QueryValueEx(key_handle, "ProcessorNameString")[0]).split())
        if sys.platform == "darwin":
            return _sysctl("machdep.cpu.brand_string")
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _sysctl(name: str) -> str:
    import ctypes

    libc = ctypes.CDLL(None)
    size = ctypes.c_size_t(256)
    value = ctypes.create_string_buffer(256)
    if libc.sysctlbyname(name.encode(), value, ctypes.byref(size), None, 0) != 0:
        raise OSError(f"no sysctl {name}")
    return value.value.decode(errors="replace")


def _instructions() -> str:
    """The notable instructions that kernels are compiled with: ``avx512, vnni, bf16, amx``, ``neon, sve2, dotprod``."""
    notable = {
        "avx512": ("avx512f",),
        "avx2": ("avx2",),
        "sse2": ("sse2",),
        "neon": ("neon",),
        "sve2": ("sve2",),
        "sve": ("sve",),
        "vnni": ("avx512vnni", "avxvnni"),
        "dotprod": ("dotprod",),
        "i8mm": ("i8mm",),
        "bf16": ("avx512bf16", "bf16"),
        "fp16": ("avx512fp16", "fullfp16"),
        "amx": ("amx-tile",),
    }
    target = features.target()
    found = [name for name, flags in notable.items() if any(target.has(flag) for flag in flags)]
    # the largest set of vector instructions implies the smaller ones
    for wider, narrower in (("avx512", "avx2"), ("avx512", "sse2"), ("avx2", "sse2"), ("sve2", "sve")):
        if wider in found and narrower in found:
            found.remove(narrower)
    return ", ".join(found) or target.level
