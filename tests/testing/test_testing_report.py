"""What the suite reports about a failure: the author's line, the cases with the same cause, a command for one."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from signal import SIGINT, SIGTERM, getsignal, raise_signal
from typing import Any

import numpy as np
import pytest

from ggplug.backend import Device, Operand
from ggplug.cli.app import run
from ggplug.errors import ComputeError, ParameterError
from ggplug.host import HostBuffer, HostBufferType
from ggplug.ops import OPS, Add, Mul, Op, Relu
from ggplug.system.signals import raising
from ggplug_testing import Case, cases_of, check
from ggplug_testing.cases.case import labelled
from ggplug_testing.conformance import main
from ggplug_testing.contracts import CLAUSES, run_clause
from ggplug_testing.contracts.bases import OF_CLAUSES, bases_of
from ggplug_testing.devices.reference import ReferenceDevice, interpret
from ggplug_testing.reporting.rendering import markdown, text
from ggplug_testing.reporting.report import GROUND, Finding, Report
from ggplug_testing.reporting.watching import EVERYTHING, Following
from ggplug_testing.running.runner import run_op
from ggplug_testing.running.stopping import Stopped

pytest_plugins = ["pytester"]

QUIET = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-q")

HERE = "test_testing_report.py"


class WithKernels(ReferenceDevice):
    """Has a dictionary of kernels, as the smallest backends do."""

    def __init__(self, kernels: dict[type[Op], Any]) -> None:
        super().__init__("toy")
        self.kernels = kernels  # type: ignore[misc]

    match = Device.match


def shape_of(operand: Operand) -> tuple[int, ...]:
    """A helper with a typo."""
    return operand.tensor.shapes  # type: ignore[attr-defined,no-any-return] # the typo


def misspelt(op: Op, dst: Operand, *src: Operand | None) -> None:
    shape_of(dst)


def doubled(op: Op, dst: Operand, *src: Operand | None) -> None:
    interpret(op, dst, *src)
    dst.array()[...] *= 2


def of_ops(kernels: dict[type[Op], Any]) -> Report:
    """The findings about the ops of a device with these kernels alone."""
    return check(WithKernels(kernels), ops=kernels, clauses=[], graphs=False, groups=False)


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


TYPO = line_of("# the " + "typo")


def test_a_kernel_that_raises_is_reported_with_the_line_that_did() -> None:
    first, *_ = run_op(WithKernels({Add: misspelt}), Add)
    assert first.verdict == "raised"
    assert first.reason == "AttributeError: 'Tensor' object has no attribute 'shapes'"
    assert f"{HERE}:{TYPO} in shape_of: return operand.tensor.shapes" in first.where
    assert any(f"{HERE}:{line_of('shape_of(dst)')} in misspelt" in line for line in first.trace)


@pytest.mark.parametrize("name", ["support depends on the node alone", "a stream keeps its order"])
def test_a_clause_whose_computation_raises_says_so(name: str) -> None:
    clause = next(each for each in CLAUSES if each.name == name)
    finding = run_clause(WithKernels({Add: misspelt}), clause)
    assert finding.verdict == "raised"
    assert finding.reason.startswith("AttributeError: 'Tensor' object has no attribute 'shapes'; the contract: ")
    assert f"{HERE}:{TYPO}" in finding.where


def test_what_one_line_breaks_is_one_cause() -> None:
    device = WithKernels({Add: misspelt, Mul: misspelt, Relu: misspelt})
    clauses = ["bytes come back as they were stored", "a stream keeps its order", "synchronous reads wait"]
    report = check(device, ops=["add", "mul", "relu"], clauses=clauses, graphs=False, groups=False)
    (cause,) = report.causes()
    assert cause.findings == sorted(report.bad, key=lambda each: each.subject == "contract")
    assert cause.consequences == []
    assert {"add", "mul", "relu", "contract"} <= {each.subject for each in cause.findings}
    assert cause.findings[0].subject == "add"
    shown = text(report)
    assert shown.count("AttributeError") == 1
    assert f"and {cause.cases - 1:,} more cases: " in shown


def test_wrong_values_name_the_kernel_and_are_one_cause_for_each_op() -> None:
    report = of_ops({Add: doubled, Mul: doubled})
    causes = report.causes()
    assert {each.subject for each in causes[0].findings} == {"add"}
    assert sum(each.cases for each in causes) == len(report.bad) > 100
    assert len(causes) < 20
    assert f"{HERE}:{line_of('def doubled')} in doubled" in causes[0].findings[0].where


def test_a_buffer_that_raises_is_a_failure_of_each_case_and_its_line_is_named() -> None:
    class Raising(HostBuffer):
        def _set(self, offset: int, data: Any) -> None:
            raise NotImplementedError  # of storing

    class Memory(HostBufferType):
        def _alloc(self, size: int) -> HostBuffer:
            memory = np.zeros(size, np.uint8)
            return Raising(self, memory)

    device = ReferenceDevice("toy")
    device._buffer_type = Memory("toy", device)
    report = check(device, ops=["add"], clauses=["bytes come back as they were stored"], graphs=False, groups=False)
    (cause,) = report.causes()
    assert len(cause.findings) == len(report.findings) > 50
    assert f"{HERE}:{line_of('# of ' + 'storing')} in _set" in cause.findings[0].where


def test_typed_errors_of_different_ops_are_different_causes() -> None:
    def fails(op: Op, dst: Operand, *src: Operand | None) -> None:
        raise ComputeError("too hot", tensor=dst.tensor, op=op)

    report = of_ops({Add: fails, Mul: fails})
    assert [{each.subject for each in cause.findings} for cause in report.causes()] == [{"add"}, {"mul"}]


class Forgetful(HostBuffer):
    """Memory that loses the last byte of what is stored."""

    def _set(self, offset: int, data: Any) -> None:
        super()._set(offset, data[:-1])


def losing() -> Device:
    class Memory(HostBufferType):
        def _alloc(self, size: int) -> HostBuffer:
            return Forgetful(self, np.zeros(size, np.uint8))

    device = ReferenceDevice("toy")
    device._buffer_type = Memory("toy", device)
    return device


def test_what_builds_on_a_clause_that_is_broken_is_reported_with_it() -> None:
    clauses = [each for each in CLAUSES if each.check.__module__.endswith((".buffers", ".streams"))]
    report = check(losing(), ops=["add", "relu"], clauses=clauses, graphs=False, groups=False)
    first, *others = report.causes()
    assert (first.findings[0].subject, first.findings[0].case) == ("contract", "bytes come back as they were stored")
    assert {"add", "relu", "contract"} <= {each.subject for each in first.consequences}
    assert len(first.consequences) > 100
    assert not others
    assert f"which others build on: {len(first.consequences)} more cases: " in text(report)


def test_wrong_values_of_an_op_are_the_cause_of_what_is_computed_with_it() -> None:
    names = ["a plan computes again with new values", "long graphs compute", "bytes come back as they were stored"]
    report = check(WithKernels({Add: doubled}), ops=["add"], clauses=names, groups=False)
    causes = report.causes()
    assert {each.subject for cause in causes for each in cause.findings} == {"add"}
    assert {each.case for cause in causes for each in cause.consequences} >= set(names[:2])


def test_failures_of_their_own_are_causes_of_their_own() -> None:
    findings = [
        Finding("contract", "simple", "failed", "a"),
        Finding("contract", "one", "failed", "b", builds_on=("simple",)),
        Finding("contract", "two", "failed", "c", builds_on=("one", "kept")),
        Finding("contract", "three", "failed", "d", builds_on=("kept",)),
        Finding("add", "x", "failed", "e"),
        Finding("mul", "x", "failed", "f", builds_on=("add", "mul")),
        Finding("sub", "x", "failed", "g"),
        Finding("sub", "y", "failed", "g", builds_on=("add",)),
        Finding("contract", "circle", "failed", "h", builds_on=("back",)),
        Finding("contract", "back", "failed", "i", builds_on=("circle",)),
    ]
    causes = Report("d", findings).causes()
    reasons = [[[each.reason for each in some] for some in cause[:2]] for cause in causes]
    assert sorted(map(tuple, reasons)) == [
        (["a"], ["b", "c"]),
        (["d"], []),
        (["e"], ["f"]),
        (["g", "g"], []),
        (["h"], []),
        (["i"], []),
    ]
    assert sum(cause.cases for cause in causes) == len(findings)


def test_clauses_build_on_clauses_and_none_on_itself() -> None:
    bases = {each.name: bases_of(each.name, each.check.__module__) for each in CLAUSES}
    assert {*GROUND, *OF_CLAUSES} <= bases.keys()
    for name, below in bases.items():
        every = set(below)
        while more := {base for each in every for base in bases[each]} - every:
            every |= more
        assert name not in every
    position = {each.name: number for number, each in enumerate(CLAUSES)}
    assert position["bytes come back as they were stored"] < position["asynchronous transfers arrive"]
    assert position["asynchronous transfers arrive"] < position["a held stream keeps its order"]


def test_every_cause_is_shown_alike_and_all_of_them_with_v() -> None:
    findings = [
        Finding(f"op{n}", "case", "failed", f"reason {chr(97 + n)}", where=f"x.py:{n} in f", command=f"pytest {n}")
        for n in range(12)
    ]
    lines = text(Report("d", findings)).splitlines()
    count = sum(line.startswith("    again: ") for line in lines)
    assert 3 < count < 12
    for n in range(count):
        at = lines.index(f"{n + 1:2}. failed: reason {chr(97 + n)}")
        assert lines[at + 1 : at + 4] == [f"    x.py:{n} in f", f"    in op{n}: case", f"    again: pytest {n}"]
    assert f"    ... and {12 - count} more causes, which -v shows: in op{count}" in "\n".join(lines)
    assert text(Report("d", findings), verbose=True).count("    again: ") == 12


@pytest.mark.parametrize("causes", [1, 3, 7, 60])
def test_a_report_of_failures_is_short_whatever_failed(causes: int) -> None:
    findings = [
        Finding(
            f"op{n}",
            f"case {m}",
            "raised",
            "a\nlong\nreason\nof\nlines" + "x" * 500,
            where="x.py:1 in f",
            trace=("from y.py:2 in g", "into z.py:3 in h"),
            cause=str(n),
            command="pytest x",
        )
        for n in range(causes)
        for m in range(n + 2)
    ]
    lines = text(Report("d", findings)).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) < 260
    assert f"op{causes - 1}: case 0" in "\n".join(lines)


def test_the_table_names_the_worst_case_and_its_types() -> None:
    report = Report(
        "d",
        [
            Finding("add", "even", "passed", "", 1e-12, "f32, f32"),
            Finding("add", "odd", "passed", "", 1e-9, "f16, f32"),
            Finding("sub", "even", "passed", "", 0.0, "f32, f32"),
        ],
    )
    header, add, sub, total, _, verdict = text(report, verbose=True).splitlines()
    assert header.split() == ["passed", "largest", "NMSE", "in"]
    assert add.split() == ["add", "2", "1.0e-09", "odd", "(f16,", "f32)"]
    assert sub.split() == ["sub", "1"]
    assert total.split() == ["total", "3"]
    assert verdict == "PASSED: d: 3 of 3 cases passed"


def test_a_green_run_is_one_screen_whatever_was_declined_and_ends_with_the_verdict() -> None:
    passed = [Finding(f"op{n}", f"case {m}", "passed", "", 1e-9 * n) for n in range(200) for m in range(40)]
    words = "abcdefghijklmnopqrstuvwxyz"
    declines = [Finding("op0", f"x {n}", "declined", f"{words[n % 26] * 300} of {n}", 0.0) for n in range(500)]
    unproven = [Finding("contract", "a clause", "not proven", "nothing holds it")]
    report = Report("d", [*declines, *passed, *unproven])
    lines = text(report).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 120
    assert lines[-1] == "PASSED: d: 8,000 of 8,501 cases passed; 1 not proven, 500 declined"
    assert lines[0] == "    1 not proven in contract: nothing holds it"
    assert any("for 12 more reasons, which -v shows" in line for line in lines)
    everything = text(report, verbose=True).splitlines()
    assert len(everything) > 700
    assert everything[-1] == lines[-1]


def test_reasons_that_differ_in_tensors_types_and_numbers_are_shown_together() -> None:
    reasons = [
        "weights of q4_0 with f32, q8_0, not f16",
        "weights of q5_1 with f32, not bf16",
        "<Tensor f32 [40x6] = scale(s=0.3)> is read",
        "<Tensor f16 'w' [4]> is read",
        "rows of 7 are too long",
        "rows of 8 are too long",
    ]
    report = Report("d", [Finding("mul_mat", str(n), "declined", reason) for n, reason in enumerate(reasons)])
    assert text(report).splitlines() == [
        "    2 declined in mul_mat: weights of q4_0 with f32, q8_0, not f16 (1 reason like it)",
        "    2 declined in mul_mat: <scale> is read (1 reason like it)",
        "    2 declined in mul_mat: rows of 7 are too long (1 reason like it)",
        "",
        "NOTHING WAS PROVEN: d: 0 of 6 cases passed; 6 declined",
    ]


def test_ops_without_a_kernel_are_one_line() -> None:
    findings = [Finding(op, "case", "declined", f"toy has no kernel for {op}") for op in ("add", "sub", "mul", "mul")]
    first, *_ = text(Report("toy", findings)).splitlines()
    assert first == "    4 declined in add, sub and 1 other: toy has no kernel for add (2 reasons like it)"


def test_a_run_in_which_something_failed_ends_with_that() -> None:
    report = Report("d", [Finding("add", "a", "passed"), Finding("add", "b", "failed", "wrong")])
    assert text(report).splitlines()[-1] == "FAILED: d: 1 of 2 cases went wrong, 1 cause; 1 of 2 cases passed"


def stopped_by(signal: int, length: int) -> Any:
    """A kernel in which a signal arrives, in the first case with rows of this length."""

    def kernel(op: Op, dst: Operand, *src: Operand | None) -> None:
        if dst.tensor.ne[0] == length:
            raise_signal(signal)
        interpret(op, dst, *src)

    return kernel


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize("signal", [SIGINT, SIGTERM])
def test_a_run_that_is_stopped_reports_what_was_proven_and_where_it_was(
    signal: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cases = cases_of(Relu)
    kernels: dict[type[Op], Any] = {Relu: stopped_by(signal, 3), Add: interpret, Mul: doubled}
    monkeypatch.setattr("ggplug_testing.conformance.find_device", lambda name: WithKernels(kernels))
    before = getsignal(SIGTERM)
    json_file = tmp_path / "r.json"
    code = main(["toy", "--op", "relu", "--op", "add", "--op", "mul", "--json", str(json_file)])
    assert code == 128 + signal
    assert getsignal(SIGTERM) is before
    name = "SIGINT" if signal == SIGINT else "SIGTERM"
    *_, until, stopped = capsys.readouterr().out.splitlines()
    assert until == "until then: 2 of 2 cases passed; none went wrong"
    running, rest = "which had been running for 0.25 s", "2 of 3 parts had not begun, add the first of them"
    said = re.sub(r"\d+\.\d s", "0.25 s", stopped)
    assert said == f"STOPPED: toy: by {name} at relu: f32[3], {running}; {rest}"
    found = json.loads(json_file.read_text(encoding="utf-8"))
    assert found["stopped"] == stopped.removeprefix("STOPPED: toy: ")
    assert [each["case"] for each in found["findings"]] == [case.label for case in cases[:2]]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_a_signal_stops_an_inner_run_after_a_library_restored_what_was_before_the_outer_one() -> None:
    """LLVM does so when it sees a Ctrl-C, without Python's knowledge."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    with raising(Stopped):
        libc.signal(int(SIGTERM), 0)
        with pytest.raises(Stopped), raising(Stopped):
            raise_signal(SIGTERM)


