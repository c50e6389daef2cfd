"""Bars are drawn in the foreground of a terminal; in its background nothing is, for which the kernel would stop us."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")

_SHELL = """
    import fcntl, os, signal, sys, termios

    background, job = sys.argv[1] == "background", sys.argv[2:]
    terminal = os.open(os.environ["TERMINAL"], os.O_RDWR)
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    settings = termios.tcgetattr(terminal)
    settings[3] |= termios.TOSTOP
    termios.tcsetattr(terminal, termios.TCSANOW, settings)
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        if not background:
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(terminal, os.getpgrp())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.dup2(terminal, 2)
        os.execv(sys.executable, [sys.executable, *job])
    _, status = os.waitpid(child, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        print("stopped by", signal.Signals(os.WSTOPSIG(status)).name)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    else:
        print("ended with", os.waitstatus_to_exitcode(status))
    assert termios.tcgetattr(terminal) == settings
"""
"""What a shell does: it has a terminal, on which a job of its own group writes to standard error."""


def of_job(where: str, *job: str) -> tuple[str, str]:
    """What becomes of a Python process as a job in the fore- or background of a terminal, and what is drawn there."""
    ours, terminal = os.openpty()
    environment = {**os.environ, "TERMINAL": os.ttyname(terminal), "TERM": "xterm", "COLUMNS": "100"}
    environment = {name: value for name, value in environment.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    try:
        done = subprocess.run(
            [sys.executable, "-c", dedent(_SHELL), where, *job],
            env=environment,
            start_new_session=True,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        os.set_blocking(ours, False)
        try:
            drawn = os.read(ours, 1 << 16).decode()
        except BlockingIOError:
            drawn = ""
    finally:
        os.close(ours)
        os.close(terminal)
    return done.stdout, drawn


CONFORMANCE = ("-m", "ggplug_testing.conformance", "reference", "--op", "relu", "--case", "special values")


def test_the_suite_runs_through_in_the_background_of_a_terminal() -> None:
    printed, drawn = of_job("background", *CONFORMANCE)
    assert printed.endswith("ended with 0\n"), printed
    assert drawn == ""


def test_the_suite_shows_in_the_foreground_how_far_it_is() -> None:
    printed, drawn = of_job("foreground", *CONFORMANCE)
    assert printed.endswith("ended with 0\n"), printed
    assert "1/1" in drawn
    assert "\x1b[?25l" not in drawn, "a killed process would leave the terminal without a cursor"


_TO_THE_BACKGROUND = """
    import os, signal, sys
    from rich.progress import TextColumn
    from ggplug.display import bars

    def group(number):
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(2, number)
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)

    with bars.bar(TextColumn("{task.description}")) as shown, bars.busy("busy") as other:
        task = shown.add_task("in front")
        shown.refresh()
        group(os.getppid())
        shown.update(task, description="behind", refresh=True)
        other.refresh()
        if sys.argv[1] == "back":
            group(os.getpgrp())
            shown.update(task, description="in front again", refresh=True)
"""


@pytest.mark.parametrize("to", ["back", "behind"])
def test_a_job_that_goes_to_the_background_draws_when_it_comes_back(to: str, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(dedent(_TO_THE_BACKGROUND), encoding="utf-8")
    printed, drawn = of_job("foreground", str(script), to)
    assert printed.endswith("ended with 0\n"), printed
    assert "in front" in drawn
    assert "behind" not in drawn
    assert ("in front again" in drawn) == (to == "back")


def test_what_others_print_during_a_bar_arrives(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import signal, sys\nfrom ggplug.display import bars\nsignal.signal(signal.SIGTTOU, signal.SIG_IGN)\n"
        "with bars.busy('busy'):\n    print('said', file=sys.stderr)\n",
        encoding="utf-8",
    )
    for where in ("foreground", "background"):
        printed, drawn = of_job(where, str(script))
        assert printed.endswith("ended with 0\n"), printed
        assert "said" in drawn
        assert ("busy" in drawn) == (where == "foreground")
