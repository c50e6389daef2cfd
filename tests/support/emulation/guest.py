"""A Python for an emulated processor: QEMU, Debian's Python, and libraries as wheels from PyPI."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emulation.packages import Archive, PackagesError, failure, source

#: Distributions of this repository that a guest gets; those of GPUs have nothing to test there.
DISTRIBUTIONS = ("ggplug-core", "ggplug-cpu", "ggplug-models", "ggplug-testing")
_QEMU_VERSION = 10
"""The oldest QEMU that will do: that of Debian 12 shows programs the host's list of features."""
_GLIBC = 36
"""The C library of the oldest Debian with a new enough Python, 2.36, which wheels are chosen for."""


@dataclass(frozen=True)
class Processor:
    """A processor that QEMU emulates.

    ``architecture``: Debian's name; ``machine``: Linux's.  ``cpu``: QEMU's name of the model.  ``needs``: what its
    libraries of Python must be beyond what the distributions ask for.  ``environment``: of its processes.
    """

    architecture: str
    machine: str
    cpu: str
    needs: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def _x86(cpu: str) -> Processor:
    # NumPy 2.3 is the last whose wheels run without SSE4.2.  Its BLAS takes AVX2 to mean FMA, and 64-bit to mean SSSE3.
    return Processor("amd64", "x86_64", cpu, ("numpy<2.4",), {"OPENBLAS_CORETYPE": "Prescott"})


# Threads of NumPy's BLAS that have nothing to do go round a loop, under emulation for as long as the process lives.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}

#: By the names that the sessions use.
PROCESSORS = {
    # dot products and matrix products of int8 and bf16, SVE2 with vectors of 128 bits
    "neoverse-n2": Processor("arm64", "aarch64", "neoverse-n2"),
    # the first 64-bit Arm: NEON and nothing that came later
    "cortex-a53": Processor("arm64", "aarch64", "cortex-a53"),
    # SSE3, the least that NumPy's wheels run with
    "sse3": _x86("Opteron_G1"),
    # AVX2 as no processor has it, but virtual machines do: without FMA and F16C
    "avx2-alone": _x86("Haswell,-fma,-f16c,-hle,-rtm"),
}


@dataclass(frozen=True)
class Guest:
    """What runs Python on an emulated processor: the program, and the environment that chooses the processor."""

    python: Path
    environment: dict[str, str]


def guests(
    names: Sequence[str],
    folder: Path,
    repository: Path,
    pip: Sequence[str],
    needs: Sequence[str] = (),
    lone_packages: Sequence[str] = (),
) -> list[Guest]:
    """A Python on each of the processors ``names`` of :data:`PROCESSORS`, with this repository's distributions.

    ``folder``: where downloads stay between runs.  ``pip``: the command that runs pip on the host.  ``needs``: further
    libraries; ``lone_packages``: libraries without what they need.  Raises UnavailableError where this system is of
    another kind or has no network, PackagesError where the download fails otherwise.
    """
    processors = [PROCESSORS[name] for name in names]
    folder = folder.resolve()
    pythons: dict[str, Path] = {}
    for each in processors:
        if each.architecture not in pythons:
            pythons[each.architecture] = _python(each, folder, repository, pip, needs, lone_packages)
    return [
        Guest(pythons[each.architecture], {"QEMU_CPU": each.cpu, **_ENVIRONMENT, **each.environment})
        for each in processors
    ]


def _python(
    processor: Processor,
    folder: Path,
    repository: Path,
    pip: Sequence[str],
    needs: Sequence[str],
    lone_packages: Sequence[str],
) -> Path:
    """The program, the same for all processors of an architecture."""
    place = folder / processor.architecture
    qemu = _qemu(folder / "qemu", processor.machine)
    interpreter = _interpreter(place, processor.architecture)
    python = _virtual_environment(place / "venv", qemu, place / "root", interpreter)
    libraries = place / "venv" / "lib" / interpreter.name / "site-packages"
    wanted = [*requirements(repository), *processor.needs, *needs]
    _install_libraries(pip, libraries, interpreter.name, processor.machine, wanted)
    _install_without_dependencies(pip, libraries, lone_packages)
    sources = [str(repository / each) for each in DISTRIBUTIONS]
    _pip(pip, "--no-deps", "--upgrade", "--target", str(libraries), *sources)
    return python


