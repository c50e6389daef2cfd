"""Devices on other machines are lost while a server computes with them: no request hangs or is answered wrongly.

    python -m tests.support.nodes.lost_devices --faults 200

A Ray cluster of three nodes runs on this machine, and ``ggplug serve --replay`` with a model whose layers are on two
of them.  Clients ask for one answer after the other, while processes of devices are killed or stopped, and nodes
restarted.  Each request has to be answered as the model alone does, or with the error that a device was lost.  Then the
same load follows without faults, and all of it has to be answered.  Nothing may be left behind: no process of a device
and no thread of the server, whose memory may not grow.  Ends with exit status 1 otherwise.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import ggplug_models
from ggplug_models.benchmarks.synthetic import LlamaShape, write_llama
from ggplug_models.networks.decoder import Decoder
from tests.support.nodes import add_node, processes_of, three_nodes
from tests.support.served import port_of

SHAPE = LlamaShape(n_embd=64, n_ff=160, n_layer=2, n_head=4, n_head_kv=2, n_vocab=300, n_ctx=512)
CLIENTS = 4
TOKENS = 24
"""Of each answer."""
FIRST = 10
"""The first token that is text, and no control token."""
PROMPTS = 8
MARGIN = 0.003
"""By how much the logit of each token of a compared answer exceeds all others: a text that goes on after a fault is
computed again as a prompt, which rounds differently."""
HANGS = 120.0
"""Seconds after which a request counts as one that hangs."""
TYPED = "device_lost"
"""The code of the error of a request that was not answered."""

Wanted = dict[tuple[int, ...], str]
"""The answer to each prompt."""


@dataclass
class Tally:
    """What became of the requests; ``faults``: what is wrong with them."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def is_right(self) -> bool:
        return not self.faults and self.outcomes["right"] > 0


def answers(model: Decoder, drawn: random.Random) -> Wanted:
    """Prompts whose greedy answers do not depend on how results are rounded, and these answers."""
    found: Wanted = {}
    while len(found) < PROMPTS:
        prompt = tuple(drawn.choices(range(FIRST, SHAPE.n_vocab), k=drawn.choice([3, 10, 60])))
        history = list(prompt)
        with model.session(len(prompt) + TOKENS) as session:
            logits = session.decode({0: history})[0]
            for _ in range(TOKENS):
                second, best = np.partition(logits, -2)[-2:]
                if best - second < MARGIN:
                    break
                history.append(int(np.argmax(logits)))
                logits = session.decode({0: history[-1:]})[0]
        tokens = history[len(prompt) :]
        if len(tokens) == TOKENS and min(tokens) >= FIRST:
            found[prompt] = model.tokenizer.decode(tokens)
    return found


def client(port: int, wanted: Wanted, seed: int, tally: Tally, most: int | None) -> None:
    """Asks for one answer after the other, until the tally is over or there were ``most``."""
    drawn, asked = random.Random(seed), 0
    while not tally.over.is_set() and (most is None or asked < most):
        prompt, asked = drawn.choice(list(wanted)), asked + 1
        begun = time.monotonic()
        try:
            outcome = ask(port, prompt, wanted[prompt], stream=drawn.random() < 0.5)
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        tally.outcomes[outcome if outcome in ("right", TYPED) else "other"] += 1
        if outcome not in ("right", TYPED):
            tally.faults.append(f"after {time.monotonic() - begun:.1f} s: {outcome}")
            print(f"WRONG: {tally.faults[-1]}", flush=True)


def ask(port: int, prompt: tuple[int, ...], wanted: str, *, stream: bool) -> str:
    """What became of a request: "right", the code of its error, or what was wrong."""
    body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": stream, "ignore_eos": True}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        raw = response.read()
    if response.status != 200:
        return str(json.loads(raw)["error"]["code"])
    if not stream:
        text = json.loads(raw)["choices"][0]["text"]
    else:
        text, error = _streamed(raw)
        if error is not None:
            return error
    return "right" if text == wanted else f"{text!r}, not {wanted!r}"


def _streamed(raw: bytes) -> tuple[str, str | None]:
    """The text of a stream of events, and the code of the error that ended it."""
    text = ""
    for line in raw.splitlines():
        if not line.startswith(b"data: ") or line == b"data: [DONE]":
            continue
        event = json.loads(line.removeprefix(b"data: "))
        if "error" in event:
            return text, str(event["error"]["code"])
        text += event["choices"][0]["text"]
    return text, None


