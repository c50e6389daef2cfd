"""CUDA programs on the processor: the very text that NVRTC gets, compiled as C++ with what a GPU has defined around it.

A work-group's items are fibers that switch at barriers, so the kernels run with the sizes for a GPU: many lanes,
shared memory, tiles.  A barrier that only some items of a group come to is found.  The compiler is the one of PyPI's
``ziglang``; half precision takes the path of AMD's GPUs, because the other one is assembly of NVIDIA's.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from paths import ROOT

from ggplug.backend import Bytes
from ggplug.types import DeviceKind
from ggplug_simt import Bound, Compiled, Dispatch, Driver, Failure, Properties, SimtDevice, StepwiseQueue
from ggplug_simt.c import CLibrary

GPU = Properties(processor=False, vector_width=1, local_bytes=49152, max_lanes=1024)

ONE_ARGUMENT = [
    "exp",
    "expm1",
    "log",
    "log1p",
    "sin",
    "cos",
    "tanh",
    "erf",
    "sqrt",
    "fabs",
    "floor",
    "ceil",
    "round",
    "rint",
    "trunc",
]
TWO_ARGUMENTS = ["pow", "fmax", "fmin"]

# What CUDA has without any header.  Names of our own would not clash with anything: no system header is read.
BEFORE = "\n".join(
    [
        "#define __HIP_PLATFORM_AMD__ 1",
        "#define __global__",
        "#define __device__",
        "#define __forceinline__ inline",
        "#define __shared__ static",
        "struct index { int x; };",
        "static index blockIdx, threadIdx;",
        "static void (*at_barrier)();",
        "static inline void __syncthreads() { at_barrier(); }",
        "static inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }",
        "static inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }",
        "#define fmaf(a, b, c) __builtin_fmaf(a, b, c)",
        "static inline int atomicCAS(int *p, int seen, int x) {",
        "    __atomic_compare_exchange_n(p, &seen, x, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);",
        "    return seen;",
        "}",
        "static inline int atomicOr(int *p, int x) { return __atomic_fetch_or(p, x, __ATOMIC_RELAXED); }",
        *(f"static inline float {f}(float x) {{ return __builtin_{f}f(x); }}" for f in ONE_ARGUMENT),
        *(f"static inline float {f}(float x, float y) {{ return __builtin_{f}f(x, y); }}" for f in TWO_ARGUMENTS),
        *(f"#define {f}f {f}" for f in (*ONE_ARGUMENT, *TWO_ARGUMENTS)),
        "",
    ]
)

# cuLaunchKernel: parameters are the addresses of the arguments.  `item` runs one work-item.
AFTER = """
static void **parameters;
static void item() {{ {kernel}({arguments}); }}
extern "C" int launch(
    int groups, int lanes, void **arguments, int (*run)(int, void (*)(), int *), void (*barrier)())
{{
    parameters = arguments;
    at_barrier = barrier;
    for (blockIdx.x = 0; blockIdx.x < groups; blockIdx.x++) if (run(lanes, item, &threadIdx.x)) return 1;
    return 0;
}}
"""

# The items of one group are fibers with their own stacks, which the next group reuses; a switch is a jump and
# no call of the system, as it would be with swapcontext.
FIBERS = r"""
#include <setjmp.h>
#include <stdlib.h>
#include <ucontext.h>
enum { MOST = 1024, STACK = 1 << 16 };
enum { UNMADE, DONE, AT_BARRIER };
static jmp_buf group, items[MOST];
static char *stacks;
static int running, state[MOST];
static void (*body)(void);
static void pause(int now)
{
    state[running] = now;
    if (!_setjmp(items[running])) _longjmp(group, 1);
}
void barrier(void) { pause(AT_BARRIER); }
static void fiber(void) { for (;;) { body(); pause(DONE); } }
static void resume(int i)
{
    static ucontext_t made;
    if (_setjmp(group)) return;
    running = i;
    if (state[i] != UNMADE) _longjmp(items[i], 1);
    getcontext(&made);
    made.uc_stack.ss_sp = stacks + (size_t)i * STACK;
    made.uc_stack.ss_size = STACK;
    makecontext(&made, fiber, 0);
    setcontext(&made);
}
int run(int lanes, void (*item)(void), int *lane)
{
    if (!stacks) stacks = malloc((size_t)MOST * STACK);
    body = item;
    for (;;) {
        int waiting = 0;
        for (int i = 0; i < lanes; i++) {
            *lane = i;
            resume(i);
            waiting += state[i] == AT_BARRIER;
        }
        if (waiting == 0) return 0;
        if (waiting != lanes) break;
    }
    /* only some came to the barrier, and would go on from there in the next group */
    for (int i = 0; i < MOST; i++) if (state[i] == AT_BARRIER) state[i] = UNMADE;
    return 1;
}
int run_without_barriers(int lanes, void (*item)(void), int *lane)
{
    for (*lane = 0; *lane < lanes; ++*lane) item();
    return 0;
}
"""

KEPT = ROOT / ".cache" / "cuda_on_host"
"""Not where a test has GGPLUG_CACHE_DIR: the compiler takes seconds to make its own library anew."""

_lock = threading.Lock()


class DoesNotCompile(Exception):
    """The compiler's words."""