def requirements(repository: Path) -> list[str]:
    """What the distributions of a guest need from PyPI."""
    found: dict[str, None] = {}
    for name in DISTRIBUTIONS:
        project = tomllib.loads((repository / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        found.update((each, None) for each in project["dependencies"] if not each.startswith("ggplug-"))
    return list(found)


def _qemu(folder: Path, machine: str) -> Path:
    """QEMU's program that runs programs of a machine; it comes as one package for all machines."""
    program = folder / "root" / "usr" / "bin" / f"qemu-{machine}"
    if not program.exists():
        archive = Archive(folder / "apt", "amd64", source(), backports=True)
        versions = archive.versions("qemu-user")
        if not versions or _major(versions[0]) < _QEMU_VERSION:
            raise PackagesError(f"needs QEMU {_QEMU_VERSION}; there is {', '.join(versions) or 'none'}")
        archive.unpack_single("qemu-user", versions[0], folder / "root")
    return program


def _major(version: str) -> int:
    """``1:10.0.2+ds-2`` -> 10."""
    found = re.match(r"(?:\d+:)?(\d+)", version)
    return int(found[1]) if found else 0


def _interpreter(folder: Path, architecture: str) -> Path:
    """The program of Debian's Python for an architecture."""
    programs = folder / "root" / "usr" / "bin"
    found = [each for each in programs.glob("python3.*") if re.fullmatch(r"python3\.\d+", each.name)]
    if not found:
        archive = Archive(folder / "apt", architecture, source())
        archive.unpack(["python3", "libstdc++6"], folder / "root")
        found = [each for each in programs.glob("python3.*") if re.fullmatch(r"python3\.\d+", each.name)]
    return found[0]


def _virtual_environment(folder: Path, qemu: Path, root: Path, interpreter: Path) -> Path:
    """A virtual environment whose ``python`` is a script that starts QEMU; processes that it starts run there too."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    (folder / "pyvenv.cfg").write_text(
        f"home = {interpreter.parent}\ninclude-system-site-packages = false\n", encoding="utf-8"
    )
    # -0 is what the program takes for its own name: sys.executable is this script then
    text = f'#!/bin/sh\nexec "{qemu}" -L "{root}" -0 "{python}" "{interpreter}" "$@"\n'
    python.write_text(text, encoding="utf-8")
    python.chmod(0o755)
    return python


def _install_libraries(pip: Sequence[str], libraries: Path, version: str, machine: str, wanted: Sequence[str]) -> None:
    """Wheels for the guest, fetched by the host's pip; once for each list of what is asked for."""
    key = hashlib.sha256("\n".join(wanted).encode()).hexdigest()
    marker = libraries / "installed.txt"
    if marker.exists() and marker.read_text(encoding="utf-8") == key:
        return
    shutil.rmtree(libraries, ignore_errors=True)
    platforms = [part for each in _platforms(machine) for part in ("--platform", each)]
    _pip(
        pip,
        "--target",
        str(libraries),
        "--implementation",
        "cp",
        "--python-version",
        version.removeprefix("python"),
        *platforms,
        "--only-binary=:all:",
        *wanted,
    )
    marker.write_text(key, encoding="utf-8")


def _install_without_dependencies(pip: Sequence[str], libraries: Path, names: Sequence[str]) -> None:
    """What is wanted without what it needs; once each, and again when the libraries were replaced."""
    for name in names:
        marker = libraries / f"installed-{name}.txt"
        if not marker.exists():
            _pip(pip, "--target", str(libraries), "--no-deps", name)
            marker.touch()


def _platforms(machine: str) -> Iterator[str]:
    yield from (f"manylinux_2_{minor}_{machine}" for minor in range(_GLIBC, 4, -1))
    yield f"manylinux2014_{machine}"


def _pip(pip: Sequence[str], *arguments: str) -> None:
    done = subprocess.run([*pip, "install", "--quiet", *arguments], capture_output=True, text=True, env=os.environ)
    if done.returncode:
        raise failure(["pip", "install", *arguments], f"{done.stdout}\n{done.stderr}")
