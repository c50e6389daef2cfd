"""Choosing a seed whose answers are clear, and writing a model's file with its outputs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from oracles import files
from oracles.families import FAMILIES, Family
from oracles.models import Model, TransformersModel
from oracles.packed import pack

Array = npt.NDArray[Any]

N_GREEDY = 16
MARGIN = 0.05
"""The least distance of the best logit from the next, in units of logits."""
NOISE = 1e-3
"""Relative, of the embeddings: about what half precision does to activations.  No choice may change under it."""
SAME = 1e-10
"""The distance that libraries of other versions may have."""


@dataclass
class Recorded:
    seed: int
    arrays: dict[str, Array]
    std: float
    margin: float | None


def record(name: str, folder: Path, exact: Path | None = None) -> Recorded:
    """Writes ``NAME.gguf.xz`` and ``NAME.npz``, from the first seed whose outputs are clear.

    ``exact``: a folder for the same model with all matrices in single precision, for a second opinion.
    """
    family = FAMILIES[name]
    for seed in itertools.count(family.seed):
        model = family.make(seed)
        found = clear(family, model, seed)
        if found is not None:
            break
        if seed - family.seed > 500:
            raise ValueError(
                f"{name}: none of 500 seeds gives clear outputs (see `clear`); larger spreads of the output matrix, or "
                "smaller ones of the embeddings, give clearer ones"
            )
    check_every_tensor(name, family, model, found)
    write(name, family, model, folder)
    pack(folder / f"{name}.gguf")
    if exact is not None:
        write(name, family, model, exact, exact=True)
    save(folder / f"{name}.npz", found.arrays)
    return found


def save(path: Path, arrays: dict[str, Array]) -> None:
    """Keeps what llama.cpp computed from the file as it is (``logits_0..2``), while it is the same file."""
    theirs: dict[str, Array] = {}
    if path.exists():
        with np.load(path) as old:
            if all(distance(old[key], arrays[key]) < SAME for key in arrays if "_f32_" in key and key in old):
                theirs = {key: old[key] for key in old.files if key not in arrays}
    np.savez_compressed(path, **arrays, **theirs)


def check(name: str, folder: Path, recorded: Path) -> None:
    """Records once more, in ``folder``.  Raises ValueError if that is not what ``recorded`` holds."""
    seed = record(name, folder).seed
    if (folder / f"{name}.gguf.xz").read_bytes() != (recorded / f"{name}.gguf.xz").read_bytes():
        raise ValueError(f"{name}.gguf is another file, with seed {seed}")
    with np.load(folder / f"{name}.npz") as new, np.load(recorded / f"{name}.npz") as old:
        for key in new.files:
            exact = "_f32_" not in key and key != "greedy_margin"
            if not (np.array_equal(new[key], old[key]) if exact else distance(new[key], old[key]) < SAME):
                raise ValueError(f"{name}.npz: {key} is another one")


def write(name: str, family: Family, model: Model, folder: Path, *, exact: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files.write(
        folder / f"{name}.gguf",
        family.arch_name,
        family.keys(model.config),
        family.tensors(model),
        words=family.words,
        exact=exact,
    )


def clear(family: Family, model: Model, seed: int) -> Recorded | None:
    """The outputs, unless a choice of token or expert is close."""
    rng = np.random.default_rng(seed)
    first = 2 if family.words else files.BOS
    sequences = [[first, *rng.integers(5, files.N_VOCAB - 4, size=n - 1).tolist()] for n in family.lengths]
    arrays: dict[str, Array] = {f"tokens_{i}": np.array(each, np.int32) for i, each in enumerate(sequences)}
    if hasattr(model, "source"):
        arrays |= {f"source_{i}": np.array(model.source(each), np.int32) for i, each in enumerate(sequences)}
    arrays["n_ctx"] = np.array(family.n_ctx, np.int32)
    rows = [model.outputs(each) for each in sequences]
    if not all(np.isfinite(each).all() for each in rows):
        raise ValueError(f"seed {seed}: outputs that are not finite")
    if any(distance(model.outputs(each, NOISE), exact) > 1e-4 for each, exact in zip(sequences, rows, strict=True)):
        return None
    if hasattr(model, "score"):
        for i, each in enumerate(sequences):
            arrays[f"score_f32_{i}"] = np.array(model.score(each), np.float32)
    if family.encoder:
        for i, each in enumerate(rows):
            arrays[f"embd_f32_{i}"] = each.astype(np.float32)
            arrays[f"pooled_f32_{i}"] = (each[0] if family.pooled_first else each.mean(axis=0)).astype(np.float32)
        return Recorded(seed, arrays, float(rows[-1].std()), None)
    for i, each in enumerate(rows):
        arrays[f"logits_f32_{i}"] = each.astype(np.float32)
    if family.masked:
        return Recorded(seed, arrays, float(rows[-1].std()), None)
    if family.hidden:
        assert isinstance(model, TransformersModel)
        arrays["hidden_f32_1"] = model.hidden(sequences[1]).astype(np.float32)
    text, margins = list(sequences[-1]), []
    for _ in range(N_GREEDY):
        last = model.outputs(text)[-1]
        low, high = np.sort(last)[-2:]
        if high - low < MARGIN:
            return None
        margins.append(high - low)
        text.append(int(last.argmax()))
    if len(set(text[-N_GREEDY:])) < 5 or distance(model.outputs(text, NOISE), model.outputs(text)) > 1e-4:
        return None
    arrays["greedy"] = np.array(text[-N_GREEDY:], np.int32)
    arrays["greedy_margin"] = np.array(margins, np.float32)
    return Recorded(seed, arrays, float(rows[-1].std()), float(min(margins)))


def distance(found: Array, expected: Array) -> float:
    """Normalised mean squared error."""
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


def check_every_tensor(name: str, family: Family, model: Model, found: Recorded) -> None:
    """Raises ValueError for a parameter whose change leaves the outputs as they are."""
    tokens = found.arrays["tokens_2"].tolist()
    exact = outputs_of(model, tokens)
    for parameter in model.parameters():
        if family.without_effect and any(part in parameter for part in family.without_effect):
            continue
        with model.changed(parameter):
            moved = np.abs(outputs_of(model, tokens) - exact).max() / found.std
        if moved < 0.03:
            raise ValueError(
                f"{name}: {parameter} moves the outputs by {moved:.4f} of their spread: is it read? Name those that "
                "cannot matter in without_effect"
            )


def outputs_of(model: Model, tokens: list[int]) -> Array:
    """All numbers that a model gives for tokens: its rows, and the score of a reranker."""
    return np.append(model.outputs(tokens), model.score(tokens) if hasattr(model, "score") else [])
