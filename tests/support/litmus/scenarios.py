"""What two threads of a team do to each other, in pieces small enough to look at every order of events.

A thread's program is a kernel ``body(team, data)``: it calls the functions of the team, and reads and writes plain
words as kernels do.  A word that a thread saw is stored with 1 added, so that 0 says that it never came so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

from ggplug_cpu import context
from ggplug_cpu.compiler import Body, Kernel, device_function, kernel
from ggplug_cpu.context import LINE, TeamMemory, ThreadMemory, load_word, meet, store_word
from ggplug_cpu.walker import falls_asleep, finish, start_others, wait_for_others, wake

_VALUES, _SEEN = 16 * LINE, 32 * LINE

#: The words by name: the team's, a sleeping thread's mark, what threads write for each other, and what they saw.
VARIABLES = {
    ("team", TeamMemory.generation.offset): "generation",
    ("team", TeamMemory.finished.offset): "finished",
    ("team", TeamMemory.arrived.offset): "arrived",
    ("team", TeamMemory.passed.offset): "passed",
    ("team", TeamMemory.abort.offset): "abort",
    ("data", 0): "unused",
    ("data", ThreadMemory.asleep.offset): "asleep",
    **{("data", _VALUES + LINE * i): f"value{i}" for i in range(2)},
    **{("data", _SEEN + LINE * i): f"seen{i}" for i in range(2)},
}


class Scenario(NamedTuple):
    """``programs``: what each thread runs.

    ``forbidden`` and ``possible``: herd7's conditions for what no execution may end with, and what one must.
    ``needs_order``: whether atomic instructions that order nothing would let the forbidden happen.
    """

    programs: Callable[[], list[Kernel]]
    forbidden: str
    possible: str
    needs_order: bool = True


@device_function
def _write(data: int, number: int) -> None:
    store_word(data + _VALUES + LINE * number, 1)


@device_function
def _see(data: int, thread: int, number: int) -> None:
    store_word(data + _SEEN + LINE * thread, load_word(data + _VALUES + LINE * number) + 1)


@kernel
def starting() -> Body:
    def body(team: TeamMemory, data: int) -> None:
        _write(data, 0)
        start_others(team, 1)

    return body


@kernel
def started() -> Body:
    def body(team: TeamMemory, data: int) -> None:
        if team.generation.value != 0:
            _see(data, 1, 0)

    return body


@kernel
def waking() -> Body:
    def body(team: TeamMemory, data: int) -> None:
        start_others(team, 1)
        store_word(data + _SEEN, wake(ThreadMemory(data)) + 1)

    return body


@kernel
def sleeping() -> Body:
    def body(team: TeamMemory, data: int) -> None:
        store_word(data + _SEEN + LINE, falls_asleep(ThreadMemory(data), team, 0) + 1)

    return body


@kernel
def meeting(thread: int) -> Body:
    other = 1 - thread

    def body(team: TeamMemory, data: int) -> None:
        _write(data, thread)
        if meet(team, 1, 2, team.arrived, team.passed):
            _see(data, thread, other)

    return body


@kernel
def finishing() -> Body:
    def body(team: TeamMemory, data: int) -> None:
        _write(data, 1)
        finish(team)

    return body


@kernel
def collecting() -> Body:
    def body(team: TeamMemory, data: int) -> None:
        wait_for_others(team, 2)
        _see(data, 0, 1)

    return body


@kernel
def finishing_twice() -> Body:
    def body(team: TeamMemory, data: int) -> None:
        finish(team)
        if team.generation.value == 1:
            finish(team)
            store_word(data + _SEEN + LINE, 1)

    return body


@kernel
def starting_again() -> Body:
    def body(team: TeamMemory, data: int) -> None:
        wait_for_others(team, 2)
        team.finished.set(0)
        start_others(team, 1)

    return body


SCENARIOS = {
    "a started thread sees what was written before": Scenario(lambda: [starting(), started()], "seen1=1", "seen1=2"),
    "a thread that sleeps is woken": Scenario(lambda: [waking(), sleeping()], "seen0=1 /\\ seen1=2", "seen0=2"),
    "only a thread that sleeps is woken": Scenario(
        lambda: [waking(), sleeping()], "seen0=2 /\\ seen1=1", "seen1=1", needs_order=False
    ),
    "two threads that met see what the other wrote": Scenario(
        lambda: [meeting(0), meeting(1)], "seen0=1 \\/ seen1=1", "seen0=2 /\\ seen1=2"
    ),
    "the caller sees what a thread wrote before it finished": Scenario(
        lambda: [collecting(), finishing()], "seen0=1", "seen0=2"
    ),
    "who finishes the next computation is counted from 0": Scenario(
        lambda: [starting_again(), finishing_twice()], "seen1=1 /\\ ~(finished=1)", "seen1=1"
    ),
}


@device_function
def _go_round(team: TeamMemory, index: int, rounds: int) -> int:
    return rounds


@contextmanager
def without_waiting() -> Iterator[None]:
    """Waiting loops ask again at once; what they do meanwhile (pause, yield, poll) hands nothing over."""
    from ggplug_cpu import walker

    with mock.patch.object(context, "wait_a_little", _go_round), mock.patch.object(walker, "wait_a_little", _go_round):
        yield
