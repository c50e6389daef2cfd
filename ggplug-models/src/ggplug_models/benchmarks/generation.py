"""Measures how fast language models compute prompts and generate text, and llama.cpp in the same run."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from ggplug import cache
from ggplug.backend import Device
from ggplug.bench.alternating import best_times, speed_relative
from ggplug.bench.products import moved, reader, use_threads
from ggplug.cli.bench import usable_processors
from ggplug.errors import ParameterError
from ggplug.gguf import GGUFReader
from ggplug.graph import Graph
from ggplug.hookspecs import HOOKS, hookimpl
from ggplug.quantizing import quantize_file
from ggplug.registry.extras import Options
from ggplug_models.benchmarks.llama_cpp import LlamaCpp
from ggplug_models.benchmarks.synthetic import write_llama
from ggplug_models.generation.loop import generate, greedy
from ggplug_models.loading import default_devices, load_language_model
from ggplug_models.networks.decoder import Decoder
from ggplug_models.sampling import Sampler, Sampling
from ggplug_models.sampling.sampler import Chooses
from ggplug_models.state.session import Session
from ggplug_models.weights.placement import Placement

TYPES = ("Q4_0", "Q4_K_M", "Q8_0", "F16")
"""Types of the random model, if no files are named."""

REPEATS = 5
FAR = 4096
"""Number of tokens of a long context."""
SETTLED = 4
"""Number of tokens that are generated before timing starts."""

Row: TypeAlias = dict[str, Any]

RANDOM = "random-llama-"
LEVELS = {"avx512f": "AVX-512", "avxvnni": "AVX-VNNI", "avx2": "AVX2"}
"""Names of the instructions that goals depend on, by the feature that a processor with them has, the best first."""


def _each(*goals: float) -> dict[str, float]:
    return dict(zip(TYPES, goals, strict=False))


PROMPT_OF_LLAMA_CPP = {
    "AVX-512": _each(2.0, 2.0, 2.0),
    "AVX-VNNI": _each(1.5, 1.5, 1.5),
    "AVX2": _each(1.8, 1.8, 1.6, 1.4),
}
WRITTEN_OF_LLAMA_CPP = {
    "AVX-512": _each(1.3, 1.2, 1.3, 1.05),
    "AVX-VNNI": _each(1.15, 1.15, 1.15),
    "AVX2": _each(1.15, 1.15, 1.1, 1.1),
}
TOGETHER = {2: 1.9, 4: 3.6, 8: 5.5, 16: 8.0}
"""Numbers of sequences that are generated at the same time, and how fast they are to be, relative to one."""
OF_PROMPT = 0.85
"""The same relative to the prompt, where that is less."""


def goals_of(level: str, kind: str) -> dict[tuple[str, str], tuple[float, bool]]:
    """Goals for the random model of a type: of a case's figure the value, and whether it is the least or the most."""
    least = {
        ("prompt of 256", "relative_to_llama_cpp"): PROMPT_OF_LLAMA_CPP.get(level, {}).get(kind),
        ("written at 256", "relative_to_llama_cpp"): WRITTEN_OF_LLAMA_CPP.get(level, {}).get(kind),
        ("written at 256", "fraction_of_streaming"): 0.9,
        (f"written at {FAR}", "relative_to_short"): _each(0.72, 0.73, 0.82, 0.88)[kind],
        **{(f"{n} sequences", "relative_to_one"): goal for n, goal in TOGETHER.items()},
    }
    most = {
        ("outside of kernels", "milliseconds"): 0.15,
        ("outside of kernels, greedy", "milliseconds"): 0.08,
        ("first token", "seconds"): 0.9,
    }
    return {case: (goal, True) for case, goal in least.items() if goal is not None} | {
        case: (goal, False) for case, goal in most.items()
    }


def judged(row: Row, level: str = "") -> Row:
    """The goals for a row of the random model, and whether it meets them; empty for other rows.

    ``level``: one of :data:`LEVELS`.  Several sequences may be as fast as :data:`OF_PROMPT` of the prompt.
    """
    name, _, what = str(row["case"]).partition(", ")
    kind = name.removeprefix(RANDOM)
    if kind == name or kind not in TYPES:
        return {}
    held = [
        (key, min(goal, row.get("most_by_prompt", goal)), at_least)
        for (case, key), (goal, at_least) in goals_of(level, kind).items()
        if case == what and key in row
    ]
    if not held:
        return {}
    met = all(row[key] >= goal if at_least else row[key] <= goal for key, goal, at_least in held)
    goals = (
        f"{key.replace('_', ' ')} {'at least' if at_least else 'at most'} {goal:.3g}" for key, goal, at_least in held
    )
    return {"goal": ", ".join(goals), "met": "yes" if met else "falls short"}


