"""Many clients at once on a real server: every answer has to be the one that the model gives a single client.

    python -m tests.support.load --minutes 5 --clients 32 --slots 8    # a llama of 0.85 G random weights, in Q4_0
    python -m tests.support.load --requests 20000 --small    # does the server's memory grow?

The answers are computed first, one after the other, without a server: texts, JSON of a schema, and chats that call
tools.  Then ``ggplug serve`` runs in a process of its own, with the further options of the command line, and each
client asks for one streamed answer after the other; some leave before the end.  Ends with exit status 1 if an answer
was wrong or lost, if the server is not as it was before, or if its memory grew in the second half.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ggplug_models
from ggplug_models import ChatTemplate
from ggplug_models.benchmarks.generation import random_models
from ggplug_models.benchmarks.synthetic import LlamaShape, write_llama
from ggplug_models.networks.decoder import Decoder
from ggplug_models.sampling import Sampler, Sampling
from tests.support.answers.scripted import HERMES

LEAVES = 0.1
"""Fraction of the clients' requests that they do not wait for the end of."""
SHOWN = 5
"""Wrong answers that are printed."""
TIMEOUT = 300
"""Seconds without a piece after which an answer is lost."""
SMALL = LlamaShape(n_embd=64, n_ff=160, n_layer=2, n_head=4, n_head_kv=2, n_vocab=300, n_ctx=1024)
GROWTH = 1.02
"""How much larger the server's memory may be at the end than after half of the requests."""

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer"},
        "sure": {"type": "boolean"},
    },
    "required": ["name", "count", "sure"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": SCHEMA}}
    for name in ("look_up", "send")
]


@dataclass(frozen=True)
class Task:
    """A request, and what the model answers to a single client: the text, and the calls of tools."""

    path: str
    body: dict[str, Any]
    wanted: tuple[str, list[list[str]]]


@dataclass
class Tally:
    """What became of the requests, and the server's memory after each tenth of them."""

    pid: int = 0
    most: int | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    first: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    resident: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_over(self) -> bool:
        """Whether there were as many requests as are wanted."""
        return self.most is not None and self.outcomes.total() >= self.most

    def add(self, outcome: str, first: float | None = None, fault: str = "") -> None:
        with self.lock:
            self.outcomes[outcome] += 1
            if self.most is not None and self.outcomes.total() % max(self.most // 10, 1) == 0:
                self.resident.append(_resident(self.pid, "VmRSS"))
            if first is not None:
                self.first.append(first)
            if fault:
                self.faults.append(fault)


def tasks(model: Decoder, count: int, seed: int) -> Iterator[Task]:
    """Answers of different lengths, to prompts some of which begin alike; half of them greedy, half drawn by a seed."""
    template = ChatTemplate(HERMES, model.tokenizer)
    drawn = random.Random(seed)
    letters = "etaoinshrdlu"
    common = " ".join("".join(drawn.choices(letters, k=drawn.randint(1, 6))) for _ in range(60))
    for number in range(count):
        words = ["".join(drawn.choices(letters, k=drawn.randint(1, 6))) for _ in range(drawn.choice([1, 5, 20, 90]))]
        prompt = " ".join([common, *words] if number % 3 == 0 else words)
        settings = {"temperature": 0} if number % 2 else {"temperature": 0.9, "seed": number}
        most = drawn.randint(8, 48)
        asked = {"max_tokens": most, "stream": True, **settings}
        sampling = Sampling(**settings)
        if number % 4 == 2:
            messages: list[Any] = [{"role": "user", "content": prompt}]
            choice = "required" if number % 8 == 2 else "auto"
            answered = model.chat(
                messages, most, template=template, tools=TOOLS, tool_choice=choice, choose=Sampler(sampling)
            )
            answer = answered.complete()
            calls = [[call.name, call.arguments] for call in answer.calls]
            body = {"messages": messages, "tools": TOOLS, "tool_choice": choice, **asked}
            yield Task("/v1/chat/completions", body, (answer.content, calls))
            continue
        body, constraint = {"prompt": prompt, **asked}, None
        if number % 4 == 3:
            body["json_schema"], constraint = SCHEMA, model.grammars.json_schema(SCHEMA, lenient=True)
        text = "".join(model.generate(prompt, most, choose=Sampler(sampling, constraint=constraint)))
        yield Task("/v1/completions", body, (text, []))


@contextmanager
def server(model: Path, options: Sequence[str]) -> Iterator[tuple[int, int]]:
    """``ggplug serve`` in a process of its own: its port and its number."""
    command = [sys.executable, "-m", "ggplug", "serve", str(model), "--port", "0", "--context", "1024", *options]
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
    """Asks for one answer after the other until the end."""
    drawn = random.Random(number)
    while time.monotonic() < end and not tally.is_over:
        task = drawn.choice(todo)
        leave_after = drawn.randint(1, 8) if drawn.random() < LEAVES else None
        try:
            _ask(port, task, leave_after, tally)
        except Exception as error:
            tally.add("lost", fault=f"{type(error).__name__}: {error}")


def _ask(port: int, task: Task, leave_after: int | None, tally: Tally) -> None:
    begun, first, pieces = time.monotonic(), None, 0
    text, calls = "", list[list[str]]()
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)) as connection:
        connection.request("POST", task.path, json.dumps(task.body), {"Content-Type": "application/json"})
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
            (choice,) = event["choices"]
            delta = choice.get("delta", {})
            text += choice.get("text") or delta.get("content") or ""
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(calls):
                    calls.append([call["function"]["name"], ""])
                calls[call["index"]][1] += call["function"]["arguments"]
            pieces, finish = pieces + 1, choice["finish_reason"]
            if leave_after == pieces:
                tally.add("left early", first)
                return
    assert finish in ("length", "stop", "tool_calls"), finish
    if (text, calls) == task.wanted:
        tally.add("right", first)
    else:
        tally.add("wrong", first, f"{task.path} {task.body}: {text!r} and {calls}, not {task.wanted}")


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
    parser.add_argument("--small", action="store_true", help="a llama of 0.2 M random weights")
    parser.add_argument("--minutes", type=float, help="default: 5, or until all requests are made")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=32, help="different requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", action="append", default=[])
    parser.add_argument("--requests", type=int, help="number of requests, after which it ends")
    options, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_llama(Path(folder) / "small.gguf", SMALL) if options.small else options.model
        return loaded(options, path or next(iter(random_models())), [*more, *with_template(Path(folder))])