class Faults:
    """What happens to the server's processes of devices and to nodes."""

    def __init__(self, cluster: Any, seed: int) -> None:
        self._cluster, self._drawn = cluster, random.Random(seed)
        self._others = set(processes_of(cluster, "DeviceHost"))
        self.done: Counter[str] = Counter()
        self._nodes = {node._ray_params.node_name: node for node in cluster.worker_nodes}

    def processes(self) -> list[int]:
        """The numbers of the processes of devices that were made since this object was."""
        return [each for each in processes_of(self._cluster, "DeviceHost") if each not in self._others]

    def one(self) -> None:
        """Kills or stops a process, or restarts a node."""
        kind = self._drawn.choices(["killed", "stopped", "restarted"], [5, 3, 2])[0]
        if kind == "restarted":
            name = self._drawn.choice(sorted(self._nodes))
            self._cluster.remove_node(self._nodes[name], allow_graceful=False)
            time.sleep(self._drawn.uniform(0, 2))
            self._nodes[name] = add_node(self._cluster, name)
        else:
            until(lambda: bool(self.processes()), HANGS)
            process = self._drawn.choice(self.processes())
            try:
                os.kill(process, signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
            except ProcessLookupError:  # it was killed, because it had been stopped
                return self.one()
        self.done[kind] += 1


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Waits for a condition; returns whether it came true."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


@contextmanager
def server(path: Path, address: str) -> Iterator[tuple[int, int]]:
    """``ggplug serve`` with layers on two nodes: its port, and the number of its process."""
    devices = [option for node in "bc" for option in ("--device", f"Ray/{node}/CPU")]
    command = [
        sys.executable,
        "-m",
        "ggplug",
        "serve",
        str(path),
        "--port",
        "0",
        "--split",
        "1,1",
        "--replay",
        *devices,
    ]
    with subprocess.Popen(
        command, env=os.environ | {"GGPLUG_RAY": address}, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            port = port_of(process)
            threading.Thread(target=lambda: list(process.stderr or ()), daemon=True).start()
            yield port, process.pid
        finally:
            process.send_signal(signal.SIGINT)
            print(f"the server ended with the status {process.wait(HANGS)}")


def threads_of(process: int) -> int:
    """The number of threads of a process."""
    return len(list(Path(f"/proc/{process}/task").iterdir()))


def resident(process: int) -> float:
    """The memory of a process in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def loads(port: int, wanted: Wanted, tally: Tally, most: int | None = None) -> list[threading.Thread]:
    """Clients that have begun to ask."""
    threads = [
        threading.Thread(target=client, args=(port, wanted, number, tally, most), daemon=True)
        for number in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    return threads


def joined(threads: list[threading.Thread]) -> bool:
    """Waits for clients; returns whether all have ended."""
    for thread in threads:
        thread.join(2 * HANGS)
    return not any(thread.is_alive() for thread in threads)


def run(cluster: Any, count: int, seed: int = 0) -> list[str]:
    """Does so many faults while a server computes.  Returns what is wrong."""
    wrong: list[str] = []

    def check(condition: bool, what: str) -> None:
        if not condition:
            wrong.append(what)
            print(f"WRONG: {what}", flush=True)

    drawn = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = write_llama(Path(folder) / "small.gguf", SHAPE)
        with ggplug_models.load(path, ["CPU"]) as model:
            wanted = answers(model, drawn)
        faults = Faults(cluster, seed)
        with server(path, cluster.address) as (port, process):
            before = Tally()
            check(joined(loads(port, wanted, before, 5)) and before.is_right, f"before the faults: {before}")
            began = threads_of(process)
            during, memory = Tally(), list[float]()
            clients = loads(port, wanted, during)
            while faults.done.total() < count:
                faults.one()
                answered = during.outcomes["right"]
                time.sleep(drawn.uniform(0, 2))
                if drawn.random() < 0.7:  # otherwise the next fault comes while the model is loaded again
                    check(
                        until(lambda: during.outcomes["right"] > answered + CLIENTS, HANGS),  # noqa: B023
                        f"no request was answered for {HANGS:.0f} s after {dict(faults.done)}",
                    )
                memory.append(resident(process))
                print(f"{dict(faults.done)}: {dict(during.outcomes)}, {memory[-1]:.0f} MB", flush=True)
            during.over.set()
            check(joined(clients), "a client still waits")
            check(during.is_right, f"while there were faults: {during.faults[:5]}")
            after = Tally()
            check(joined(loads(port, wanted, after, 10)), "a client still waits")
            # What was stopped may only be noticed now.
            check(during.is_right and set(after.outcomes) <= {"right", TYPED}, f"after the faults: {after.faults[:5]}")
            again = Tally()
            check(joined(loads(port, wanted, again, 25)), "a client still waits")
            check(set(again.outcomes) == {"right"}, f"the same load without faults: {again}")
            left = len(faults.processes())
            check(left <= 2, f"{left} processes of devices run for 2 devices")
            threads = threads_of(process)
            check(threads <= began + 8, f"the server has {threads} threads, and had {began}")
            check(memory[-1] < 1.25 * memory[len(memory) // 2], f"the server's memory grew: {memory}")
            print(f"{during.outcomes}, then {again.outcomes}; threads {began}, {threads}; {left} processes of devices")
        check(until(lambda: not faults.processes(), HANGS), "processes of devices run after its end")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Devices of nodes are lost while a server computes with them.")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with three_nodes() as cluster:
        return int(bool(run(cluster, options.faults, options.seed)))


if __name__ == "__main__":
    sys.exit(main())