def test_the_time_that_a_case_has_been_running_is_counted_from_its_beginning() -> None:
    now = iter([5.0, 1005.26, 2000.0, 2000.5])
    watch = Following(EVERYTHING, clock=lambda: next(now))
    assert watch.where == ""
    watch.begins("add", "rows of 3")
    assert watch.where == "add: rows of 3, which had been running for 1,000.3 s"
    watch.ended(Finding("add", "rows of 3", "passed"))
    assert watch.where == ""
    watch.begins("add", "rows of 4")
    assert watch.where == "add: rows of 4, which had been running for 0.5 s"


def test_what_failed_before_a_run_was_stopped_is_shown_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels: dict[type[Op], Any] = {Mul: doubled, Relu: stopped_by(SIGINT, 1)}
    monkeypatch.setattr("ggplug_testing.conformance.find_device", lambda name: WithKernels(kernels))
    assert main(["toy", "--op", "mul", "--op", "relu"]) == 130
    out = capsys.readouterr().out
    assert "again: ggplug conformance toy --op mul --case" in out
    *_, failed, stopped = out.splitlines()
    assert failed.startswith("FAILED: toy: ")
    assert stopped.startswith("STOPPED: toy: by SIGINT at relu: ")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
def test_progress_is_shown_on_a_terminal_and_nowhere_else() -> None:
    command = [sys.executable, "-m", "ggplug_testing.conformance", "reference", "--op", "relu"]
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment) as running:
            os.close(theirs)
            shown = b""
            try:
                while part := terminal.read(4096):
                    shown += part
            except OSError:  # the other end is closed
                pass
            assert running.stdout is not None
            assert b"PASSED" in running.stdout.read()
    assert b"relu: " in shown
    assert b"/1" in shown
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stderr == b""


