"""``ggplug run`` in a terminal: what a person types, and sees."""

from __future__ import annotations

import contextlib
import ctypes.util
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ggplug_models

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)

PATIENCE = 120.0
"""Seconds after which a test gives up."""


class Terminal:
    """A terminal with a chat in it; ``seen``: all that it shows.  ``start``: Python that runs before."""

    def __init__(self, *arguments: str, start: str = "pass", **environment: str) -> None:
        self._ours, theirs = os.openpty()
        self.seen = b""
        self._known = 0
        code = f"import sys; {start}; from ggplug.cli import main; main()"
        command = [sys.executable, "-c", code, "run", *arguments]
        variables = {**os.environ, "TERM": "dumb", "COLUMNS": "80", **environment}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=variables)
        os.close(theirs)

    def shows(self, wanted: str, meanwhile: Callable[[], object] = lambda: None) -> bytes:
        """Waits until something is shown that was not shown before; what was shown up to there.

        ``meanwhile`` is called at first, and again each second.
        """
        begin, end = self._known, time.monotonic() + PATIENCE
        meanwhile()
        while (place := self.seen.find(wanted.encode(), begin)) < 0:
            assert time.monotonic() < end, self.seen
            if select.select([self._ours], [], [], 1)[0]:
                self.seen += os.read(self._ours, 1 << 16)
            else:
                meanwhile()
        self._known = place + len(wanted.encode())
        return self.seen[begin : self._known]

    def types(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


ARGUMENTS = ("--device", "CPU", "-n", "4", "--temperature", "0")


@pytest.fixture
def terminal(data: Path) -> Iterator[Terminal]:
    with contextlib.closing(Terminal(str(data / "qwen3.gguf"), *ARGUMENTS)) as made:
        yield made


def test_a_chat_goes_on_whatever_is_typed(terminal: Terminal) -> None:
    terminal.shows("> ")
    terminal.types("日本語 hello\r")
    terminal.shows("per second")
    terminal.shows("> ")
    terminal.types("\x1b[A\r")  # the line before
    assert "日本語 hello".encode() in terminal.shows("per second")
    terminal.shows("> ")
    terminal.types("/help\r")
    terminal.shows("/clear   start a new chat")
    terminal.shows("> ")
    terminal.types("/nothing\r")
    terminal.shows("Unknown command /nothing; /help lists the commands.")
    terminal.shows("> ")
    terminal.types("word " * 1000 + "\r")
    terminal.shows("the context length is 512: type a shorter text, or start with a larger --context")
    terminal.shows("> ")
    # input() waits on where a signal came after it showed the prompt, and before it began to wait
    terminal.shows("/exit or Ctrl-D ends the chat.", lambda: terminal.process.send_signal(signal.SIGINT))
    terminal.shows("> ")
    terminal.types("\x04")
    terminal.process.wait(PATIENCE)
    assert terminal.process.returncode == 0
    assert b"Traceback" not in terminal.seen


LIBEDIT = ctypes.util.find_library("edit")
EDITORS = {
    "Python's own": ("pass", {}),
    "none": ("sys.modules['readline'] = None", {}),
    "libedit": ("import readline; assert 'libedit' in (readline.__doc__ or '')", {"LD_PRELOAD": LIBEDIT or ""}),
}


@pytest.mark.parametrize("editor", EDITORS)
def test_a_pasted_text_is_one_message(data: Path, editor: str) -> None:
    start, environment = EDITORS[editor]
    if editor == "libedit" and subprocess.run([sys.executable, "-c", start], env=os.environ | environment).returncode:
        pytest.skip("there is no libedit that can take the place of another one")
    text = ["first line", "", "/clear", "last line"]
    with contextlib.closing(Terminal(str(data / "qwen3.gguf"), *ARGUMENTS, start=start, **environment)) as terminal:
        terminal.shows("> ")
        assert b"\x1b[?2004h" in terminal.seen  # the terminal is asked to mark what is pasted
        terminal.types("\x1b[200~" + "\r".join(text) + "\x1b[201~")
        terminal.shows("last line")
        terminal.types(" and more\r")
        terminal.shows("per second")
        terminal.shows("> ")
        terminal.types("/help\r")
        terminal.shows("Ctrl-C")
        terminal.shows("> ")
        terminal.types("typed\r")
        terminal.shows("per second")
        terminal.shows("> ")
        terminal.types("/exit\r")
        terminal.process.wait(PATIENCE)
        seen = terminal.seen.decode(errors="replace")
    with ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as model:
        wanted = [len(model.tokenizer.prompt(each)) for each in ("\n".join(text) + " and more", "typed")]
    assert [int(count) for count in re.findall(r"prompt of (\d+) tokens", seen)] == wanted
    assert "Traceback" not in seen