def first_token(path: Path) -> Row:
    """A row with the seconds of a whole ``ggplug run`` for one token, with warm caches of the file and the kernels."""
    command = [sys.executable, "-m", "ggplug", "run", str(path), "-p", "Hello", "--max-tokens", "1"]
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        ended = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
        if ended.returncode:
            errors = ended.stderr.decode(errors="replace").strip().splitlines()
            return {"case": f"{path.stem}, first token", "note": errors[-1] if errors else f"exit {ended.returncode}"}
    return {"case": f"{path.stem}, first token", "seconds": min(taken)}


class Generation:
    """The benchmark of language models: prompts and generated tokens, by file; llama.cpp is the peer.

    Without files, it uses a llama of 0.85 G random weights in several types, which it writes into the cache folder
    once.
    """

    name = "generation"
    description = "language models: prompt and generated tokens per second, use of the memory bandwidth, goals"
    runs_by_name = True
    measures_files = True

    def run(self, device: Device, options: Options) -> Iterator[Row]:
        """Yields the rows of each file.  Raises GGUFError, ModelError, ParameterError, UnsupportedOpError, OSError."""
        known = None if device.registration is None else device.registration.get("features")
        features: Collection[str] = () if known is None else known()
        level = next((level for name, level in LEVELS.items() if name in features), "")
        for path in options.files or random_models():
            devices = [device, *(each for each in default_devices()[-1:] if each is not device)]
            with load_language_model(path, devices, placement=Placement.parse(options.place_rules)) as model:
                use_threads(model.scheduler.backends, options)
                for row in _Measured(path, model, options, features if options.limited else None).rows():
                    yield row | judged(row, level)
            if not options.files:
                row = first_token(path)
                yield row | judged(row)


def random_models() -> Iterator[Path]:
    """Yields the random model's files in the cache folder; writes those that are missing."""
    folder = cache.folder("models")
    folder.mkdir(parents=True, exist_ok=True)
    plain = folder / f"{RANDOM}F16.gguf"
    if not plain.exists():
        write_llama(plain)
    for kind in TYPES:
        path = folder / f"{RANDOM}{kind}.gguf"
        if not path.exists():
            quantize_file(plain, path, kind)
        yield path


class Reader(Protocol):
    """A model of any library with a sequence, to which tokens are appended."""

    def clear(self) -> None:
        """Removes all tokens."""

    def read(self, ids: Sequence[int]) -> None:
        """Appends tokens in one step, and computes the logits after the last."""


class _Ours:
    """Equal sequences of a session, as a :class:`Reader`."""

    def __init__(self, session: Session, n_seq: int = 1) -> None:
        self.session, self.n_seq = session, n_seq

    def clear(self) -> None:
        self.session.clear()

    def read(self, ids: Sequence[int]) -> None:
        self.session.decode(dict.fromkeys(range(self.n_seq), ids))


