"""Control vectors made from pairs of texts, as llama-cvector-generator makes them (A. Zou et al., arXiv:2310.01405)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ggplug.errors import ModelError, ParameterError
from ggplug.gguf import GGUFWriter
from ggplug_models.networks.decoder import Decoder

Floats = npt.NDArray[np.float32]

METHODS = ("pca", "mean")
"""How the differences of many tokens become one direction."""

_LEAST = 1e-6
"""The difference of an element from which that of a token counts."""


def directions_of(
    model: Decoder,
    pairs: Sequence[tuple[str, str]],
    method: str = "pca",
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[Floats]:
    """The directions of a control vector that leads from the second texts of pairs to the first.

    ``pairs``: texts in which names of control tokens are these tokens; the shorter one is filled up with spaces.
    ``method``: ``"pca"``: the first principal component of the differences of all tokens, ``"mean"``: their mean.

    Returns one direction for each block but the last, float32 ``(n_embd,)``, of length 1, from how the outputs of the
    block differ.  ``progress(done, count)``: called after each pair.

    Raises ParameterError for another method, without pairs, for texts without tokens or longer than the model's context
    length, and if the texts of all pairs are the same to a block; ModelError for a model of one block.
    """
    if method not in METHODS:
        raise ParameterError(f"method must be one of {', '.join(METHODS)}, got {method!r}", got=method, wanted=METHODS)
    if not pairs:
        raise ParameterError("a control vector needs at least one pair of texts", got=0)
    if model.n_layer < 2:
        raise ModelError("a control vector is for models with at least two blocks", got=model.n_layer)
    rows: list[list[Floats]] = [[] for _ in range(model.n_layer - 1)]
    for number, pair in enumerate(pairs):
        for block, found in enumerate(_differences(model, pair, number)):
            rows[block].append(found)
        if progress is not None:
            progress(number + 1, len(pairs))
    return [_direction(np.concatenate(each), method, block) for block, each in enumerate(rows)]


def _differences(model: Decoder, pair: tuple[str, str], number: int) -> list[Floats]:
    """For each block but the last, how its outputs for two texts differ: (n, n_embd), of tokens where they do."""
    tokenizer = model.tokenizer
    texts = [tokenizer.encode(text, add_special=bool(tokenizer.vocabulary.before), parse_special=True) for text in pair]
    longest = max(map(len, texts))
    if not min(map(len, texts)) or longest > model.n_ctx:
        raise ParameterError(
            f"the texts of pair {number} must have 1 to {model.n_ctx} tokens, and have {len(texts[0])} and "
            f"{len(texts[1])}",
            got=tuple(map(len, texts)),
            wanted=model.n_ctx,
        )
    space = tokenizer.encode(" ")
    names = [f"blk.{block}.l_out" for block in range(model.n_layer - 1)]
    first, second = (model.run([*text, *space[-1:] * (longest - len(text))], names) for text in texts)
    found = (first[name] - second[name] for name in names)
    return [each[(each > _LEAST).any(axis=1)] for each in found]


def _direction(rows: Floats, method: str, block: int) -> Floats:
    mean = rows.mean(axis=0, dtype=np.float64) if len(rows) else np.zeros(1)
    length = float(np.linalg.norm(mean))
    if not length or not np.isfinite(length):
        raise ParameterError(
            f"the texts of all pairs do not differ in the output of block {block}, or it is not finite",
            got=block,
            remedy="use pairs of texts that differ in what the control vector is to change",
        )
    if method == "mean":
        return (mean / length).astype(np.float32)
    component: Floats = np.linalg.svd(rows, full_matrices=False)[2][0]
    # A principal component has no sign: it gets that by which it leads to the first texts.
    return component if component @ mean >= 0 else -component


def write_directions(path: str | os.PathLike[str], directions: Sequence[Floats], architecture: str) -> Path:
    """Writes a control vector in llama.cpp's format.

    As llama-cvector-generator does, it writes the direction of block N as ``direction.N+1``, which is added to the
    output of the block after it.  ``architecture``: that of the model.  Raises OSError.
    """
    with GGUFWriter(path, arch="controlvector") as writer:
        writer.add("controlvector.model_hint", architecture)
        writer.add("controlvector.layer_count", np.int32(len(directions)))
        for block, each in enumerate(directions):
            writer.add_tensor(f"direction.{block + 1}", each)
        writer.write()
    return Path(path)