def test_every_failure_ends_with_a_command_that_shows_it_alone(capsys: pytest.CaptureFixture[str]) -> None:
    report = check(WithKernels({Add: misspelt}), ops=["add"], clauses=["long graphs compute"], graphs=False)
    for finding in (report.bad[0], report.bad[-1]):
        program, *arguments = shlex.split(finding.command)
        assert (program, *arguments[:2]) == ("ggplug", "conformance", "toy")
        # The device is not installed; the same command for one that is computes this case alone, and it passes.
        assert main(["reference", *arguments[2:]]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "PASSED: reference: 1 of 1 case passed"


def test_a_command_names_a_variant_in_the_place_of_a_source() -> None:
    label = "f32[9], in the place of x"
    report = check(ReferenceDevice(), ops=["relu"], clauses=[], graphs=False, groups=False, case=label)
    assert [finding.case for finding in report.findings] == ["f32[9]"]


def test_ggplug_conformance_is_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conformance", "reference", "--op", "relu", "--case", "f32[9]"]) == 0
    assert capsys.readouterr().out == "PASSED: reference: 1 of 1 case passed\n"
    assert run(["conformance", "reference", "--op", "nonsense"]) == 2
    assert "`ggplug conformance --list` lists them" in capsys.readouterr().err
    assert run(["conformance", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: ggplug conformance ")
    assert run(["conformance"]) == 2
    assert "ggplug conformance: error: name a device" in capsys.readouterr().err
    assert run(["--help"]) == 0
    assert re.search(r"^  conformance +Check a device with the conformance suite\.$", capsys.readouterr().out, re.M)


def test_two_reports_do_not_go_to_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "report")
    assert main(["reference", "--op", "argmax", "--json", path, "--markdown", path]) == 2
    assert "which would be overwritten" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_command_writes_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    json_file, page = tmp_path / "r.json", tmp_path / "r.md"
    assert main(["reference", "--op", "argmax", "--json", str(json_file), "--markdown", str(page)]) == 0
    found = json.loads(json_file.read_text(encoding="utf-8"))
    assert found["device"] == "reference"
    assert found["counts"]["passed"] == len(found["findings"]) > 10
    assert "| argmax |" in page.read_text(encoding="utf-8")
    assert main(["reference", "--op", "nonsense"]) == 2
    assert "there is no op 'nonsense'" in capsys.readouterr().err


def test_the_command_lists_ops_and_clauses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = {line.strip() for line in capsys.readouterr().out.splitlines()}
    assert {*OPS, *(clause.name for clause in CLAUSES)} <= lines
    with pytest.raises(SystemExit):
        main([])
    assert "name a device" in capsys.readouterr().err
    assert main(["reference", "--clause", "nonsense"]) == 2
    assert "--list` lists them" in capsys.readouterr().err


def test_the_page_has_every_cause_and_subject() -> None:
    findings = [Finding(f"op{n}", "case", "failed", f"reason {'abcdefghij'[n]}", command="pytest x") for n in range(10)]
    page = markdown(Report("d", [*findings, Finding("sub", "x", "declined", "a | b")]))
    assert page.startswith("# Conformance of d\n\n10 failed, 1 declined.\n")
    for n in range(10):
        assert f"1. failed: reason {'abcdefghij'[n]}\n" in page
        assert f"| op{n} | 1 |" in page
    assert "- 1 declined: a \\| b" in page


def test_two_cases_of_one_name_are_refused() -> None:
    case = Case("add", "a", lambda leafs: [])
    with pytest.raises(ParameterError, match="two cases of add are called 'a'"):
        labelled([case, Case("mul", "a", lambda leafs: []), case])


TOY = """
from typing import ClassVar

from ggplug.backend import Device
from ggplug.ops import Add, Mul, Relu, Sub
from ggplug_testing import ReferenceDevice
from ggplug_testing.devices.reference import interpret

def compute(op, dst, *src):
    prepared = prepare(dst)
    interpret(op, dst, *src)

def prepare(operand):
    return operand.aray()

class Toy(ReferenceDevice):
    kernels: ClassVar = {Add: compute, Mul: compute, Relu: compute, Sub: compute}
    match = Device.match
"""

TESTS = """
from ggplug_testing import BackendSuite
from toy import Toy

class TestToy(BackendSuite):
    device = Toy("toy")
"""


@pytest.mark.parametrize("distributed", [False, True])
def test_a_typo_in_a_helper_is_a_report_of_forty_lines(pytester: pytest.Pytester, distributed: bool) -> None:
    pytester.makepyfile(toy=TOY, test_toy=TESTS)
    pytester.syspathinsert()
    how = ["-n1"] if distributed else []
    chosen = "test_contract and (stream or plan) or test_op and (add or relu)"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *QUIET, *how, "-k", chosen, "--ggplug-json", "r.json"],
        capture_output=True,
        text=True,
        cwd=pytester.path,
        check=False,
    )
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) <= 40, done.stdout
    first = next(line for line in done.stdout.splitlines() if line.startswith(" 1. "))
    assert first == " 1. raised: AttributeError: 'Operand' object has no attribute 'aray'"
    assert "    toy.py:13 in prepare: return operand.aray()" in done.stdout
    assert "    from toy.py:9 in compute" in done.stdout
    found = json.loads((pytester.path / "r.json").read_text(encoding="utf-8"))
    assert found[0]["counts"]["raised"] > 100
    check_again(done.stdout, pytester.path)


