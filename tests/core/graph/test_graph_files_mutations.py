"""Mutated graph files raise typed errors only, quickly, or are read as some other graph.

Half of the mutants have changed bytes anywhere.  The others are GGUF files without a fault whose metadata have other
numbers, names and lengths, so that they get further.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_graphs import random_case

import ggplug as gg
from ggplug.errors import GGPlugError, GGUFError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.types import BufferUsage
from tests.hostile.mutations import LIMITS, mutate

NAMES = [b"graph.tensor.root", b"graph.tensor.type", b"graph.outputs", b"graph.op.0.", b"graph.op.1.", b"cpy", b"view"]


def originals(folder: Path) -> list[Path]:
    """Random graphs, one with many kinds of parameters over a model's quantised weights, and one over zeros."""
    paths = []
    for seed in range(4):
        case = random_case(seed, size=12)
        case.restore()
        paths.append(case.graph.save(folder / f"random{seed}.gguf"))
    context = gg.Context()
    w, ids = context.new_tensor("q8_0", (64, 4), "w"), gg.new_tensor("i32", (3,), "ids").set_input()
    gg.allocate(context, gg.host.HOST, BufferUsage.WEIGHTS)
    w.set(np.random.default_rng(1).standard_normal((4, 64)))
    with GGUFWriter(folder / "model.gguf", "test") as writer:
        writer.add_tensor("w", w.tobytes(), w.type, w.ne)
    h = gg.mul_mat(w, gg.get_rows(w, ids))
    h = gg.rope(gg.reshape(gg.cast(h, "f32"), 4, 1, 3), ids, n_dims=4, mode=2)
    h = gg.soft_max(gg.permute(gg.pad(h, 1, 0, 1), 0, 2, 1), scale=0.5)
    graph = gg.Graph(gg.clamp(h, 0.0, float("inf"), name="y").set_output(), name="many")
    paths.append(graph.save(folder / "many.gguf", models=[folder / "model.gguf"]))
    zeros = gg.tensor(np.zeros((64, 32), np.float32), name="zeros")
    return [*paths, gg.Graph(gg.neg(zeros)).save(folder / "zeros.gguf")]


def content_of(path: Path) -> tuple[dict[str, tuple[Any, Any]], list[tuple[Any, bytes]]]:
    with GGUFReader(path) as reader:
        pairs = {key: (reader.metadata[key], types) for key, types in reader.metadata_types.items()}
        return pairs, [(info, reader.data(info).tobytes()) for info in reader.tensors.values()]


def with_other_metadata(rng: np.random.Generator, path: Path, target: Path) -> None:
    """Writes a file whose metadata differ in a few items."""
    pairs, tensors = content_of(path)
    for _ in range(rng.choice([1, 1, 2, 4])):
        key = list(pairs)[rng.integers(len(pairs))]
        value, types = pairs[key]
        match rng.integers(4):
            case 0:
                del pairs[key]
                if not pairs:
                    break
                continue
            case 1 if isinstance(value, np.ndarray | list) and len(value):
                start = int(rng.integers(len(value)))
                value = value[:start] if rng.random() < 0.5 else value[start:]
            case 2:
                other, kinds = pairs[list(pairs)[rng.integers(len(pairs))]]
                if kinds == types:
                    value = other
            case _:
                value = other_value(rng, value)
        pairs[key] = value, types
    writer = GGUFWriter(target)
    for key, (value, types) in pairs.items():
        writer.add(key, value, types)
    for info, raw in tensors:
        ne = info.ne if rng.random() < 0.95 else (*info.ne[::-1], 1, 1)[:4][::-1]
        try:
            writer.add_tensor(info.name if rng.random() < 0.95 else str(rng.integers(40)), raw, info.type, ne)
        except GGPlugError:
            continue
    writer.write()


def other_value(rng: np.random.Generator, value: Any) -> Any:
    """A value of the same type with one number that is at a limit, or near what it was."""
    if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu":
        limits, changed = np.iinfo(value.dtype), value.copy()
        near = [int(changed.flat[at]) + int(rng.integers(-2, 3)) for at in [rng.integers(value.size)]]
        chosen = [*LIMITS, -1, *near, *near, *near, *near][rng.integers(len(LIMITS) + 5)]
        changed[rng.integers(value.size)] = min(max(chosen, limits.min), limits.max)
        return changed
    if isinstance(value, list) and value:
        return [*value[1:], value[0]] if rng.random() < 0.5 else [*value[:-1], "a" * int(rng.integers(70))]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return int(rng.choice([0, 1, -1, 2**31 - 1, value + 1])) if value < 2**31 - 1 else 0
    if isinstance(value, float):
        return float(rng.choice([0.0, -1.0, np.inf, -np.inf, np.nan, 1e300]))
    return "mutated" if isinstance(value, str) else value


def check_mutants(folder: Path, seeds: range) -> Counter[str]:
    """Loads every mutant; returns how many were read, and refused by which rule."""
    paths = originals(folder)
    files = [path.read_bytes() for path in paths]
    target = folder / "mutant.gguf"
    tally: Counter[str] = Counter()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        try:
            if seed % 2:
                target.write_bytes(mutate(rng, files, NAMES))
            else:
                with_other_metadata(rng, paths[rng.integers(len(paths))], target)
        except GGPlugError:
            continue  # no value of the type
        start = time.perf_counter()
        refusal: GGPlugError | None = None
        try:
            with gg.load_graph(target) as graph:
                assert str(graph)
                assert gg.Graph.listed(graph.tensors, graph.outputs).structure == graph.structure
        except GGPlugError as error:
            refusal = error
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        seconds = time.perf_counter() - start
        assert seconds < 1, f"seed {seed}: {seconds:.2f} s"
        if refusal is None:
            tally["read"] += 1
        elif isinstance(refusal, GGUFError):
            assert refusal.path is not None, f"seed {seed}"
            assert refusal.field, f"seed {seed}"
            tally[refusal.fields["rule"]] += 1
        else:
            tally[type(refusal).__name__] += 1
    return tally


def test_some_hundred_mutants_raise_typed_errors_or_are_read(tmp_path: Path) -> None:
    tally = check_mutants(tmp_path, range(600))
    assert tally["read"] > 60, tally
    assert len(tally) >= 12, tally


@pytest.mark.long
def test_two_hundred_thousand_mutants_raise_typed_errors_or_are_read(tmp_path: Path) -> None:
    tally = check_mutants(tmp_path, range(1_000_000, 1_200_000))
    print(tally)
    assert tally["read"] > 10_000, tally
