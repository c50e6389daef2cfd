"""Measures what the server costs beyond generating the same texts without it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ggplug.backend import Device
from ggplug.bench.products import use_threads
from ggplug.errors import ModelError, ParameterError
from ggplug.registry.extras import Options
from ggplug_models.benchmarks.generation import random_models
from ggplug_models.checks.requirements import require_server
from ggplug_models.loading import default_devices, load_language_model
from ggplug_models.networks.decoder import Decoder
from ggplug_models.sampling import Sampler, Sampling
from ggplug_models.state.session import Session

SLOTS = 8
"""Number of texts at the same time."""

GOAL = 0.02
"""The largest fraction of the time of a step that the server may take besides."""

REPEATS = 5
TOKENS = 4
"""How many times as many tokens as ``--generate`` says each text has: the clients begin one after the other."""


class Serving:
    """The benchmark of the server: steps of 8 streamed texts, beside the same texts without a server.

    The clients are threads of another process.  Without files, it uses the random model of ``generation`` in Q4_0.
    """

    name = "serving"
    description = "the server: time of a step of 8 streamed texts, beyond that of the same texts without a server"
    runs_by_name = True
    measures_files = "by name"

    def run(self, device: Device, options: Options) -> Iterator[dict[str, Any]]:
        """Yields a row for each file.  Raises GGUFError, ModelError, ParameterError, OSError."""
        require_server("ggplug bench serving")
        devices = [device, *(each for each in default_devices()[-1:] if each is not device)]
        for path in options.files or [next(random_models())]:
            with load_language_model(path, devices) as model:
                use_threads(model.scheduler.backends, options)
                row = measured(model, options.prompt, TOKENS * options.generate)
            met = {} if options.files else {"goal": f"beyond generate at most {GOAL}"}
            if met:
                met["met"] = "yes" if row["beyond_generate"] <= GOAL else "falls short"
            yield {"case": f"{path.stem}, {SLOTS} texts at {options.prompt}"} | row | met


def measured(model: Decoder, prompt: int, count: int) -> dict[str, Any]:
    """The times of a step with the server and without, measured alternately, of texts of ``count`` tokens.

    Raises ModelError if the texts differ, ParameterError if they are too short.
    """
    random = np.random.default_rng(0)
    vocabulary = [token for token in range(model.n_vocab) if token not in model.tokenizer.ends]
    with_server, without = [], []
    with Session(model, prompt + count, SLOTS) as session, _served(model, prompt + count) as port:
        for attempt in range(REPEATS + 1):  # the first one compiles kernels, and makes graphs
            prompts = random.choice(vocabulary, (SLOTS, prompt)).tolist()
            seconds, wanted = _plain(session, prompts, count)
            streamed, found = _streamed(port, prompts, count)
            if found != wanted:
                raise ModelError("the texts of the server are not those without it", got=found, wanted=wanted)
            if attempt:
                without.append(seconds)
                with_server.append(streamed)
    ratios = [a / b for a, b in zip(with_server, without, strict=True)]
    return {
        "milliseconds": 1e3 * statistics.median(with_server),
        "without_milliseconds": 1e3 * statistics.median(without),
        "beyond_generate": statistics.median(ratios) - 1,
    }


@contextmanager
def _served(model: Decoder, n_ctx: int) -> Iterator[int]:
    """A server of the model in this process; gives its port."""
    from ggplug_models.serve.server import Server, listening, run
    from ggplug_models.serve.service import serving

    with serving(model, "model", slots=SLOTS, context=n_ctx) as service, listening(["127.0.0.1"], 0) as sockets:
        server = Server(service)
        thread = threading.Thread(target=run, args=(server, *sockets), name="served")
        thread.start()
        try:
            yield sockets[0].getsockname()[1]
        finally:
            server.stop()
            thread.join()


def _streamed(port: int, prompts: Sequence[Sequence[int]], count: int) -> tuple[float, list[list[int]]]:
    """Seconds of a step while all texts are streamed, and the texts."""
    command = [sys.executable, "-m", "ggplug_models.benchmarks.streaming", str(port), str(count)]
    done = subprocess.run(command, input=json.dumps(prompts), capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        raise ModelError(f"a client of the server failed: {done.stderr.strip()[-500:]}", got=done.returncode)
    times, texts = zip(*json.loads(done.stdout), strict=True)
    begin, end = (max(each[0] for each in times), min(each[-1] for each in times)) if all(times) else (0.0, 0.0)
    within = [[moment for moment in each if begin <= moment <= end] for each in times]
    if min(map(len, within)) < 2:
        raise ParameterError(
            f"texts of {count} tokens end before all are streamed", got=count, remedy="use a larger --generate"
        )
    return statistics.median((each[-1] - each[0]) / (len(each) - 1) for each in within), list(texts)


def _plain(session: Session, prompts: Sequence[Sequence[int]], count: int) -> tuple[float, list[list[int]]]:
    """Seconds of a step of all texts without a server, and the texts."""
    ends = dict.fromkeys(session.model.tokenizer.ends, float("-inf"))
    sampling = Sampling(temperature=0, logit_bias=ends)
    choosers = [Sampler(sampling) for _ in prompts]
    session.clear()
    histories = [list(prompt) for prompt in prompts]
    logits = {seq: session.decode({seq: prompt})[seq] for seq, prompt in enumerate(prompts)}
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        for seq, (choose, history) in enumerate(zip(choosers, histories, strict=True)):
            history.append(int(choose(logits[seq], history)))
        if len(histories[0]) < len(prompts[0]) + count:
            logits = session.decode({seq: history[-1:] for seq, history in enumerate(histories)})
            taken.append(time.perf_counter() - start)
    texts = [history[len(prompt) :] for history, prompt in zip(histories, prompts, strict=True)]
    return statistics.median(taken), texts


SERVING = Serving()
