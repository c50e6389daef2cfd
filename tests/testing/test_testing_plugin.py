"""The suite as a third party uses it: a subclass in a test file, the plugin's option, the table at the end."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

# Imported here, so that the sessions within these tests need not import them each time.
from ggplug.ops.base import OPS
from ggplug_testing import cases_of, suite  # noqa: F401
from ggplug_testing.reporting.rendering import table
from ggplug_testing.reporting.report import Finding, Report
from tests import mutation  # noqa: F401

pytest_plugins = ["pytester"]

QUIET = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")


def test_the_plugin_imports_nothing_of_its_own() -> None:
    program = (
        "import sys, json, ggplug; before = set(sys.modules); import ggplug_testing.plugin; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["ggplug_testing", "ggplug_testing.plugin"]


def test_a_conforming_device_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from ggplug_testing import BackendSuite, ReferenceDevice

        class TestMine(BackendSuite):
            device = ReferenceDevice("mine")
        """
    )
    result = pytester.runpytest("-k", "test_op and (relu or sum_rows) or host_buffer or memset", "-v", *QUIET)
    relu = f"relu *{len(cases_of(OPS['relu']))}*"
    result.stdout.fnmatch_lines(["*ggplug conformance of mine*", relu, "sum_rows *", "total *", "PASSED: mine: *"])
    assert result.ret == 0


def test_a_fixture_gives_the_device(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from ggplug_testing import BackendSuite, FakeDevice

        class TestMine(BackendSuite):
            @pytest.fixture
            def device(self):
                return FakeDevice("gpu7", execution="late")
        """
    )
    result = pytester.runpytest("-k", "test_op and view", *QUIET)
    result.stdout.fnmatch_lines(["*ggplug conformance of gpu7*"])
    result.assert_outcomes(passed=1)


def test_the_option_names_the_device(pytester: pytest.Pytester) -> None:
    arguments = ["--pyargs", "ggplug_testing.suite", "-k", "bytes_come_back", *QUIET]
    pytester.runpytest(*arguments).assert_outcomes(skipped=1)
    pytester.runpytest(*arguments, "--ggplug-device", "reference").assert_outcomes(passed=1)
    pytester.runpytest(*arguments, "--ggplug-device", "nonsense").assert_outcomes(errors=1)


def test_why_there_is_no_device_is_said_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from ggplug_testing import BackendSuite

        class TestNobody(BackendSuite):
            device_name = "Nobody0"
        """
    )
    result = pytester.runpytest("-k", "test_op and (relu or sum_rows or norm)", "-rs", *QUIET)
    assert result.ret == 1
    outcomes = result.parseoutcomes()
    assert outcomes["errors"] == 1
    assert outcomes["skipped"] > 2
    assert len(re.findall("^there is no device 'Nobody0'; ", str(result.stdout), re.M)) == 1
    result.stdout.fnmatch_lines(["SKIPPED *there is no device 'Nobody0'; the first test that needed it says why"])


def test_faults_fail_and_are_listed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from ggplug_testing import BackendSuite
        from tests.mutation import FAULTS

        class TestMine(BackendSuite):
            device = next(fault for fault in FAULTS if fault.name == "writes behind the end").make()
        """
    )
    result = pytester.runpytest("-k", "test_op and get_rows and not back", *QUIET)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "* of * cases went wrong, 2 causes:",
            " 1. failed: written out of bounds: 1 bytes behind the end of *",
            "    in get_rows: rows of 1 (f32, i32); and * more cases",
            "    again: pytest *::TestMine::test_op[[]get_rows[]]' --ggplug-case 'rows of 1'",
        ]
    )
    result.stdout.no_fnmatch_line("*= FAILURES =*")


def test_what_is_declined_is_skipped_with_its_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from ggplug_testing import BackendSuite, FakeDevice

        class TestMine(BackendSuite):
            device = FakeDevice(declines=lambda node: "not yet" if node.op.name == "relu" else "")
        """
    )
    result = pytester.runpytest("-k", "test_op and relu and not leaky", "-rs", *QUIET)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines([f"*{len(cases_of(OPS['relu']))} declined in relu: not yet"])


def test_a_report_survives_the_way_through_json() -> None:
    report = Report("d", [Finding("add", "a", "passed", nmse=1e-9)])
    report.add(Finding("add", "b", "passed", "", 1e-8, "f16, f32"))
    report.add(Finding("add", "c", "failed", "wrong", float("inf")), Finding("sub", "d", "declined", "no"))
    merged = Report.merge("d", [json.loads(report.to_json())])
    assert merged.counts() == report.counts()
    assert [str(finding) for finding in merged.bad] == ["add: c: failed: wrong"]
    assert table(merged)[1].split() == ["add", "2", "1", "1.0e-08", "b", "(f16,", "f32)"]
    assert report.as_dict()["findings"][2]["nmse"] is None
