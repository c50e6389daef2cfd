"""Every kernel compiles as CUDA C++ with NVRTC, which needs neither a driver nor a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from ggplug.backend import Decline
from ggplug.errors import GGPlugError
from ggplug.testing.vectors import Recording

pytest.importorskip("ggplug_simt")

from ggplug_simt.cache import likely_nodes
from ggplug_simt.kernels import match
from ggplug_simt.profile import Profile, Properties
from ggplug_simt.source import Source

PROFILE = Profile.of(Properties(processor=False, vector_width=1, local_bytes=49152, max_lanes=1024))


class Nvrtc:
    """The few functions of NVRTC that compiling takes, from NVIDIA's wheel."""

    def __init__(self, folder: Path) -> None:
        # The compiler looks for its builtins among the libraries that are loaded already.
        ctypes.CDLL(str(next(folder.glob("libnvrtc-builtins.so*"))))
        self.library = ctypes.CDLL(str(next(folder.glob("libnvrtc.so*"))))

    def compile(self, text: str, architecture: str) -> str:
        """The log; empty if there is nothing to say."""
        program = ctypes.c_void_p()
        made = self.library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
        assert made == 0
        options = [f"--gpu-architecture={architecture}".encode(), b"-fmad=false"]
        failed = self.library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        size = ctypes.c_size_t()
        self.library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self.library.nvrtcGetProgramLog(program, log)
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        shown = log.value.decode()
        return f"error {failed}: {shown}" if failed else shown


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    found = importlib.util.find_spec("nvidia")
    roots = (found.submodule_search_locations or ()) if found else ()
    for folder in (path for root in roots for path in Path(root).glob("*/lib")):
        if list(folder.glob("libnvrtc.so*")):
            return Nvrtc(folder)
    pytest.skip("install nvidia-cuda-nvrtc")


def sources(data: Path) -> Iterator[Source]:
    """The programs of the recorded cases, and those that models need."""
    nodes = list(likely_nodes())
    for case in Recording(data / "ggml_ops_compact.npz"):
        try:
            if case.build() is None:
                nodes += [node for node in case.graph.nodes if node.op is not None and not node.op.is_view]
        except GGPlugError:
            continue
    for node in nodes:
        found = match(PROFILE, node)
        if not isinstance(found, Decline):
            yield from (launch.source for launch in found.launches)


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90", "sm_100"])
def test_every_kernel_compiles_for_nvidia(nvrtc: Nvrtc, data: Path, architecture: str) -> None:
    found = list(dict.fromkeys(sources(data)))
    assert len({source.kernel for source in found}) >= 15
    if architecture != "sm_75":  # one of each kernel: what differs between architectures is not the types
        found = list({source.kernel: source for source in found}.values())
    logs = {str(source): log for source in found if (log := nvrtc.compile(source.text("cuda"), architecture))}
    assert logs == {}
