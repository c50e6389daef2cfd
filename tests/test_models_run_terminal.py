"""``ggplug run`` in a terminal: what a person types, and sees."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)

PATIENCE = 120.0
"""Seconds after which a test gives up."""


class Terminal:
    """A terminal with a chat in it; ``seen``: all that it shows."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = os.openpty()
        self.seen = b""
        self._known = 0
        command = [sys.executable, "-m", "ggplug", "run", *arguments]
        environment = {**os.environ, "TERM": "dumb", "COLUMNS": "80"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
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


@pytest.fixture
def terminal(data: Path) -> Iterator[Terminal]:
    made = Terminal(str(data / "qwen3.gguf"), "--device", "CPU", "-n", "4", "--temperature", "0")
    with contextlib.closing(made):
        yield made


def test_a_chat_goes_on_whatever_is_typed(terminal: Terminal) -> None:
    terminal.shows("> ")
    terminal.types("日本語 hello\r")
    terminal.shows("written")
    terminal.shows("> ")
    terminal.types("\x1b[A\r")  # the line before
    assert "日本語 hello".encode() in terminal.shows("written")
    terminal.shows("> ")
    terminal.types("/help\r")
    terminal.shows("/clear   begins a new chat")
    terminal.shows("> ")
    terminal.types("/nothing\r")
    terminal.shows("There is no /nothing; /help tells what there is.")
    terminal.shows("> ")
    terminal.types("word " * 1000 + "\r")
    terminal.shows("and the context 512: say less, or start with a larger --context")
    terminal.shows("> ")
    # input() waits on where a signal came after it showed the prompt, and before it began to wait
    terminal.shows("/exit or Ctrl-D ends the chat.", lambda: terminal.process.send_signal(signal.SIGINT))
    terminal.shows("> ")
    terminal.types("\x04")
    terminal.process.wait(PATIENCE)
    assert terminal.process.returncode == 0
    assert b"Traceback" not in terminal.seen
