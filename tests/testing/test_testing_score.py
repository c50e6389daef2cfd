"""The suite's own score: faults are seeded as they are recorded, and the suite finds them."""

from __future__ import annotations

import ast
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

from ggplug_testing import check, conformance
from ggplug_testing.contracts.layouts import plans_know_the_layout_of_weights
from ggplug_testing.reporting.report import Finding, Report
from ggplug_testing.reporting.watching import EVERYTHING
from tests.mutation import FAULTS, lists, score
from tests.mutation.fault import PARTS, Fault
from tests.mutation.operators import OPERATORS, Mechanical, changed, changes, functions
from tests.mutation.seeding import SUBJECT, Edit, SeedError, seeded, target
from tests.mutation.subject import SubjectDevice
from tests.mutation.trial import CONFORMING, every_fault, ordered, trial

EVERY = {fault.name: fault for fault in every_fault()}


def test_the_device_that_faults_are_seeded_into_conforms_to_the_contract() -> None:
    report = check(SubjectDevice(), ops=["add", "soft_max", "rope", "get_rows", "set_rows", "concat"], groups=False)
    assert report.ok, report.bad[:3]
    assert report.passed().keys() >= {"contract", "graph", "add", "soft_max", "rope"}


def test_plans_of_queued_streams_are_bound_to_the_layout_that_they_were_made_for() -> None:
    plans_know_the_layout_of_weights(SubjectDevice())


def test_there_are_enough_faults_and_no_two_have_one_name() -> None:
    faults = every_fault()
    assert len(EVERY) == len(faults)
    assert len(faults) >= 150
    assert sum(isinstance(seed, Mechanical) for fault in faults for seed in fault.seeds) >= 100
    assert {fault.part for fault in faults} == set(PARTS)


def test_what_is_recorded_is_what_the_operators_find_in_the_source() -> None:
    recorded = [each.seed for each in lists.recorded()]
    assert set(recorded) == set(lists.found()), "python -m tests.mutation.score --record"
    score.check_seeds()


def test_every_fault_by_hand_fits_the_source() -> None:
    for fault in FAULTS:
        for seed in fault.seeds:
            with seeded(seed):
                pass


def test_a_record_of_another_source_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *rest = lists.recorded()
    other = first._replace(seed=first.seed._replace(before="something else"))
    monkeypatch.setattr(lists, "recorded", lambda: [other, *rest])
    with pytest.raises(SeedError, match=r"is not recorded.*--record"):
        score.check_seeds()
    assert score.main(["--list"]) == 2
    assert "--record" in capsys.readouterr().err


def test_a_change_that_does_not_fit_seeds_nothing_and_says_so() -> None:
    module = f"{SUBJECT}.formulas"
    for seed in (
        Edit(module, "add", "a - b", "a"),
        Edit(module, "nothing", "a", "b"),
        Mechanical(module, "add", "arithmetic", 7, "", ""),
        Mechanical(module, "nothing", "arithmetic", 0, "", ""),
    ):
        with pytest.raises(SeedError), seeded(seed):
            pass


def test_a_function_is_what_it_was_when_the_block_ends() -> None:
    function = target(f"{SUBJECT}.formulas", "sub")
    code = function.__code__
    with pytest.raises(TypeError), seeded(Edit(f"{SUBJECT}.formulas", "sub", "a - b", "b - a if b else a + None")):
        function(None, 3, 0)
    with seeded(Edit(f"{SUBJECT}.formulas", "sub", "a - b", "b - a")):
        assert function(None, 3, 1) == -2
    assert function.__code__ is code
    assert function(None, 3, 1) == 2


SAMPLE = """
def f(x, n):
    if x is None:
        raise ValueError(f"{n + 1}")
    total = 0
    for k in range(0, n, 8):
        total += x[k : k + 8].sum(-1)
    with lock:
        note(-x, n)
    return total / n if n > 2 and x else np.float32(total)
"""


def test_each_operator_changes_one_place_and_leaves_messages_alone() -> None:
    tree = functions(ast.parse(SAMPLE))["f"]
    found = {(each.operator, each.number): f"{each.before} -> {each.after}" for each in changes("", "f", tree)}
    assert found["bound", 0] == "range(0, n, 8) -> range(0, n - 1, 8)"
    assert found["bound", 1] == "k:k + 8 -> k:k + 8 - 1"
    assert found["axis", 0] == "-1 -> -2"
    assert found["sign", 0] == "-x -> x"
    assert found["type", 0] == "np.float32 -> np.float16"
    assert found["check left out", 0].startswith("if x is None")
    assert found["claim left out", 0] == "with lock: ... -> note(-x, n)"
    assert found["close comparison", 0] == "n > 2 -> n >= 2"
    assert found["and, or", 0] == "n > 2 and x -> n > 2 or x"
    assert found["swapped arguments", 1] == "note(-x, n) -> note(n, -x)"
    assert found["statement left out", 0].endswith("-> nothing")
    assert found["swapped operands", 0] == "total / n -> n / total"
    for operator, number in found:
        assert ast.dump(changed(tree, operator, number)) != ast.dump(tree)
    assert not {name for name, _ in found} - set(OPERATORS)
    assert all("n + 1" not in text for text in found.values())


