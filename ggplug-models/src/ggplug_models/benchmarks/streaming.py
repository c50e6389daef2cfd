"""``python -m ggplug_models.benchmarks.streaming PORT COUNT``: clients of a server, in a process of their own.

Standard input has the prompts, a JSON list of lists of token ids.  Each is sent by a client of its own, at the same
time, for a stream of ``COUNT`` tokens.  Prints for each a JSON list ``[seconds, ...]`` of when its tokens arrived, and
one of these tokens.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Sequence


def stream(
    port: int, prompt: Sequence[int], count: int, ready: threading.Barrier, times: list[float], tokens: list[int]
) -> None:
    """Asks for the most probable tokens, when all are ``ready``, and notes them and when they arrive.

    Raises OSError, ValueError.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.connect()
    body = {"prompt": prompt, "n_predict": count, "temperature": 0, "ignore_eos": True, "stream": True}
    ready.wait()
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: "):
            event = json.loads(line[6:])
            if "content" not in event:
                raise ValueError(f"the server answered {line!r:.500}")
            found = [] if event["stop"] else event["tokens"]
            tokens += found
            times += [time.perf_counter()] * len(found)


def main() -> None:
    port, count = int(sys.argv[1]), int(sys.argv[2])
    prompts = json.load(sys.stdin)
    found: list[tuple[list[float], list[int]]] = [([], []) for _ in prompts]
    ready = threading.Barrier(len(prompts))
    threads = [
        threading.Thread(target=stream, args=(port, prompt, count, ready, *each))
        for prompt, each in zip(prompts, found, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