class _Measured:
    """The measurements of one model, and of the peer with the same file.

    ``features``: the processor's features for which the peer is built; None: as it is installed.
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
        first = min(300, model.n_vocab // 2)
        count = max(FAR, self.prompt, self.generate)
        self.ids: list[int] = np.random.default_rng(0).integers(first, model.n_vocab, count).tolist()

    def rows(self) -> Iterator[Row]:
        """Yields rows for prompts, generation, several sequences, a long context, and the time outside of devices."""
        longest = self.prompt + REPEATS * (SETTLED + self.generate)
        with Session(self.model, longest) as session:
            readers: dict[str, Reader] = {"ours": _Ours(session)}
            peer = LlamaCpp.of(self.path, longest, self.threads, self.features) if self.peers else None
            if peer is not None:
                readers["llama.cpp"] = peer
            yield from self._single(readers)
            if peer is not None:
                peer.close()
            yield from self._python(session)
        for n in TOGETHER:
            with Session(self.model, self.prompt + 4 * REPEATS * SETTLED, n) as session:
                yield self._together(session, n)
        if self.model.n_ctx > FAR > REPEATS * (SETTLED + self.generate):
            with Session(self.model, longest) as short, Session(self.model, FAR) as long:
                yield self._far(_Ours(short), _Ours(long))

    def _case(self, what: str) -> str:
        return f"{self.path.stem}, {what}"

    def _steps(self, reader: Reader, n: int | None = None) -> list[float]:
        """Seconds of each generated token; the first few do not count."""
        for token in self.ids[:SETTLED]:
            reader.read([token])
        taken = []
        for token in self.ids[: n or self.generate]:
            start = time.perf_counter()
            reader.read([token])
            taken.append(time.perf_counter() - start)
        return taken

    def _single(self, readers: Mapping[str, Reader]) -> Iterator[Row]:
        weights = np.ones(self._weights() // 4, np.float32)
        stream = reader(weights, self.threads)
        prompts: dict[str, list[float]] = {name: [] for name in readers}
        tokens: dict[str, list[float]] = {name: [] for name in readers}
        streamed = tokens["read"] = []
        for attempt in range(REPEATS + 1):  # the first one compiles kernels, and fills caches
            for name, each in readers.items():
                each.clear()
                start = time.perf_counter()
                each.read(self.ids[: self.prompt])
                seconds = time.perf_counter() - start
                median = statistics.median(self._steps(each))
                if attempt:
                    prompts[name].append(seconds)
                    tokens[name].append(median)
            if attempt:
                streamed.append(best_times({"read": stream}, REPEATS)["read"])
        row = self._compared(f"prompt of {self.prompt}", prompts, self.prompt)
        self._prompt_per_second = row["tokens_per_second"]
        yield row
        row = self._compared(f"written at {self.prompt}", tokens, 1)
        yield row | moved(tokens, weights.nbytes, weights.nbytes)

    def _compared(self, what: str, times: Mapping[str, Sequence[float]], n: int) -> Row:
        row: Row = {"case": self._case(what), "tokens_per_second": n / statistics.median(times["ours"])}
        if "llama.cpp" in times:
            row["llama_cpp_per_second"] = n / statistics.median(times["llama.cpp"])
            row["relative_to_llama_cpp"] = speed_relative(times, "ours", "llama.cpp")
        return row

    def _weights(self) -> int:
        """Bytes of weights that are read for each token: without the embeddings, of which only one row is read."""
        with GGUFReader(self.path) as file:
            sizes = {name: tensor.nbytes for name, tensor in file.tensors.items()}
        if "output.weight" in sizes:
            del sizes["token_embd.weight"]
        return sum(sizes.values())

    def _python(self, session: Session) -> Iterator[Row]:
        """Rows with the time of a token outside of its computation: inputs, Python, copying logits, sampling."""
        prompt = self.ids[: self.prompt]
        choosers: dict[str, Chooses] = {
            "outside of kernels": Sampler(Sampling(seed=0)),
            "outside of kernels, greedy": greedy,
        }
        with _Busy() as busy:
            for case, choose in choosers.items():
                taken = []
                for _ in range(REPEATS):
                    tokens = generate(session, prompt, self.generate, choose=choose)
                    next(tokens)
                    busy.nanoseconds.clear()
                    start = time.perf_counter()
                    count = sum(1 for _ in tokens)
                    whole = time.perf_counter() - start
                    taken.append((whole - 1e-9 * sum(busy.nanoseconds)) / max(count, 1))
                yield {"case": self._case(case), "milliseconds": statistics.median(taken) * 1e3}

    def _together(self, session: Session, n: int) -> Row:
        one, all = _Ours(session), _Ours(session, n)
        all.read(self.ids[: self.prompt])
        times: dict[str, list[float]] = {"one": [], "all": []}
        for _ in range(REPEATS):
            times["one"].append(statistics.median(self._steps(one, SETTLED)))
            times["all"].append(statistics.median(self._steps(all, SETTLED)))
        return {
            "case": self._case(f"{n} sequences"),
            "tokens_per_second": n / statistics.median(times["all"]),
            "relative_to_one": n * speed_relative(times, "all", "one"),
            "most_by_prompt": OF_PROMPT * self._prompt_per_second * statistics.median(times["one"]),
        }

    def _far(self, short: _Ours, long: _Ours) -> Row:
        generated = REPEATS * (self.generate + SETTLED)
        short.read(self.ids[: self.prompt])
        long.read(self.ids[: FAR - generated])
        times: dict[str, list[float]] = {"short": [], "long": []}
        for _ in range(REPEATS):
            times["short"].append(statistics.median(self._steps(short)))
            times["long"].append(statistics.median(self._steps(long)))
        return {
            "case": self._case(f"written at {FAR}"),
            "tokens_per_second": 1 / statistics.median(times["long"]),
            "relative_to_short": speed_relative(times, "long", "short"),
        }


class _Busy:
    """A hook that collects the times of computations on devices, in nanoseconds."""

    def __init__(self) -> None:
        self.nanoseconds: list[int] = []
        """The time of each computation, the sum of its splits."""
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
