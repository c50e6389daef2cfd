"""Times language models of several libraries in turns: a prompt, and the tokens after it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from ggplug.bench.alternating import speed_relative
from ggplug.cli.bench import usable_processors
from ggplug.errors import ParameterError
from ggplug.registry.extras import Options
from ggplug_models.benchmarks.llama_cpp import LlamaCpp
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.encoder_decoder import EncoderDecoder
from ggplug_models.state.session import Session

REPEATS = 5
FAR = 4096
"""Number of tokens of a long context."""
SETTLED = 4
"""Number of tokens that are generated before timing starts."""

Row: TypeAlias = dict[str, Any]
Times: TypeAlias = dict[str, list[float]]
"""Seconds of each round, by what was measured."""


class Reader(Protocol):
    """A model of any library with a sequence, to which tokens are appended."""

    def clear(self) -> None:
        """Removes all tokens, and the source text."""

    def begin(self, ids: Sequence[int]) -> None:
        """Reads the source text, or the prompt of a model that reads none."""

    def read(self, ids: Sequence[int]) -> None:
        """Appends tokens in one step, and computes the logits after the last."""


class Ours:
    """Equal sequences of a session, as a :class:`Reader`."""

    def __init__(self, session: Session, n_seq: int = 1) -> None:
        self.session, self.n_seq = session, n_seq

    def clear(self) -> None:
        self.session.clear()

    def begin(self, ids: Sequence[int]) -> None:
        if not isinstance(self.session.model, EncoderDecoder):
            return self.read(ids)
        for seq in range(self.n_seq):
            self.session.encode(ids, seq)

    def read(self, ids: Sequence[int]) -> None:
        self.session.decode(dict.fromkeys(range(self.n_seq), ids))


class Measured:
    """The measurements of one model, and of the peer with the same file.

    ``features``: the processor's features for which the peer is built; None: as it is installed.
    Raises ParameterError if the prompt is longer than the model's context.
    """

    def __init__(self, path: Path, model: Decoder, options: Options, features: Collection[str] | None) -> None:
        self.path = path
        self.model = model
        self.features = features
        self.prompt, self.generate = options.prompt, options.generate
        if self.prompt > model.n_ctx:
            raise ParameterError(
                f"a prompt of {self.prompt} tokens exceeds the context of {path.name}, {model.n_ctx} tokens",
                got=self.prompt,
                wanted=model.n_ctx,
                remedy=f"use a --prompt of at most {model.n_ctx}",
            )
        self.threads = options.threads or usable_processors()
        self.peers = options.peers
        self.longest = self.prompt + REPEATS * (SETTLED + self.generate)
        first = min(300, model.n_vocab // 2)
        count = max(FAR, self.prompt, self.generate)
        self.ids: list[int] = np.random.default_rng(0).integers(first, model.n_vocab, count).tolist()

    @contextmanager
    def readers(self, session: Session) -> Iterator[dict[str, Reader]]:
        """The model in a session, and the peer's, which is released at the end; without it if it is not measured."""
        readers: dict[str, Reader] = {"ours": Ours(session)}
        source = self.prompt if isinstance(self.model, EncoderDecoder) else 0
        peer = LlamaCpp.of(self.path, self.longest, self.threads, self.features, source) if self.peers else None
        if peer is None:
            yield readers
            return
        try:
            yield readers | {"llama.cpp": peer}
        finally:
            peer.close()

    def timed(self, readers: Mapping[str, Reader], **besides: Callable[[], float]) -> tuple[Times, Times]:
        """The seconds of a prompt, and those of a token after it, the median of several, in each round.

        ``besides``: called after each round; their results are added to the second.
        """
        prompts: Times = {name: [] for name in readers}
        tokens: Times = {name: [] for name in [*readers, *besides]}
        for attempt in range(REPEATS + 1):  # the first one compiles kernels, and fills caches
            for name, each in readers.items():
                each.clear()
                start = time.perf_counter()
                each.begin(self.ids[: self.prompt])
                seconds = time.perf_counter() - start
                median = statistics.median(self.steps(each))
                if attempt:
                    prompts[name].append(seconds)
                    tokens[name].append(median)
            if attempt:
                for name, measure in besides.items():
                    tokens[name].append(measure())
        return prompts, tokens

    def steps(self, reader: Reader, n: int | None = None) -> list[float]:
        """Seconds of each generated token; the first few do not count."""
        for token in self.ids[:SETTLED]:
            reader.read([token])
        taken = []
        for token in self.ids[: n or self.generate]:
            start = time.perf_counter()
            reader.read([token])
            taken.append(time.perf_counter() - start)
        return taken

    def case(self, what: str) -> str:
        return f"{self.path.stem}, {what}"

    def compared(self, what: str, times: Mapping[str, Sequence[float]], n: int) -> Row:
        """A row with the tokens a second, where each time is that of ``n`` tokens, and those of the peer."""
        row: Row = {"case": self.case(what), "tokens_per_second": n / statistics.median(times["ours"])}
        if "llama.cpp" in times:
            row["llama_cpp_per_second"] = n / statistics.median(times["llama.cpp"])
            row["relative_to_llama_cpp"] = speed_relative(times, "ours", "llama.cpp")
        return row


def held(row: Row, goals: Iterable[tuple[str, float, bool]]) -> Row:
    """The goals for the figures that a row has, and whether it meets them; empty without any.

    ``goals``: of a figure the name, the value, and whether that is the least or the most.
    """
    here = [goal for goal in goals if goal[0] in row]
    if not here:
        return {}
    met = all(row[key] >= goal if at_least else row[key] <= goal for key, goal, at_least in here)
    said = (
        f"{key.replace('_', ' ')} {'at least' if at_least else 'at most'} {goal:.3g}" for key, goal, at_least in here
    )
    return {"goal": ", ".join(said), "met": "yes" if met else "falls short"}
