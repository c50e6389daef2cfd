"""Cases in a worker: a crash or a hang fails one case and names the line, and the others go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from ggplug.ops import Relu
from ggplug_testing import cases_of
from ggplug_testing.contracts import plans
from ggplug_testing.reporting.causes import of_dump
from ggplug_testing.reporting.report import Finding
from ggplug_testing.reporting.watching import Watch
from ggplug_testing.running.isolation import Channel, Worker

pytest_plugins = ["pytester"]

CASES = ["first", "dies", "second", "exits", "third"]


def computes(case: str) -> None:
    if case == "dies":
        os.abort()  # the crash
    if case == "hangs":
        threading.Event().wait()  # the hang
    if case == "exits":
        os._exit(3)


def serve(channel: Channel, crashing_before: bool = False) -> None:
    def run(unit: str, watch: Watch) -> tuple[str, list[Finding]]:
        findings = []
        if crashing_before:
            os.abort()
        for case in CASES if unit == "op" else [unit]:
            if watch.wants(unit, case):
                watch.begins(unit, case)
                computes(case)
                findings.append(Finding(unit, case, "passed", str(os.getpid())))
                watch.ended(findings[-1])
        return "toy", [*findings, Finding(unit, "at the end", "passed")]

    channel.serve(run)


def line_of(text: str) -> int:
    with open(__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


def test_what_goes_on_when_the_time_is_over_is_ended_and_nothing_follows() -> None:
    with Worker(serve) as worker:
        assert [each.case for each in worker.run("op", "op", "second", done=["first"])] == ["second", "at the end"]
        (found,) = worker.run("hangs", "op", until=time.monotonic() + 0.5)
        assert (found.case, found.verdict, found.reason) == ("hangs", "hung", "the time was over")


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no such signals")
def test_a_crash_fails_its_case_alone() -> None:
    with Worker(serve) as worker:
        findings = worker.run("op", "op")
        assert worker.device == "toy"
        assert [each.case for each in findings] == [*CASES, "at the end"]
        found = {each.case: each for each in findings}
        assert [found[case].verdict for case in ("first", "second", "third")] == ["passed"] * 3
        assert os.getpid() not in {int(found[case].reason) for case in ("first", "second", "third")}
        assert (found["dies"].verdict, found["dies"].reason) == ("crashed", "the process ended by SIGABRT")
        assert f"test_testing_isolation.py:{line_of('# the ' + 'crash')} in computes: os.abort()" in found["dies"].where
        assert (found["exits"].verdict, found["exits"].reason) == ("crashed", "the process ended with exit code 3")
        (alone,) = (each for each in worker.run("op", "op", "second") if each.case == "second")
        assert alone.verdict == "passed"


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no such signals")
def test_a_hang_fails_its_case_and_names_the_line() -> None:
    with Worker(serve, 1.0) as worker:
        hung, *_ = worker.run("hangs", "op")
        assert (hung.case, hung.verdict, hung.reason) == ("hangs", "hung", "nothing happened for 1 seconds")
        assert f"test_testing_isolation.py:{line_of('# the ' + 'hang')} in computes" in hung.where


def test_where_a_process_was_is_the_line_of_an_author_or_that_of_the_clause() -> None:
    def frames(*files: str) -> str:
        return "Thread 0x1 (most recent call first):\n" + "".join(f'  File "{each}", line 7 in f\n' for each in files)

    clause = str(Path(plans.__file__))
    waiting = frames(threading.__file__, clause, __file__, "<string>")
    assert of_dump(waiting).startswith(f"{os.path.relpath(clause)}:7 in f") or of_dump(waiting).startswith(clause)
    assert of_dump(waiting + frames(threading.__file__, "/toy/queue.py")) == "/toy/queue.py:7 in f"
    assert of_dump(frames("/toy/kernels.py", clause)) == "/toy/kernels.py:7 in f"
    current = frames("/toy/submits.py").replace("Thread", "Current thread")
    assert of_dump(frames("/toy/waits.py") + current) == "/toy/submits.py:7 in f"


def test_a_worker_that_dies_before_any_case_fails_the_unit() -> None:
    with Worker(partial(serve, crashing_before=True)) as worker:
        (finding,) = worker.run("op", "op")
        assert (finding.subject, finding.case, finding.verdict) == ("op", "", "crashed")


TOY = """
import os
import threading
from typing import ClassVar

from ggplug.backend import Device
from ggplug.ops import Neg, Relu
from ggplug_testing import ReferenceDevice
from ggplug_testing.devices.reference import interpret

def relu(op, dst, x):
    if x.tensor.ne[0] == 17 and dst.tensor.is_contiguous():
        os.abort()
    interpret(op, dst, x)

def neg(op, dst, x):
    if x.tensor.ne[0] == 17 and dst.tensor.is_contiguous():
        threading.Event().wait()
    interpret(op, dst, x)

class Toy(ReferenceDevice):
    kernels: ClassVar = {Relu: relu, Neg: neg}
    match = Device.match
"""

TESTS = """
import os

import pytest
from ggplug_testing import BackendSuite
from toy import Toy

class TestToy(BackendSuite):
    @pytest.fixture
    def device(self):
        return Toy("toy")

    def test_of_its_own(self, device):
        assert device.name == "toy"
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no such signals")
def test_tests_of_the_suite_run_in_a_worker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(toy=TOY, test_toy=TESTS)
    chosen = "test_op and relu and not leaky or own or memset"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", chosen, "--ggplug-isolate"],
        capture_output=True,
        text=True,
        cwd=pytester.path,
        check=False,
    )
    assert "1 failed, 3 passed" in done.stdout.splitlines()[-1], done.stdout + done.stderr
    (row,) = (line for line in done.stdout.splitlines() if line.startswith("relu  "))
    assert sum(map(int, row.split()[1:4])) >= len(cases_of(Relu))
    assert " 1. crashed: the process ended by SIGABRT" in done.stdout
    assert "    toy.py:12 in relu: os.abort()" in done.stdout
    assert "in relu: f32[17]" in done.stdout
    assert "--ggplug-case 'f32[17]'" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no such signals")
def test_tests_that_are_shared_out_to_several_processes_have_a_worker_each(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(toy=TOY, test_toy=TESTS)
    chosen = "test_op and (relu or neg) and not leaky or of_its_own"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "2",
            "-p",
            "no:cacheprovider",
            "-k",
            chosen,
            "--ggplug-isolate",
            "--ggplug-timeout",
            "10",
            "--ggplug-case",
            "f32[17]",
            "--ggplug-json",
            "found.json",
        ],
        capture_output=True,
        text=True,
        cwd=pytester.path,
        check=False,
        timeout=300,
    )
    assert "2 failed, 1 passed" in done.stdout.splitlines()[-1], done.stdout + done.stderr
    (found,) = json.loads((pytester.path / "found.json").read_text(encoding="utf-8"))
    assert found["device"] == "toy"
    wrong = {each["subject"]: each for each in found["findings"]}
    assert [(op, wrong[op]["case"], wrong[op]["verdict"]) for op in sorted(wrong)] == [
        ("neg", "f32[17]", "hung"),
        ("relu", "f32[17]", "crashed"),
    ]
    assert "toy.py:12 in relu: os.abort()" in wrong["relu"]["where"]
    assert "toy.py:17 in neg: threading.Event().wait()" in wrong["neg"]["where"]