def loaded(options: argparse.Namespace, path: Path, more: Sequence[str]) -> int:
    """Runs the clients with a model, and prints what became of their requests; returns the exit status."""
    with ggplug_models.load(path, options.device or None) as model:
        todo = list(tasks(model, options.tasks, options.seed))
    print(f"{path.name}: {len(todo)} answers computed alone; {options.clients} clients, {options.slots} slots")
    more = [*more, f"--slots={options.slots}", f"--waiting={options.clients}"]
    with server(path, [*more, *(f"--device={name}" for name in options.device)]) as (port, pid):
        tally = Tally(pid, options.requests)
        begun = time.monotonic()
        minutes = options.minutes or options.requests or 5
        end = begun + 60 * minutes
        threads = [
            threading.Thread(target=client, args=(port, number, todo, end, tally), daemon=True)
            for number in range(options.clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60 * minutes + 2 * TIMEOUT)
            assert not thread.is_alive(), "a client still waits"
        seconds = time.monotonic() - begun
        counts = settled(port)
        resident = _resident(pid, "VmHWM")
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
        f"found there {counts['ggplug_prompt_tokens_reused_total']:.0f}; at most {resident:.1f} MB resident"
    )
    grew = False
    if tally.resident:
        print("resident after each tenth of the requests, in MB:", *(f"{each:.1f}" for each in tally.resident))
        grew = tally.resident[-1] > GROWTH * tally.resident[len(tally.resident) // 2]
    return int(bool(tally.outcomes["wrong"] or tally.outcomes["lost"] or not tally.outcomes["right"] or grew))


def with_template(folder: Path) -> list[str]:
    """The options for a chat template with a format of calls, which models of random weights do not have."""
    path = folder / "template.jinja"
    path.write_text(HERMES, encoding="utf-8")
    return [f"--chat-template={path}"]


def _resident(pid: int, kind: str) -> float:
    """The memory of a process in MB, as Linux reports it; NaN on other systems."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return math.nan
    found = re.search(rf"{kind}:\s+(\d+) kB", status)
    return int(found[1]) / 1e3 if found else math.nan


if __name__ == "__main__":
    sys.exit(main())
