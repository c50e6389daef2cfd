"""The perplexity of a text for a language model, as llama.cpp's ``llama-perplexity`` measures it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug.errors import ModelError, ParameterError
from ggplug.types import Type
from ggplug_models.checks.arguments import whole
from ggplug_models.checks.ids import token_ids
from ggplug_models.state.session import LARGEST_RESULT, LanguageModel
from ggplug_models.state.steps import Outputs

CONTEXT = 512
"""Default number of tokens of a chunk, if the model supports that context length."""

LEAST_CONTEXT = 4

LARGEST = math.log(sys.float_info.max)
"""The largest mean whose exponential is finite."""

ROWS = 16
"""Rows of logits that are processed together, so that copies of them stay in the processor's cache."""


class Perplexity(NamedTuple):
    """A perplexity: exp(mean of -log p) over ``tokens`` tokens of ``chunks`` chunks.  ``error``: its standard error."""

    value: float
    error: float
    chunks: int
    tokens: int


def chunks_of(model: LanguageModel, n_tokens: int, n_ctx: int | None = None) -> tuple[int, int]:
    """The number of chunks of a text of ``n_tokens`` tokens, and the number of tokens of a chunk.

    ``n_ctx``: tokens of a chunk; by default :data:`CONTEXT`, or the model's context length if that is smaller.  Raises
    ParameterError if it is less than :data:`LEAST_CONTEXT`, or if the text is shorter than two chunks.
    """
    n_ctx = min(CONTEXT, model.n_ctx) if n_ctx is None else n_ctx
    n_ctx = whole("n_ctx", n_ctx, LEAST_CONTEXT)
    if n_tokens < 2 * n_ctx:
        raise ParameterError(
            f"the text has {n_tokens} tokens; at least two chunks of {n_ctx} are needed",
            got=n_tokens,
            wanted=2 * n_ctx,
            remedy="use a longer text, or a smaller context",
        )
    return n_tokens // int(n_ctx), int(n_ctx)


class Predicted(NamedTuple):
    """Some logits of a chunk, ``(n, n_vocab)``, and the tokens after which they are those of the next, ``(n,)``.

    ``chunk``: its number.  ``first``: the place in the chunk of the first token whose next one is predicted.  ``ends``:
    whether these are the chunk's last.
    """

    chunk: int
    first: int
    logits: npt.NDArray[np.float32]
    following: npt.NDArray[np.int64]
    ends: bool


def predictions(
    model: LanguageModel, chunks: npt.NDArray[np.int64], cache_type: str | Type = "f16"
) -> Iterator[Predicted]:
    """Yields what a model predicts for the second half of each chunk, some tokens at a time.

    ``chunks``: tokens, ``(chunks, n_ctx)``.  Each chunk is decoded separately, :func:`with_bos`.  Raises what sessions
    raise.
    """
    n_ctx = chunks.shape[1]
    with model.session(n_ctx, cache_type=cache_type) as session:
        most = max(1, min(session.micro_batch, LARGEST_RESULT // (4 * model.n_vocab)))
        for number, chunk in enumerate(chunks):
            read = with_bos(model, chunk)
            session.clear()
            session.decode({0: read[: n_ctx // 2]}, Outputs.NONE)
            for start in range(n_ctx // 2, n_ctx - 1, most):
                end = min(start + most, n_ctx - 1)
                logits = session.decode({0: read[start:end]}, Outputs.ALL)[0]
                yield Predicted(number, start, logits, chunk[start + 1 : end + 1], end == n_ctx - 1)


def with_bos(model: LanguageModel, chunk: npt.NDArray[np.int64]) -> list[int]:
    """The tokens of a chunk as they are decoded: the first is replaced by BOS if the model's texts begin with that."""
    tokens, bos = chunk.tolist(), model.tokenizer.bos
    return [bos, *tokens[1:]] if model.tokenizer.vocabulary.add_bos and bos is not None else tokens


def perplexities(
    model: LanguageModel,
    tokens: Sequence[int],
    n_ctx: int | None = None,
    *,
    chunks: int | None = None,
    cache_type: str | Type = "f16",
    keep: Callable[[npt.NDArray[np.float32]], object] | None = None,
) -> Iterator[Perplexity]:
    """Yields the perplexity of a text, after each chunk of ``n_ctx`` tokens that of all chunks so far.

    ``tokens``: the text with its special tokens, which :func:`predictions` reads.  Only the tokens of the second half
    of a chunk are counted, so that each is predicted from at least half a chunk.  Tokens after the last whole chunk are
    ignored.  ``chunks``: maximum number of chunks.  ``keep``: called with all logits, some rows at a time.

    Raises what :func:`chunks_of` and sessions raise; ModelError if logits are not finite.
    """
    total, squares, counted = 0.0, 0.0, 0
    for each in predictions(model, in_chunks(model, tokens, n_ctx, chunks), cache_type):
        surprise = surprises(each.logits, each.following)
        check_finite(surprise, each)
        if keep is not None:
            keep(each.logits)
        total += float(surprise.sum())
        squares += float((surprise**2).sum())
        counted += len(surprise)
        if each.ends:
            mean = total / counted
            variance = max(squares / counted - mean * mean, 0.0)
            value = perplexity_of(mean)
            error = value * math.sqrt(variance / max(counted - 1, 1)) if value < math.inf else math.inf
            yield Perplexity(value, error, each.chunk + 1, counted)


def in_chunks(
    model: LanguageModel, tokens: Sequence[int], n_ctx: int | None = None, chunks: int | None = None
) -> npt.NDArray[np.int64]:
    """The tokens of a text in chunks, ``(chunks, n_ctx)``, at most ``chunks`` of them.

    Raises as :func:`chunks_of`; ParameterError for ids outside of the vocabulary, and for fewer chunks than one.
    """
    count, n_ctx = chunks_of(model, len(tokens), n_ctx)
    if chunks is not None and chunks < 1:
        raise ParameterError(f"chunks must be at least 1, got {chunks}", got=chunks)
    count = count if chunks is None else min(count, chunks)
    return token_ids(tokens, model.n_vocab, "tokens")[: count * n_ctx].reshape(count, n_ctx)


def perplexity_of(mean: float) -> float:
    """exp(mean), infinite where that is no number."""
    return math.exp(mean) if mean < LARGEST else math.inf


def check_finite(surprise: npt.NDArray[np.float64], of: Predicted) -> None:
    """Raises ModelError if a logit, on which a surprise depends, is not finite."""
    if not np.isfinite(surprise).all():
        raise ModelError(f"the logits of chunk {of.chunk} are not finite after its token {of.first}", got=of.chunk)


def surprises(logits: npt.NDArray[np.float32], tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """-log p of each token, from the logits before it, shape ``(n, n_vocab)``."""
    found = np.empty(len(tokens))
    for start in range(0, len(tokens), ROWS):
        rows = logits[start : start + ROWS]
        largest = rows.max(axis=1, keepdims=True)
        sums = np.exp(rows - largest).sum(axis=1, dtype=np.float64)
        chosen = np.take_along_axis(rows, tokens[start : start + ROWS, np.newaxis], axis=1)
        found[start : start + ROWS] = np.log(sums) - (chosen - largest)[:, 0]
    return found