def build(text: str, language: str) -> ctypes.CDLL:
    """A shared library, kept by its text."""
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.so"
    if not path.exists():
        source, made = (path.with_suffix(f".{os.getpid()}.{threading.get_ident()}{end}") for end in (".txt", ".so"))
        source.write_text(text, encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-x",
            language,
            "-O1",
            "-w",
            "-fno-sanitize=all",
            "-ffp-contract=off",
            "-fno-exceptions",
            "-shared",
            "-fPIC",
            "-o",
            str(made),
            str(source),
            "-lm",
        ]
        own = {f"ZIG_{scope}_CACHE_DIR": str(KEPT / "zig") for scope in ("GLOBAL", "LOCAL")}
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | own)
        source.unlink()
        if done.returncode:
            raise DoesNotCompile(done.stderr)
        os.replace(made, path)
    return ctypes.CDLL(str(path))


@functools.cache
def fibers() -> ctypes.CDLL:
    return build(FIBERS, "c")


class HostProgram:
    """A program of one kernel."""

    def __init__(self, text: str) -> None:
        _, parameters, code = re.split(r"^#define PARAMETERS (.*)$", text, flags=re.MULTILINE)
        names = re.findall(r"^KERNEL void (\w+)", code, re.MULTILINE)
        (kernel,) = {name for name in names if f"#define {name.upper()} 1\n" in text}
        types = [each.rpartition("*")[0] + "*" if "*" in each else "arguments" for each in parameters.split(", ")]
        arguments = ", ".join(f"*({each.replace('GLOBAL ', '')} *)parameters[{n}]" for n, each in enumerate(types))
        self.library = build(BEFORE + text + AFTER.format(kernel=kernel, arguments=arguments), "c++")
        self.waits = any(word in code for word in ("BARRIER()", "GROUP_SUM", "GROUP_MAX"))

    def launch(self, groups: int, lanes: int, parameters: int) -> None:
        """Runs it; ``parameters``: address of the addresses of the arguments."""
        run = fibers().run if self.waits else fibers().run_without_barriers
        with _lock:
            failed = self.library.launch(groups, lanes, ctypes.c_void_p(parameters), run, fibers().barrier)
        assert not failed, "a barrier that only some items of a group came to"


class HostBound(Bound):
    def __init__(self, program: HostProgram) -> None:
        self.program = program
        self.buffers: dict[int, Any] = {}
        self.struct: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def set_buffer(self, position: int, handle: Any) -> None:
        self.buffers[position] = handle

    def set_arguments(self, position: int, arguments: npt.NDArray[np.uint8]) -> None:
        self.struct = arguments.copy()


class HostQueue(StepwiseQueue):
    """Everything happens at once."""

    def write(self, handle: Any, offset: int, data: Bytes) -> None:
        handle[offset : offset + data.size] = data

    def read(self, handle: Any, offset: int, out: Bytes) -> None:
        out[...] = handle[offset : offset + out.size]

    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, size: int) -> None:
        target[target_offset : target_offset + size] = source[source_offset : source_offset + size].copy()

    def fill(self, handle: Any, offset: int, size: int, value: int) -> None:
        handle[offset : offset + size] = value

    def bind(self, dispatch: Dispatch) -> HostBound:
        return HostBound(dispatch.program)

    def launcher(self, bound: Bound, groups: int, lanes: int) -> Callable[[], object]:
        assert isinstance(bound, HostBound)

        def launch() -> None:
            pointers = np.array([bound.buffers[n].ctypes.data for n in sorted(bound.buffers)], np.uintp)
            places = pointers.ctypes.data + 8 * np.arange(pointers.size)
            addresses = np.array([*places, bound.struct.ctypes.data], np.uintp)
            bound.program.launch(groups, lanes, addresses.ctypes.data)

        return launch

    def record(self) -> Any:
        return None

    def wait(self, mark: Any) -> None:
        pass

    def flush(self) -> None:
        pass

    def finish(self) -> None:
        pass


class HostDriver(Driver):
    identity = "the host"
    total_memory = max_buffer = 1 << 30
    alignment = 256

    def __init__(self, properties: Properties = GPU) -> None:
        self.properties = properties
        self.library = CLibrary("cuda", properties)

    def allocate(self, size: int) -> Any:
        return np.full(size, 0xA5, np.uint8)

    def free(self, handle: Any) -> None:
        pass

    def queue(self) -> HostQueue:
        return HostQueue()

    def compile(self, text: str) -> Compiled:
        return Compiled(HostProgram(text), b"")

    def load(self, binary: bytes) -> Any:
        raise ValueError("programs are kept as libraries")

    def finish_mark(self, mark: Any) -> None:
        pass

    def failure(self, error: Exception) -> tuple[Failure, str]:
        return (Failure.COMPILE if isinstance(error, DoesNotCompile) else Failure.OTHER), str(error)


class HostDevice(SimtDevice):
    """A GPU's kernels on the processor, cut for ``properties``."""

    def __init__(self, properties: Properties = GPU) -> None:
        self.properties = properties
        super().__init__(
            "CUDAonHost0", description="CUDA programs on the processor", kind=DeviceKind.GPU, total_memory=1 << 30
        )

    def open_driver(self) -> HostDriver:
        return HostDriver(self.properties)
