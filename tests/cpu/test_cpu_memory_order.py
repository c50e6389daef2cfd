"""The thread team hands over work and results in an order that AArch64's memory keeps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from litmus import herd, scenarios, translate
from litmus.assembly import PROCESSORS, aarch64_assembly

from ggplug_cpu import walker

CASES = [
    pytest.param(name, processor, id=f"{name}, {processor}") for name in scenarios.SCENARIOS for processor in PROCESSORS
]


def programs(name: str, processor: str) -> list[str]:
    with scenarios.without_waiting():
        return [aarch64_assembly(each, processor) for each in scenarios.SCENARIOS[name].programs()]


@pytest.mark.parametrize(("name", "processor"), CASES)
def test_the_functions_become_instructions_that_order_memory(name: str, processor: str) -> None:
    code = "\n".join(programs(name, processor))
    assert re.search(r"ldaddal|swpal|ldaxr", code)
    # without a register for the old value LDADDAL and SWPAL would not order what comes after them
    assert not re.search(r"(ldaddal|swpal)\s+\w+, [wx]zr", code)
    assert not re.search(r"\b(ldxr|stxr|ldadd|stadd\w*|swp)\b", code)


def test_blocks_are_put_in_an_order_in_which_only_loops_jump_back() -> None:
    start = ["thread0_start:", "cmp X1, #0", "b.ne thread0_2"]
    out = ["thread0_1:", "b thread0_end"]
    loop = ["thread0_2:", "cbz X2, thread0_2", "b thread0_1"]
    found = translate.only_loops_jump_back([*start, *out, *loop, "thread0_end:"])
    assert found == [*start, "b thread0_1", *loop, *out, "thread0_end:"]


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("kernel", [walker.team_work, walker.team_compute], ids=["others", "caller"])
def test_a_thread_drops_fetched_instructions_before_it_walks_a_tape(kernel: object, processor: str) -> None:
    code = aarch64_assembly(kernel(), processor)  # type: ignore[operator]
    assert re.search(r"^\s+isb\b", code, re.MULTILINE)


@pytest.mark.long
@pytest.mark.parametrize(("name", "processor"), CASES)
def test_no_order_of_events_shows_what_is_forbidden(name: str, processor: str, tmp_path: Path) -> None:
    program = herd.herd7()
    if program is None:
        pytest.skip("herd7, of the herdtools suite, is not installed")
    scenario = scenarios.SCENARIOS[name]
    code = programs(name, processor)

    def is_reachable(what: str, threads: list[str], condition: str) -> bool:
        test = tmp_path / f"{what}.litmus"
        test.write_text(translate.litmus(what, threads, scenarios.VARIABLES, condition), encoding="utf-8")
        return herd.is_reachable(program, test)

    assert not is_reachable("forbidden", code, scenario.forbidden)
    assert is_reachable("possible", code, scenario.possible)
    if scenario.needs_order:
        assert is_reachable("relaxed", [translate.relaxed(each) for each in code], scenario.forbidden)