SOME = (
    "writes behind the end",
    "rows are packed",
    "errors are swallowed",
    "binds once",
    "refuses views",
    "computes groups too early",
    "shows bytes of packed tensors",
    "rounds halves to even",
    "takes the mask of the first batch for all",
    "has a thread for each job",
    "looks at ids once",
    "looks at the first source only",
    "fills panels up in front",
    "copies to the beginning",
    "keeps the angles of the first positions",
    "keeps unpacked panels from before",
    "keeps an event's first mark",
    "forgets an event once it was waited for",
    "waits for events on the host",
    "copies before the other device is done",
    "raises errors where work is given",
    "raises errors of other streams",
    "sets panels under pending work",
    "reads parts of panels from the beginning",
    "groups products of panels",
    "says nothing of why",
    "declines by what it has",
    "reads only its plain memory",
    "copies forwards where bytes overlap",
    "gives kernels copies of weights",
    "drops jobs after a failure",
    "waits for streams that have an owner",
    "stores a megabyte and no more",
    "picks rows by 16 bits of their ids",
    "writes rows by 16 bits of their ids",
    "keeps unpacked weights of a place by their beginning",
    "declines what was given a place",
    "declines by the name of a tensor",
    "declines what reads results",
    "adds up products in scratch of all streams",
    "copies by way of staging memory of all streams",
    "widens sources into scratch of all streams",
    "says that it is synchronous, and compute is not",
    "says that it is synchronous, and set_async is not",
    "says nothing of its thread",
    "takes the same places in another order for the same",
    "compares offsets, and which buffers there are",
    "names kernels from the last to the first",
    "leaves the last kernel's name out",
    "leaves out the time of the last node",
    "copies forwards where the bytes of a stream's copy overlap",
    "rounds the base of frequencies",
    "adds 65535 rows and no more",
)


@pytest.mark.parametrize("name", SOME)
def test_a_fault_is_found_by_what_concerns_it(name: str) -> None:
    findings = trial(EVERY[name], EVERYTHING, quick=name != "says nothing of why")
    assert [finding.bad for finding in findings] == [True]


def test_mechanical_faults_are_found_by_the_op_whose_kernel_they_are_in() -> None:
    rope = [fault for fault in EVERY.values() if ".kernels.rope, " in fault.name and not fault.missed]
    for fault in rope[:4]:
        (finding,) = trial(fault, EVERYTHING, quick=True)
        assert finding.subject in ("rope", "groups")


def test_the_whole_suite_follows_what_concerns_a_fault() -> None:
    fault = EVERY["ignores n_offs"]
    quick, whole = ordered(fault, quick=True), ordered(fault)
    assert whole[: len(quick)] == quick
    assert quick[0].subject == "rope"
    assert len(set(whole)) == len(whole) == len(ordered(CONFORMING))


def outcome(caught: bool, missed: str = "") -> score.Outcome:
    fault = Fault("f", SubjectDevice, (), (), missed)
    return score.Outcome(fault, Finding("add", "rows", "failed", "off") if caught else None, 0.1)


def test_the_score_passes_if_nearly_all_is_caught_and_the_rest_has_a_reason() -> None:
    caught = [outcome(True)] * 98
    assert score.passes([*caught, outcome(False, "why"), outcome(False, "why")])
    assert not score.passes([*caught, outcome(False, "why"), outcome(False)])
    assert not score.passes([*caught[1:], *[outcome(False, "why")] * 3])
    assert score.missed([outcome(False)]) == ["not caught: f\n    NO REASON IS RECORDED"]
    assert score.summary([*caught, outcome(False, "why")])[-1].split() == ["total", "99", "98", "99.0%", "0.1", "s"]


def test_the_command_shows_by_which_case_each_fault_was_caught(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "score.json"
    chosen = ["--only", "formulas.step, close comparison", "--quick", "--jobs", "1", "--verbose", "--json", str(file)]
    assert score.main(chosen) == 0
    printed = capsys.readouterr().out
    (found,) = json.loads(file.read_text(encoding="utf-8"))
    assert found["caught"]
    assert found["by"].startswith("step: ")
    assert f"failed: {found['by']}" in printed
    assert score.main(["--only", "nonsense"]) == 2


def test_runs_that_come_out_differently_are_reported() -> None:
    first = Report("d", [Finding("add", "rows", "passed"), Finding("mul", "rows", "passed")])
    second = Report("d", [Finding("add", "rows, in the place of a", "failed"), Finding("mul", "rows", "passed")])
    assert conformance.differences([first, first]) == []
    assert conformance.differences([first, second, first]) == ["add: rows: 2 times passed, 1 times failed"]
    assert conformance.differences([first, Report("d")]) == ["add: rows: 1 times passed", "mul: rows: 1 times passed"]


def test_the_suite_can_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    clause = ["--clause", "bytes come back as they were stored", "--op", "add"]
    assert conformance.main(["fake-late", *clause, "--repeat", "2"]) == 0
    assert "0 cases came out differently in 2 runs" in capsys.readouterr().out
    for wrong in ("0", "-3", "x"):
        with pytest.raises(SystemExit):
            conformance.main(["fake-late", *clause, f"--repeat={wrong}"])
        assert f"{wrong} is no whole number above 0" in capsys.readouterr().err


def test_the_list_has_part_and_name_of_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert score.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(EVERY) + 1
    assert any(line.startswith("streams") and "has a thread for each job" in line for line in lines)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_a_score_that_is_stopped_reports_what_was_found_until_then(tmp_path: Path) -> None:
    """Nothing is left running, and the faults that had not begun are not begun."""
    chosen = ["--only", "waits for events on the host", "--only", "*an event*", "--jobs", "1", "--quick", "--verbose"]
    command = [sys.executable, "-u", "-m", "tests.mutation.score", *chosen, "--json", str(tmp_path / "found.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert running.stdout is not None
        lines = [running.stdout.readline()]  # of the device without a fault
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=120)
    lines += out.splitlines()
    assert running.returncode == 130, (lines, err)
    assert re.fullmatch(r"STOPPED by SIGINT; \d+ of \d+ faults were not put to the suite", lines[-1]), lines
    assert "Traceback" not in err
    assert (tmp_path / "found.json").is_file()
