"""How fast language models read prompts and write text, and how fast llama.cpp does in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from ggplug import cache
from ggplug.backend import Device
from ggplug.cli.bench import usable_processors
from ggplug.cli.products import reader
from ggplug.gguf import GGUFReader
from ggplug.graph import Graph
from ggplug.hookspecs import HOOKS, hookimpl
from ggplug.quantizing import quantize_file
from ggplug.registry.extras import Options
from ggplug_models.benchmarks.llama_cpp import LlamaCpp
from ggplug_models.decoder import Decoder
from ggplug_models.loading import default_devices, load
from ggplug_models.session import Session
from ggplug_models.synthetic import write_llama

TYPES = ("Q4_0", "Q4_K_M", "Q8_0", "F16")
"""Of the random model, where no file is named."""

REPEATS = 5
TOGETHER = 8
"""Sequences that are generated at once."""
FAR = 4096
"""Tokens of a long context."""
SETTLED = 4
"""Tokens that are written before it is timed."""

Row: TypeAlias = dict[str, Any]


class Generation:
    """Prompts and generated tokens of language models, by file; llama.cpp is the peer.

    Without files: a llama of 0.85 G random weights in several types, which are written into the cache folder once.
    """

    name = "generation"
    description = "language models: tokens read and written a second, and the share of what memory gives"

    def run(self, device: Device, options: Options) -> Iterator[Row]:
        """Rows of each file.  Raises GGUFError, ModelError, OSError."""
        for path in options.files or random_models():
            with load(path, [device, *(each for each in default_devices()[-1:] if each is not device)]) as model:
                yield from _Measured(path, model, options).rows()


def random_models() -> Iterator[Path]:
    """The random model's files, in the cache folder; those that are missing are written."""
    folder = cache.folder("models")
    folder.mkdir(parents=True, exist_ok=True)
    plain = folder / "random-llama-F16.gguf"
    if not plain.exists():
        write_llama(plain)
    for kind in TYPES:
        path = folder / f"random-llama-{kind}.gguf"
        if not path.exists():
            quantize_file(plain, path, kind)
        yield path


class Reader(Protocol):
    """A model of some library: it reads tokens behind those that it has read."""

    def clear(self) -> None:
        """Forgets what was read."""

    def read(self, ids: Sequence[int]) -> None:
        """Reads tokens, together, and computes the logits after the last."""


class _Ours:
    """Sequences of a session."""

    def __init__(self, session: Session, n_seq: int = 1) -> None:
        self.session, self.n_seq = session, n_seq

    def clear(self) -> None:
        self.session.clear()

    def read(self, ids: Sequence[int]) -> None:
        self.session.decode(dict.fromkeys(range(self.n_seq), ids))


