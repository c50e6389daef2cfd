"""Measures what a head saves whose guesses are right with a known probability."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.backend import Device
from ggplug.bench.alternating import speed_relative
from ggplug.bench.products import use_threads
from ggplug.errors import ModelError
from ggplug.registry.extras import Options
from ggplug_models.benchmarks.synthetic import CONTROLS, LlamaShape, Matrix, drawn, write_matrices, written_once
from ggplug_models.generation.drafts import Drafts
from ggplug_models.generation.loop import generate
from ggplug_models.guessing.kinds import drafts_for
from ggplug_models.loading import default_devices, load_language_model
from ggplug_models.networks.decoder import Decoder
from ggplug_models.state.session import Session

RIGHT = 0.7
"""Fraction of the tokens after which the head guesses the right one."""

GOAL = 1.5
"""How many times as fast text is to be generated with the head as without."""

REPEATS = 5
TYPE = "Q4_K_M"
SHAPE = LlamaShape(n_embd=1024, n_ff=2816, n_layer=48, n_head=16, n_head_kv=4)
"""It has about as many layers as published models with a head, so that the head takes a small part of the time."""

Floats16 = npt.NDArray[np.float16]
Pieces = Callable[[], Iterator[Floats16]]


def write_guessed(path: Path, shape: LlamaShape, right: float = RIGHT) -> Path:
    """Writes a llama that generates the tokens of its vocabulary in their order, and a block that guesses them.

    The blocks add nothing to a token's vector, but are computed, because their last matrices are zeros.  Row ``t + 1``
    of the output matrix is the embedding of token ``t``.  So are the rows of the head's own output matrix for a
    fraction ``right`` of the tokens, which are drawn; after the others it guesses another token.  Raises OSError.
    """
    n, n_vocab = shape.n_embd, shape.n_vocab
    embeddings = np.concatenate(list(drawn(np.random.default_rng(0), (n, n_vocab))()))
    order = np.roll(np.arange(n_vocab), 1)
    wrong = np.flatnonzero(np.random.default_rng(1).permutation(n_vocab) >= round(right * n_vocab))
    guessed = order.copy()
    guessed[wrong] = np.roll(order[wrong], 1)
    projection = np.concatenate([np.eye(n, dtype=np.float16), np.zeros((n, n), np.float16)], axis=1)
    number = shape.n_layer
    head = {
        f"blk.{number}.nextn.eh_proj": ((2 * n, n), _of(projection)),
        f"blk.{number}.nextn.shared_head_head": ((n, n_vocab), _of(embeddings, guessed)),
    }
    matrices: dict[str, Matrix] = {}
    for seed, (name, ne) in enumerate({**shape.matrices, **shape.block(number)}.items(), 2):
        zeros = name.endswith(("attn_output", "ffn_down"))
        matrices[name] = ne, _zeros(ne) if zeros else drawn(np.random.default_rng(seed), ne)
    matrices["token_embd"] = (n, n_vocab), _of(embeddings)
    matrices["output"] = (n, n_vocab), _of(embeddings, order)
    keys = {
        "general.name": f"llama that is guessed, {right:.0%}",
        "llama.block_count": number + 1,
        "llama.nextn_predict_layers": 1,
    }
    return write_matrices(path, shape, matrices | head, keys)


def _of(rows: Floats16, order: npt.NDArray[np.int64] | None = None) -> Pieces:
    return lambda: iter([rows if order is None else rows[order]])


def _zeros(ne: tuple[int, ...]) -> Pieces:
    return lambda: iter([np.zeros(ne[::-1], np.float16)])


class Guessing:
    """The benchmark of drafts: a llama of 0.7 G weights whose head guesses 70 % of the tokens, with it and without.

    It writes the model into the cache folder once.  Files that are named must have such a head.
    """

    name = "guessing"
    description = "language models: generated tokens per second with a head that guesses 70 % of them, and without"
    runs_by_name = True
    measures_files = "by name"

    def run(self, device: Device, options: Options) -> Iterator[dict[str, Any]]:
        """Yields a row for each file.  Raises GGUFError, ModelError, ParameterError, OSError."""
        devices = [device, *(each for each in default_devices()[-1:] if each is not device)]
        for path in options.files or [_made()]:
            with load_language_model(path, devices) as model, drafts_for(model, "mtp") as (draft,):
                use_threads(model.scheduler.backends, options)
                row = measured(model, draft, options.prompt, options.generate)
            met = {} if options.files else {"goal": f"relative to without at least {GOAL}"}
            if met:
                met["met"] = "yes" if row["relative_to_without"] >= GOAL else "falls short"
            yield {"case": f"{path.stem}, written at {options.prompt}"} | row | met


def measured(model: Decoder, draft: Drafts, prompt: int, count: int) -> dict[str, Any]:
    """Speeds of generating ``count`` tokens with the draft and without, alternately, after several prompts.

    Raises ModelError if the texts differ.
    """
    times: dict[str, list[float]] = {"with": [], "without": []}
    texts: dict[str, list[int]] = {}
    with Session(model, prompt + count) as session:
        for attempt in range(REPEATS + 1):  # the first one compiles kernels, and makes graphs
            ids = np.random.default_rng(attempt).integers(len(CONTROLS), model.n_vocab, prompt).tolist()
            for name, used in (("without", None), ("with", draft)):
                session.clear()
                tokens = generate(session, ids, count + 1, draft=used)
                first = next(tokens)
                start = time.perf_counter()
                texts[name] = [first, *tokens]
                if attempt:
                    times[name].append(time.perf_counter() - start)
            if texts["with"] != texts["without"]:
                what = "the text with a draft is not that without"
                raise ModelError(what, got=texts["with"], wanted=texts["without"])
    return {
        "tokens_per_second": count / statistics.median(times["with"]),
        "without_per_second": count / statistics.median(times["without"]),
        "relative_to_without": speed_relative(times, "with", "without"),
        "accepted": draft.accepted / max(draft.drafted, 1),
    }


def _made() -> Path:
    """The model's file in the cache folder, which is written if it is missing."""
    return written_once("guessed-llama", TYPE, lambda path: write_guessed(path, SHAPE))


GUESSING = Guessing()
