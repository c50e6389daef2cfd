"""Every kernel compiles for the GPUs of NVIDIA with NVRTC, of AMD with clang, which need neither a driver nor a GPU."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from ggplug import ops, types
from ggplug.backend import Decline, Group
from ggplug.errors import DeviceNotFoundError, GGPlugError
from ggplug.ops.base import OPS
from ggplug.ops.custom import PythonCall
from ggplug.sketches import EXTENTS, maker, sketches
from ggplug.tensor import Tensor, new_tensor
from ggplug_testing.cases.case import Leafs
from ggplug_testing.vectors import Recording

pytest.importorskip("ggplug_cuda")
pytest.importorskip("cupy")

from cuda_on_host import ONE_ARGUMENT, TWO_ARGUMENTS
from simt_groups import EXAMPLES
from simt_stand_in import StandInDevice

from ggplug_cuda import CudaRegistration
from ggplug_cuda.driver import CompileError, compile_text, compiler_options
from ggplug_simt import Properties
from ggplug_simt.c import Source, kernels
from ggplug_simt.c.kernels import match
from ggplug_simt.c.profile import Profile
from ggplug_simt.cache import likely_nodes

GPU = Properties(processor=False, vector_width=1, local_bytes=49152, max_lanes=1024)
PROFILES = [Profile.of(GPU), Profile.of(dataclasses.replace(GPU, products=True))]


def sketched_nodes() -> Iterator[Tensor]:
    """A node for each way in which the conformance suite sketches an op."""
    for op in OPS.values():
        for sketch in () if issubclass(op, PythonCall) else sketches(op):
            try:
                node = maker(op, sketch, EXTENTS, sketch.layouts())(Leafs(0))
            except GGPlugError:  # only tensors without elements, or of other types
                continue
            if not node.is_view:
                yield node


def kernels_in_the_library() -> set[str]:
    """The names of all kernels that are written."""
    texts = [path.read_text("utf-8") for path in Path(kernels.__file__).parent.glob("*.c")]
    return {name for text in texts for name in re.findall(r"^KERNEL void (\w+)\(", text, re.MULTILINE)}


def sources(data: Path) -> Iterator[Source]:
    """The programs of recorded cases, of models, of each op's sketches, and of rows too long to be sorted at once."""
    nodes = [*likely_nodes(), *sketched_nodes(), ops.argsort(new_tensor(types.F32, (5000, 2)))]
    for case in Recording(data / "ggml_ops_compact.npz"):
        try:
            if case.build() is None:
                nodes += [node for node in case.graph.nodes if node.op is not None and not node.op.is_view]
        except GGPlugError:
            continue
    for profile in PROFILES:
        for node in nodes:
            found = match(profile, Group((node,)))
            if not isinstance(found, Decline):
                yield from (launch.program for launch in found.launches if isinstance(launch.program, Source))


def fused_sources() -> Iterator[Source]:
    """The programs of the examples of groups."""
    for make, _ in EXAMPLES.values():
        device, graph = StandInDevice(), make()
        for _, found in device.matches(graph, device.groups(graph)):
            yield from (launch.program for launch in found.launches if isinstance(launch.program, Source))


def one_of_each_kernel(found: Iterable[Source]) -> list[Source]:
    return list({source.kernel: source for source in found}.values())


def one_of_each_kernel_and_types(found: Iterable[Source]) -> list[Source]:
    """Sizes left out."""
    return list({str(source): source for source in found}.values())


@pytest.mark.parametrize(
    ("major", "minor"), [(9, 0), *(pytest.param(*each, marks=pytest.mark.long) for each in ((7, 5), (10, 0)))]
)
def test_every_kernel_compiles_for_nvidia(data: Path, major: int, minor: int) -> None:
    cuda = CudaRegistration().cuda
    options = compiler_options(cuda, {"major": major, "minor": minor})
    assert options[0] == f"--gpu-architecture=sm_{major}{minor}"
    found = one_of_each_kernel_and_types([*sources(data), *fused_sources()])
    assert {source.kernel for source in found} >= kernels_in_the_library()
    if major > 7:  # one of each kernel: what differs between architectures is not the types
        found = one_of_each_kernel(found)
    for source in found:
        assert compile_text(cuda, source.text("cuda"), options).startswith(b"\x7fELF")