class _Measured:
    """One model, and the peer with the same file."""

    def __init__(self, path: Path, model: Decoder, options: Options) -> None:
        self.path = path
        self.model = model
        self.prompt, self.generate = options.prompt, options.generate
        self.threads = options.threads or usable_processors()
        self.peers = options.peers
        self.ids: list[int] = np.random.default_rng(0).integers(300, model.n_vocab - 1, FAR).tolist()

    def rows(self) -> Iterator[Row]:
        """Prompts and generation, alone and several at once, far into a context, and what Python takes of a token."""
        longest = self.prompt + REPEATS * (SETTLED + self.generate)
        with Session(self.model, longest) as session:
            readers: dict[str, Reader] = {"ours": _Ours(session)}
            peer = LlamaCpp.of(self.path, longest, self.threads) if self.peers else None
            if peer is not None:
                readers["llama.cpp"] = peer
            yield from self._alone(readers)
            if peer is not None:
                peer.close()
            yield self._python(_Ours(session))
        with Session(self.model, longest, TOGETHER) as session:
            yield self._together(session)
        if self.model.n_ctx > FAR:
            with Session(self.model, FAR) as session:
                yield self._far(_Ours(session))

    def _case(self, what: str) -> str:
        return f"{self.path.stem}, {what}"

    def _steps(self, reader: Reader, n: int | None = None) -> list[float]:
        """Seconds of each token that is written; the first few settle and do not count."""
        for token in self.ids[:SETTLED]:
            reader.read([token])
        taken = []
        for token in self.ids[: n or self.generate]:
            start = time.perf_counter()
            reader.read([token])
            taken.append(time.perf_counter() - start)
        return taken

    def _alone(self, readers: Mapping[str, Reader]) -> Iterator[Row]:
        weights = np.ones(self._weights() // 4, np.float32)
        stream = reader(weights, self.threads)
        prompts: dict[str, list[float]] = {name: [] for name in readers}
        tokens: dict[str, list[float]] = {name: [] for name in readers}
        streamed = []
        for attempt in range(REPEATS + 1):  # the first one compiles, and fills caches
            for name, each in readers.items():
                each.clear()
                start = time.perf_counter()
                each.read(self.ids[: self.prompt])
                seconds = time.perf_counter() - start
                median = statistics.median(self._steps(each))
                if attempt:
                    prompts[name].append(seconds)
                    tokens[name].append(median)
            start = time.perf_counter()
            stream()
            streamed.append(time.perf_counter() - start)
        row = self._compared(f"prompt of {self.prompt}", prompts, self.prompt)
        yield row
        row = self._compared(f"written at {self.prompt}", tokens, 1)
        row["gigabytes_per_second"] = weights.nbytes * row["tokens_per_second"] / 1e9
        row["streaming_gigabytes_per_second"] = weights.nbytes / min(streamed) / 1e9
        row["share_of_streaming"] = row["gigabytes_per_second"] / row["streaming_gigabytes_per_second"]
        yield row

    def _compared(self, what: str, times: Mapping[str, Sequence[float]], n: int) -> Row:
        row: Row = {"case": self._case(what), "tokens_per_second": n / statistics.median(times["ours"])}
        if "llama.cpp" in times:
            row["llama_cpp_per_second"] = n / statistics.median(times["llama.cpp"])
            pairs = zip(times["llama.cpp"], times["ours"], strict=True)
            row["relative_to_llama_cpp"] = statistics.median(theirs / ours for theirs, ours in pairs)
        return row

    def _weights(self) -> int:
        """Bytes of weights that are read for each token: of embeddings, that is only one row."""
        with GGUFReader(self.path) as file:
            sizes = {name: tensor.nbytes for name, tensor in file.tensors.items()}
        if "output.weight" in sizes:
            del sizes["token_embd.weight"]
        return sum(sizes.values())

    def _python(self, ours: _Ours) -> Row:
        """What a step takes beside its computation: inputs, Python, and bringing the logits over."""
        with _Busy() as busy:
            self._steps(ours)
            busy.nanoseconds.clear()
            taken = self._steps(ours)
        computing = busy.nanoseconds[-len(taken) :]
        beside = statistics.median(step - 1e-9 * busy for step, busy in zip(taken, computing, strict=True))
        return {"case": self._case("beside computing"), "milliseconds": beside * 1e3}

    def _together(self, session: Session) -> Row:
        one, all = _Ours(session), _Ours(session, TOGETHER)
        all.read(self.ids[: self.prompt])
        times: dict[str, list[float]] = {"one": [], "all": []}
        for _ in range(REPEATS):
            times["one"].append(statistics.median(self._steps(one, SETTLED)))
            times["all"].append(statistics.median(self._steps(all, SETTLED)))
        rates = [TOGETHER * alone / all for alone, all in zip(times["one"], times["all"], strict=True)]
        return {
            "case": self._case(f"{TOGETHER} sequences"),
            "tokens_per_second": TOGETHER / statistics.median(times["all"]),
            "relative_to_one": statistics.median(rates),
        }

    def _far(self, ours: _Ours) -> Row:
        ours.read(self.ids[: self.prompt])
        near = statistics.median(self._steps(ours))
        ours.read(self.ids[: FAR - ours.session.length() - self.generate - SETTLED])
        far = statistics.median(self._steps(ours))
        return {
            "case": self._case(f"written at {FAR}"), "tokens_per_second": 1 / far, "relative_to_short": near / far,
        }  # fmt: skip


class _Busy:
    """Listens to how long devices compute, in nanoseconds."""

    def __init__(self) -> None:
        self.nanoseconds: list[int] = []
        """Of each computation, all its splits."""
        self._splits = 0

    @hookimpl
    def ggplug_split_computed(self, graph: Graph, device: Device, start: int, end: int) -> None:
        self._splits += end - start

    @hookimpl
    def ggplug_graph_computed(self, graph: Graph) -> None:
        self.nanoseconds.append(self._splits)
        self._splits = 0

    def __enter__(self) -> _Busy:
        HOOKS.register(self, name="ggplug-models generation")
        return self

    def __exit__(self, *exc: object) -> None:
        HOOKS.unregister(self)


GENERATION = Generation()
