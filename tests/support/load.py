"""Many clients at once on a real server: every answer has to be the one that the model gives a single client.

    python -m tests.support.load --minutes 5 --clients 32 --slots 8    # a llama of 0.85 G random weights, in Q4_0
    python -m tests.support.load --minutes 5 --model some.gguf

The answers are computed first, one after the other, without a server.  Then ``ggplug serve`` runs in a process of its
own, and each client asks for one streamed text after the other; some leave before the end.  Ends with exit status 1 if
an answer was wrong or lost, or if the server is not as it was before.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ggplug_models
from ggplug_models.benchmarks.generation import random_models
from ggplug_models.networks.decoder import Decoder
from ggplug_models.sampling import Sampler, Sampling

LEAVES = 0.1
"""Fraction of the clients' requests that they do not wait for the end of."""
SHOWN = 5
"""Wrong answers that are printed."""
TIMEOUT = 300
"""Seconds without a piece after which an answer is lost."""


@dataclass(frozen=True)
class Task:
    """A request, and the text that the model generates for a single client."""

    body: dict[str, Any]
    wanted: str


@dataclass
class Tally:
    """What became of the requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    first: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, outcome: str, first: float | None = None, fault: str = "") -> None:
        with self.lock:
            self.outcomes[outcome] += 1
            if first is not None:
                self.first.append(first)
            if fault:
                self.faults.append(fault)


def tasks(model: Decoder, count: int, seed: int) -> Iterator[Task]:
    """Texts of different lengths, some of which begin alike; half of them greedy, half drawn by a seed."""
    drawn = random.Random(seed)
    letters = "etaoinshrdlu"
    common = " ".join("".join(drawn.choices(letters, k=drawn.randint(1, 6))) for _ in range(60))
    for number in range(count):
        words = ["".join(drawn.choices(letters, k=drawn.randint(1, 6))) for _ in range(drawn.choice([1, 5, 20, 90]))]
        prompt = " ".join([common, *words] if number % 3 == 0 else words)
        settings = {"temperature": 0} if number % 2 else {"temperature": 0.9, "seed": number}
        most = drawn.randint(8, 48)
        wanted = "".join(model.generate(prompt, most, choose=Sampler(Sampling(**settings))))
        yield Task({"prompt": prompt, "max_tokens": most, "stream": True, **settings}, wanted)


@contextmanager
def server(model: Path, slots: int, clients: int, devices: Sequence[str]) -> Iterator[tuple[int, int]]:
    """``ggplug serve`` in a process of its own: its port and its number."""
    command = [sys.executable, "-m", "ggplug", "serve", str(model), "--port", "0", "--slots", str(slots)]
    command += ["--waiting", str(clients), "--context", "1024", *(f"--device={name}" for name in devices)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = next(filter(None, (re.search(r"http://127\.0\.0\.1:(\d+)/", line) for line in process.stderr)), None)
        assert found is not None, "the server did not start"
        draining = threading.Thread(target=lambda: sys.stderr.writelines(process.stderr or ()), daemon=True)
        draining.start()
        yield int(found[1]), process.pid
    finally:
        process.send_signal(signal.SIGINT)
        print(f"the server ended with the status {process.wait(60)}")


def client(port: int, number: int, todo: Sequence[Task], end: float, tally: Tally) -> None:
    """Asks for one text after the other until the end."""
    drawn = random.Random(number)
    while time.monotonic() < end:
        task = drawn.choice(todo)
        leave_after = drawn.randint(1, 8) if drawn.random() < LEAVES else None
        try:
            _ask(port, task, leave_after, tally)
        except Exception as error:
            tally.add("lost", fault=f"{type(error).__name__}: {error}")


def _ask(port: int, task: Task, leave_after: int | None, tally: Tally) -> None:
    begun, first, pieces = time.monotonic(), None, []
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(task.body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status in (429, 503):
            tally.add(str(response.status))
            time.sleep(float(response.headers["Retry-After"]))
            return
        assert response.status == 200, f"{response.status}: {response.read()!r}"
        finish = None
        while (line := response.readline()) != b"data: [DONE]\n":
            assert line, "the stream ended early"
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line.removeprefix(b"data: "))
            assert "error" not in event, event["error"]
            first = time.monotonic() - begun if first is None else first
            pieces.append(event["choices"][0]["text"])
            finish = event["choices"][0]["finish_reason"]
            if leave_after == len(pieces):
                tally.add("left early", first)
                return
    text = "".join(pieces)
    assert finish in ("length", "stop"), finish
    if text == task.wanted:
        tally.add("right", first)
    else:
        same = next((n for n, (a, b) in enumerate(zip(text, task.wanted, strict=False)) if a != b), len(text))
        fault = f"{task.body['prompt'][:40]!r}..., {task.body}: from character {same} on {text!r}, not {task.wanted!r}"
        tally.add("wrong", first, fault)


def settled(port: int) -> dict[str, float]:
    """What the server counts once nobody asks any more.  Raises AssertionError if it still computes or is not well."""
    for _ in range(100):
        counts = _metrics(port)
        if counts["ggplug_texts_active"] == counts["ggplug_texts_waiting"] == 0:
            break
        time.sleep(0.1)
    assert counts["ggplug_texts_active"] == counts["ggplug_texts_waiting"] == 0, counts
    assert counts["ggplug_texts_failed_total"] == 0, counts
    return counts


def _metrics(port: int) -> dict[str, float]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)) as connection:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def main() -> int:
    parser = argparse.ArgumentParser(description="Many clients at once on ggplug serve; every answer is checked.")
    parser.add_argument("--model", type=Path, help="by default a llama of 0.85 G random weights in Q4_0")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=24, help="different requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", action="append", default=[])
    options = parser.parse_args()
    path = options.model or next(iter(random_models()))
    with ggplug_models.load(path, options.device or None) as model:
        todo = list(tasks(model, options.tasks, options.seed))
    print(f"{path.name}: {len(todo)} answers computed alone; {options.clients} clients, {options.slots} slots")
    tally = Tally()
    with server(path, options.slots, options.clients, options.device) as (port, pid):
        begun = time.monotonic()
        end = begun + 60 * options.minutes
        threads = [
            threading.Thread(target=client, args=(port, number, todo, end, tally), daemon=True)
            for number in range(options.clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60 * options.minutes + 2 * TIMEOUT)
            assert not thread.is_alive(), "a client still waits"
        seconds = time.monotonic() - begun
        counts = settled(port)
        resident = _resident(pid)
    for fault in tally.faults[:SHOWN]:
        print(f"  {fault}")
    for outcome in ("right", "wrong", "lost", "left early", "429", "503"):
        print(f"{outcome:12}{tally.outcomes[outcome]:8}")
    generated = counts["ggplug_generated_tokens_total"]
    print(f"{generated:.0f} tokens generated in {seconds:.0f} s, {generated / seconds:.1f} a second")
    if tally.first:
        last = sorted(tally.first)[int(0.95 * (len(tally.first) - 1))]
        print(f"first token after {statistics.median(tally.first):.2f} s (median), {last:.2f} s (19 of 20)")
    print(
        f"prompt tokens computed {counts['ggplug_prompt_tokens_total']:.0f}, "
        f"found there {counts['ggplug_prompt_tokens_reused_total']:.0f}{resident}"
    )
    return int(bool(tally.outcomes["wrong"] or tally.outcomes["lost"] or not tally.outcomes["right"]))


def _resident(pid: int) -> str:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return ""
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return f"; at most {int(found[1]) / 1e6:.2f} GB resident" if found else ""


if __name__ == "__main__":
    sys.exit(main())
