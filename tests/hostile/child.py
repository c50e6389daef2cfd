"""The parent's side of a child process that runs cases."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from .outcome import Outcome

ROOT = Path(__file__).resolve().parents[2]

COMMAND = ("-m", "tests.hostile.run")
"""What Python runs; the device's name comes after it."""

LIMIT = 120.0
"""Seconds that a case may take, kernels that have to be compiled included.

While other programs work, a case may take longer: until it has had a processor for so many seconds.
"""


class Child:
    """A process that runs cases on a device; one that ended is started anew by the next case.

    ``device``: a device's name; ``CPU:generic`` is the CPU with GGPLUG_CPU_FEATURES set to ``generic``.
    """

    def __init__(self, device: str, limit: float = LIMIT) -> None:
        self.device = device
        self.limit = limit
        self.history: list[str] = []
        """The cases that the process has run since it was started."""
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: BinaryIO | None = None
        self._pending = b""

    def ask(self, name: str, fixed: Mapping[str, Any] | None = None) -> Outcome:
        """Runs a case.  A child that crashes, hangs or ends is an outcome too, of the kind "crash" or "hang"."""
        if self._process is None:
            self._start()
        self.history.append(name)
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"case": name, "fixed": dict(fixed or {})}).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._read()
        except (BrokenPipeError, EOFError):
            return self._ended()
        except TimeoutError:
            self._process.send_signal(signal.SIGABRT)  # faulthandler says where it was
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            said = self._said()
            self.close()
            return Outcome("fault", f"no answer after {self.limit:.0f} seconds\n{said}", "hang")
        return Outcome(**answer)

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        errors, self._errors = self._errors, None
        self.history = []
        if errors is not None:
            errors.close()
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self) -> None:
        device, _, features = self.device.partition(":")
        # Compiled kernels stay where the tests have theirs.
        environment = {"GGPLUG_CACHE_DIR": str(ROOT / ".cache"), **os.environ, "PYTHONFAULTHANDLER": "1"}
        if features:
            environment["GGPLUG_CPU_FEATURES"] = features
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._pending = b""
        self._process = subprocess.Popen(
            [sys.executable, *COMMAND, device],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        try:
            self._read()
        except (EOFError, TimeoutError):
            said = self._said()
            self.close()
            raise RuntimeError(f"no child for {self.device}:\n{said}") from None

    def _read(self) -> dict[str, Any]:
        """The next line of the child."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        begin, used = time.monotonic(), _processor_seconds(process.pid)
        end, latest = begin + self.limit, used
        while b"\n" not in self._pending:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                before, latest = latest, _processor_seconds(process.pid)
                if latest < before + self.limit / 1000 or latest - used > self.limit or end > begin + 20 * self.limit:
                    raise TimeoutError
                end += self.limit / 4
                continue
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                raise EOFError
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ended(self) -> Outcome:
        assert self._process is not None
        code = self._process.wait()
        said = self._said()
        self.close()
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return Outcome("fault", f"the process ended: {how}\n{said}", f"crash {how}")

    def _said(self) -> str:
        """The end of what the child wrote to its standard error."""
        assert self._errors is not None
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 3000))
        return self._errors.read().decode(errors="replace").rstrip()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _processor_seconds(process: int) -> float:
    """How long a process has had a processor; 0 where the system does not report it."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
