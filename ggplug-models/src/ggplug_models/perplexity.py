"""The perplexity of a text for a language model, as llama.cpp's ``llama-perplexity`` measures it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
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


def perplexities(
    model: LanguageModel,
    tokens: Sequence[int],
    n_ctx: int | None = None,
    *,
    chunks: int | None = None,
    cache_type: str | Type = "f16",
) -> Iterator[Perplexity]:
    """Yields the perplexity of a text, after each chunk of ``n_ctx`` tokens that of all chunks so far.

    ``tokens``: the text with its special tokens.  Each chunk is decoded separately, with its first token replaced by
    BOS if the model's texts begin with that.  Only the tokens of its second half are counted, so that each is predicted
    from at least half a chunk.  Tokens after the last whole chunk are ignored.  ``chunks``: maximum number of chunks.

    Raises what :func:`chunks_of` and sessions raise; ModelError if logits are not finite.
    """
    count, n_ctx = chunks_of(model, len(tokens), n_ctx)
    if chunks is not None and chunks < 1:
        raise ParameterError(f"chunks must be at least 1, got {chunks}", got=chunks)
    ids = token_ids(tokens, model.n_vocab, "tokens")
    vocabulary = model.tokenizer.vocabulary
    first, total, squares, counted = n_ctx // 2, 0.0, 0.0, 0
    with model.session(n_ctx, cache_type=cache_type) as session:
        most = max(1, min(session.micro_batch, LARGEST_RESULT // (4 * model.n_vocab)))
        for chunk in range(count if chunks is None else min(count, chunks)):
            wanted = ids[chunk * n_ctx : (chunk + 1) * n_ctx]
            read = wanted.copy()
            if vocabulary.add_bos and model.tokenizer.bos is not None:
                read[0] = model.tokenizer.bos
            session.clear()
            session.decode({0: read[:first].tolist()}, Outputs.NONE)
            for start in range(first, n_ctx - 1, most):
                end = min(start + most, n_ctx - 1)
                logits = session.decode({0: read[start:end].tolist()}, Outputs.ALL)[0]
                surprise = surprises(logits, wanted[start + 1 : end + 1])
                if not np.isfinite(surprise).all():
                    raise ModelError(f"the logits of chunk {chunk} are not finite after its token {start}", got=chunk)
                total += float(surprise.sum())
                squares += float((surprise**2).sum())
                counted += end - start
            mean = total / counted
            variance = max(squares / counted - mean * mean, 0.0)
            value = math.exp(mean) if mean < LARGEST else math.inf
            error = value * math.sqrt(variance / max(counted - 1, 1)) if mean < LARGEST else math.inf
            yield Perplexity(value, error, chunk + 1, counted)


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
