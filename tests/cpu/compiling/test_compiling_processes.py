"""Several kernels that are missing are compiled by several processes, which leave nothing behind."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("ggplug_cpu")

from ggplug.errors import KernelCompileError, ParameterError
from ggplug_cpu import features
from ggplug_cpu.compiler import CompileEvent, Kernel, kernel, on_compile, prebuild
from ggplug_cpu.compiling import pool
from ggplug_cpu.compiling.job import FromCode, FromSource, Job, Reference, found
from ggplug_cpu.language import machine_code
from ggplug_cpu.ops.mul_mat import weights
from ggplug_cpu.ops.mul_mat.weights import pack_panels

_KERNELS = """
    from ggplug_cpu.compiler import kernel
    from ggplug_cpu.context import store_word, word

    print("imported")

    @kernel
    def writes(n):
        def body(ctx, params):
            store_word(params, word(params, 0) + n)
        return body

    @kernel
    def is_wrong(n):
        def body(ctx, params):
            store_word(params, nothing)
        return body
"""


@pytest.fixture(autouse=True)
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """An empty cache and three processes; the list is filled with those that are started."""
    monkeypatch.setenv("GGPLUG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(pool.ENVIRONMENT_VARIABLE, "3")
    found: list[Any] = []

    class Recorded(pool._Worker):
        def __init__(self) -> None:
            super().__init__()
            found.append(self._process)

    monkeypatch.setattr(pool, "_Worker", Recorded)
    return found


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of kernels that other processes find."""
    (tmp_path / "kernels_of_a_test.py").write_text(textwrap.dedent(_KERNELS))
    monkeypatch.syspath_prepend(str(tmp_path))
    import kernels_of_a_test  # type: ignore[import-not-found]

    yield kernels_of_a_test
    del sys.modules["kernels_of_a_test"]


def jobs_of(kernels: list[Kernel]) -> dict[Kernel, Job]:
    target = features.target()
    return {each: FromCode(each.name, machine_code.llvm_code(each, target), target) for each in kernels}


def test_other_processes_make_the_same_machine_code(kernels: Any, starts: list[Any]) -> None:
    jobs = jobs_of([kernels.writes(n) for n in (1, 2, 3, True, 4)])
    with pool.started(jobs) as others:
        answers = dict(others.outstanding())
    assert len(starts) == 2
    assert {process.returncode is None for process in starts} == {False}
    assert answers == {each: machine_code.compile_kernel(each, features.target()) for each in jobs}


def test_another_process_finds_a_kernel_of_the_package_by_its_name(starts: list[Any]) -> None:
    jobs: dict[Kernel, Job] = {}
    for name in ("q4_0", "q4_1", "q5_0", "q8_0"):
        each = pack_panels("f32", name)
        assert each.reference is not None
        jobs[each] = FromSource(each.reference, features.target(), each.source_key())
    with pool.started(jobs) as others:
        answers = dict(others.outstanding())
    assert answers == {each: machine_code.compile_kernel(each, features.target()) for each in jobs}
    stale = {each: job._replace(key="another") for each, job in jobs.items() if isinstance(job, FromSource)}
    with pool.started(stale) as others:
        assert {answer for _, answer in others.outstanding()} == {
            "LookupError: its source is another one in another process"
        }


def test_a_few_kernels_start_no_process(kernels: Any, starts: list[Any]) -> None:
    assert prebuild([kernels.writes(n) for n in range(2)]) == 2
    assert starts == []
    assert prebuild([kernels.writes(n) for n in range(5)]) == 3
    assert len(starts) == 1
    assert prebuild([kernels.writes(n) for n in range(5)]) == 0
    assert len(starts) == 1


def test_one_process_is_this_one(kernels: Any, starts: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pool.ENVIRONMENT_VARIABLE, "1")
    assert prebuild([kernels.writes(n) for n in range(9)]) == 9
    assert starts == []


def test_a_number_of_processes_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pool.ENVIRONMENT_VARIABLE, "many")
    with pytest.raises(ParameterError, match="GGPLUG_COMPILERS='many' is no number of processes"):
        pool.processes()