def test_a_gpu_newer_than_the_compiler_gets_portable_code() -> None:
    cuda = CudaRegistration().cuda
    options = compiler_options(cuda, {"major": 99, "minor": 0})
    assert options[0] == f"--gpu-architecture=compute_{max(cuda.nvrtc.getSupportedArchs())}"
    assert b".visible .entry nothing" in compile_text(cuda, 'extern "C" __global__ void nothing() {}', options)


def test_what_does_not_compile_comes_with_the_compilers_log() -> None:
    cuda = CudaRegistration().cuda
    with pytest.raises(CompileError, match="expected a"):
        compile_text(cuda, "void broken( {", compiler_options(cuda, {"major": 9, "minor": 0}))


def test_without_a_driver_the_error_has_the_reason_and_the_remedy() -> None:
    registration = CudaRegistration()
    if registration.cuda.runtime.driverGetVersion():
        pytest.skip("there is a driver")
    with pytest.raises(DeviceNotFoundError, match="no driver of a GPU is installed") as caught:
        registration.devices()
    assert caught.value.remedy == "install the GPU vendor's driver"


# What hipRTC has without any header, as far as kernels use it.
HIP = "\n".join(
    [
        "#define __HIP_PLATFORM_AMD__ 1",
        "#define __global__ __attribute__((global))",
        "#define __device__ __attribute__((device))",
        "#define __shared__ __attribute__((shared))",
        "#define __forceinline__ inline __attribute__((always_inline))",
        "struct index { int x; };",
        "#define threadIdx (index{(int)__builtin_amdgcn_workitem_id_x()})",
        "#define blockIdx (index{(int)__builtin_amdgcn_workgroup_id_x()})",
        "static __device__ inline void __syncthreads() { __builtin_amdgcn_s_barrier(); }",
        "static __device__ inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }",
        "static __device__ inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }",
        "#define fmaf __builtin_fmaf",
        "static __device__ inline int atomicCAS(int *p, int seen, int x) {",
        "    __hip_atomic_compare_exchange_strong(p, &seen, x, __ATOMIC_RELAXED, __ATOMIC_RELAXED,",
        "        __HIP_MEMORY_SCOPE_AGENT);",
        "    return seen;",
        "}",
        "static __device__ inline int atomicOr(int *p, int x) {",
        "    return __hip_atomic_fetch_or(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);",
        "}",
        *(
            f'extern "C" __device__ float {f}f({taken});\n'
            f"static __device__ inline float {f}({taken}) {{ return {f}f({passed}); }}"
            for functions, taken, passed in (
                (ONE_ARGUMENT, "float x", "x"),
                (TWO_ARGUMENTS, "float x, float y", "x, y"),
            )
            for f in functions
        ),
        "",
    ]
)


@pytest.mark.parametrize(
    "architecture", ["gfx90a", *(pytest.param(each, marks=pytest.mark.long) for each in ("gfx942", "gfx1100"))]
)
def test_every_kernel_compiles_for_amd(data: Path, tmp_path: Path, architecture: str) -> None:
    pytest.importorskip("ziglang")
    for source in [*one_of_each_kernel(sources(data)), *fused_sources()]:
        (tmp_path / "kernel.hip").write_text(HIP + source.text("cuda"), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "ziglang",
            "clang",
            "-x",
            "hip",
            f"--offload-arch={architecture}",
            "-nogpuinc",
            "-nogpulib",
            "--cuda-device-only",
            "-O2",
            "-ffp-contract=off",
            "-S",
            "kernel.hip",
            "-o",
            "kernel.s",
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{source}: {done.stderr}"
        assert f".globl\t{source.kernel}" in (tmp_path / "kernel.s").read_text(encoding="utf-8")