def check_again(output: str, folder: Path) -> None:
    """Checks that the command in a report runs one case again."""
    again = next(line for line in output.splitlines() if line.startswith("    again: "))
    command = shlex.split(again.removeprefix("    again: "))
    alone = subprocess.run([sys.executable, "-m", *command, *QUIET], capture_output=True, text=True, cwd=folder)
    assert alone.returncode == 1
    assert "1 of 1 cases went wrong" in alone.stdout


def test_the_command_that_runs_a_case_again_is_for_the_folder_where_pytest_was_started(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini("[pytest]")  # pytest names tests from here on
    folder = pytester.mkdir("below")
    for file in pytester.makepyfile(toy=TOY), pytester.makepyfile(test_toy=TESTS):
        file.rename(folder / file.name)
    pytester.syspathinsert(folder)
    how = ("-m", "pytest", *QUIET, "-k", "test_op and add")
    check_again(subprocess.run([sys.executable, *how], capture_output=True, text=True, cwd=folder).stdout, folder)


STOPPING = TOY.replace("return operand.aray()", "os.kill(WHOM(), signal.SIGTERM)\n    signal.pause()").replace(
    "from typing", "import os\nimport signal\nimport time\nfrom typing"
)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize("isolated", [False, True])
def test_a_session_that_is_stopped_reports_what_was_proven(pytester: pytest.Pytester, isolated: bool) -> None:
    toy = STOPPING.replace("WHOM()", "os.getppid()" if isolated else "os.getpid()")
    if isolated:  # The signal has to arrive after the other process has read that the case began.
        toy = toy.replace("os.kill(", "time.sleep(2)\n    os.kill(")
    pytester.makepyfile(toy=toy, test_toy=TESTS)
    pytester.syspathinsert()
    chosen = "bytes_come_back or test_op and (argmax or add)"
    how = ["--ggplug-isolate"] if isolated else []
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *QUIET, *how, "-k", chosen, "--ggplug-json", "r.json"],
        capture_output=True,
        text=True,
        cwd=pytester.path,
        check=False,
        timeout=300,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("STOPPED: toy: by SIGTERM at add: "))
    left = "; 3 of 5 tests had not begun, test_op[argmax] the first of them"
    assert re.search(rf" at add: .*, which had been running for \d+\.\d s{re.escape(left)}$", lines[at])
    assert lines[at - 1] == "until then: 1 of 1 case passed; none went wrong"
    (found,) = json.loads((pytester.path / "r.json").read_text(encoding="utf-8"))
    assert found["stopped"].startswith("by SIGTERM at add: ")
    assert found["counts"]["passed"] == 1


def test_a_case_that_there_is_not_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reference", "--op", "neg", "--case", "no such label"]) == 2
    assert "NOTHING WAS PROVEN: reference: 0 of 0 cases passed" in capsys.readouterr().out


def test_a_clause_that_is_declined_is_named_where_everything_is_shown() -> None:
    findings = [
        Finding("contract", "freeing waits", "declined", "no events"),
        Finding("add", "x", "declined", "no f16"),
    ]
    shown = text(Report("toy", findings), verbose=True)
    assert "declined: freeing waits: no events" in shown
    assert "declined: no f16" in shown