def test_listeners_and_progress_see_every_kernel_once(kernels: Any) -> None:
    wanted = [kernels.writes(n) for n in range(12)]
    events: list[CompileEvent] = []
    seen: list[tuple[int, int, str]] = []
    stop = on_compile(events.append)
    try:
        assert prebuild(wanted, lambda *facts: seen.append(facts)) == 12
    finally:
        stop()
    for phase in ("start", "done"):
        assert sorted(each.name for each in events if each.phase == phase) == sorted(each.name for each in wanted)
    assert [done for done, _, _ in seen] == list(range(12))
    assert {total for _, total, _ in seen} == {12}
    assert {name for _, _, name in seen} == {each.name for each in wanted}
    assert all(each.ready for each in wanted)


def test_a_wrong_kernel_is_an_error_with_its_line_wherever_it_is_compiled(kernels: Any, starts: list[Any]) -> None:
    target = features.target()
    with pool.started({n: FromCode(f"wrong[{n}]", "no code", target) for n in range(5)}) as others:
        answers = [answer for _, answer in others.outstanding()]
    assert len(answers) == 5
    for each in answers:
        assert isinstance(each, KernelCompileError)
        assert "expected top-level entity" in str(each)
    with pytest.raises(KernelCompileError, match=r"`store_word\(params, nothing\)`: there is no nothing"):
        prebuild([*(kernels.writes(n) for n in range(5)), *(kernels.is_wrong(n) for n in range(5))])
    assert not [process for process in starts if process.returncode is None]


@pytest.mark.skipif(sys.platform == "win32", reason="processes end themselves by a signal")
def test_what_a_process_leaves_when_it_ends_is_compiled_here(
    kernels: Any,
    starts: list[Any],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = tmp_path / "ends.py"
    program.write_text(
        "import os, pickle, signal, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
        "pickle.load(sys.stdin.buffer); os.kill(os.getpid(), signal.SIGKILL)"
    )
    monkeypatch.setattr(pool, "_WORKER", program)
    wanted = [kernels.writes(n) for n in range(9)]
    with pool.started(jobs_of(wanted)) as others:
        answers = [answer for _, answer in others.outstanding()]
    assert answers == ["the process that was to compile it ended with -9 (EOFError)"] * 2
    with caplog.at_level(logging.WARNING, "ggplug"):
        assert prebuild(wanted) == 9
    assert all(each.ready for each in wanted)
    assert all("is compiled in this process" in record.message for record in caplog.records)
    assert not [process for process in starts if process.returncode is None]


def test_a_system_that_starts_no_process_has_all_compiled_here(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any, **options: Any) -> Any:
        raise OSError("no more processes")

    monkeypatch.setattr(pool.subprocess, "Popen", refused)
    assert prebuild([kernels.writes(n) for n in range(9)]) == 9


def test_an_interrupt_ends_the_processes(kernels: Any, starts: list[Any]) -> None:
    def interrupted(done: int, total: int, name: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prebuild([kernels.writes(n) for n in range(9)], interrupted)
    assert len(starts) == 2
    assert not [process for process in starts if process.returncode is None]
    assert prebuild([kernels.writes(n) for n in range(9)]) == 9


def test_a_kernel_that_a_function_defines_has_no_place(kernels: Any) -> None:
    @kernel
    def inside(n: int) -> Any: ...

    assert inside(1).reference is None
    assert inside(1).source_key() == kernels.writes(1).source_key() == ""


def test_another_module_of_the_same_name_is_not_taken_for_it() -> None:
    reference = pack_panels("f32", "q4_0").reference
    assert reference is not None
    assert reference == Reference(pack_panels.function.__module__, weights.__file__, "pack_panels", reference.arguments)
    with pytest.raises(LookupError, match="is another file here"):
        found(reference._replace(file="/elsewhere.py"))
    with pytest.raises(LookupError, match="cannot be imported"):
        found(reference._replace(module="ggplug_cpu.nothing"))


_PROGRAM = """
    import sys
    print("started")
    sys.path.insert(0, {folder!r})
    import kernels_of_a_test
    from ggplug_cpu.compiler import kernel, prebuild
    from ggplug_cpu.context import store_word

    @kernel
    def of_the_program(n):
        def body(ctx, params):
            store_word(params, n)
        return body

    print(prebuild([*map(kernels_of_a_test.writes, range(9)), *map(of_the_program, range(3))]))
"""


def test_the_program_is_not_run_again_and_needs_no_guard(kernels: ModuleType, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(_PROGRAM).format(folder=str(tmp_path)))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["started", "imported", "12"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_compiles_as_well(kernels: Any) -> None:
    assert prebuild([kernels.writes(n) for n in range(5)]) == 5
    child = os.fork()
    if child == 0:
        os._exit(prebuild([kernels.writes(n) for n in range(5, 14)]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
