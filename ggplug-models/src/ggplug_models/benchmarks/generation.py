"""Measures how fast language models compute prompts and generate text, and llama.cpp in the same run."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from ggplug import cache
from ggplug.backend import Device
from ggplug.bench.alternating import best_times, speed_relative
from ggplug.bench.products import moved, reader, use_threads
from ggplug.gguf import GGUFReader
from ggplug.graph import Graph
from ggplug.hookspecs import HOOKS, hookimpl
from ggplug.quantizing import quantize_file
from ggplug.registry.extras import Options
from ggplug_models.benchmarks.speeds import FAR, REPEATS, SETTLED, Measured, Ours, Reader, Row, held
from ggplug_models.benchmarks.synthetic import write_llama
from ggplug_models.generation.loop import generate, greedy
from ggplug_models.loading import default_devices, load_language_model
from ggplug_models.sampling import Sampler, Sampling
from ggplug_models.sampling.sampler import Chooses
from ggplug_models.state.session import Session
from ggplug_models.weights.placement import Placement

TYPES = ("Q4_0", "Q4_K_M", "Q8_0", "F16")
"""Types of the random model, if no files are named."""

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
    goals = goals_of(level, kind).items()
    most = row.get("most_by_prompt", math.inf)
    return held(row, [(key, min(goal, most), least) for (case, key), (goal, least) in goals if case == what])


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


class _Measured(Measured):
    """All measurements of one model, and those of the peer with the same file."""

    def rows(self) -> Iterator[Row]:
        """Yields rows for prompts, generation, several sequences, a long context, and the time outside of devices."""
        with Session(self.model, self.longest) as session:
            with self.readers(session) as readers:
                yield from self._single(readers)
            yield from self._python(session)
        for n in TOGETHER:
            with Session(self.model, self.prompt + 4 * REPEATS * SETTLED, n) as session:
                yield self._together(session, n)
        if self.model.n_ctx > FAR > REPEATS * (SETTLED + self.generate):
            with Session(self.model, self.longest) as short, Session(self.model, FAR) as long:
                yield self._far(Ours(short), Ours(long))

    def _single(self, readers: Mapping[str, Reader]) -> Iterator[Row]:
        weights = np.ones(self._weights() // 4, np.float32)
        stream = reader(weights, self.threads)
        prompts, tokens = self.timed(readers, read=lambda: best_times({"read": stream}, REPEATS)["read"])
        row = self.compared(f"prompt of {self.prompt}", prompts, self.prompt)
        self._prompt_per_second = row["tokens_per_second"]
        yield row
        row = self.compared(f"written at {self.prompt}", tokens, 1)
        yield row | moved(tokens, weights.nbytes, weights.nbytes)

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
                yield {"case": self.case(case), "milliseconds": statistics.median(taken) * 1e3}

    def _together(self, session: Session, n: int) -> Row:
        one, all = Ours(session), Ours(session, n)
        all.read(self.ids[: self.prompt])
        times: dict[str, list[float]] = {"one": [], "all": []}
        for _ in range(REPEATS):
            times["one"].append(statistics.median(self.steps(one, SETTLED)))
            times["all"].append(statistics.median(self.steps(all, SETTLED)))
        return {
            "case": self.case(f"{n} sequences"),
            "tokens_per_second": n / statistics.median(times["all"]),
            "relative_to_one": n * speed_relative(times, "all", "one"),
            "most_by_prompt": OF_PROMPT * self._prompt_per_second * statistics.median(times["one"]),
        }

    def _far(self, short: Ours, long: Ours) -> Row:
        generated = REPEATS * (self.generate + SETTLED)
        short.read(self.ids[: self.prompt])
        long.read(self.ids[: FAR - generated])
        times: dict[str, list[float]] = {"short": [], "long": []}
        for _ in range(REPEATS):
            times["short"].append(statistics.median(self.steps(short)))
            times["long"].append(statistics.median(self.steps(long)))
        return {
            "case": self.case(f"written at {FAR}"),
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
