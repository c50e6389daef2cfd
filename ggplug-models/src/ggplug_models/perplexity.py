"""How surprised a language model is by a text, as llama.cpp's ``llama-perplexity`` measures it."""

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
"""Tokens of a chunk, unless another number is asked for, or the model takes fewer."""

LEAST_CONTEXT = 4

LARGEST = math.log(sys.float_info.max)
"""The mean from which on the exponential is infinite."""

ROWS = 16
"""Rows of logits that are looked at together: copies of more would not stay in a cache."""


class Perplexity(NamedTuple):
    """The exponential of the mean of -log p over ``tokens`` tokens of ``chunks`` chunks, with its standard error."""

    value: float
    error: float
    chunks: int
    tokens: int


def chunks_of(model: LanguageModel, n_tokens: int, n_ctx: int | None = None) -> tuple[int, int]:
    """How many chunks a text of ``n_tokens`` tokens has, and the tokens of each.

    ``n_ctx``: by default :data:`CONTEXT`, or as many as the model takes.  Raises ParameterError for fewer than
    :data:`LEAST_CONTEXT`, and for a text that is shorter than two chunks.
    """
    n_ctx = min(CONTEXT, model.n_ctx) if n_ctx is None else n_ctx
    n_ctx = whole("n_ctx", n_ctx, LEAST_CONTEXT)
    if n_tokens < 2 * n_ctx:
        raise ParameterError(
            f"the text has {n_tokens} tokens; two chunks of {n_ctx} are the least that is measured",
            got=n_tokens,
            wanted=2 * n_ctx,
            remedy="take a longer text, or a smaller context",
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
    """The perplexity of a text in chunks of ``n_ctx`` tokens: after each chunk that of all so far.

    ``tokens``: with the special tokens that the model wants.  Each chunk is read by itself, its first token replaced by
    BOS where the model wants that; the tokens of the second half are counted, so that each is predicted from at least
    half a chunk.  Tokens behind the last whole chunk are left out.  ``chunks``: only so many, from the first on.

    Raises as :func:`chunks_of` does; ModelError if logits are not finite; what a session raises.
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
            given = wanted.copy()
            if vocabulary.add_bos and model.tokenizer.bos is not None:
                given[0] = model.tokenizer.bos
            session.clear()
            session.decode({0: given[:first].tolist()}, Outputs.NONE)
            for start in range(first, n_ctx - 1, most):
                end = min(start + most, n_ctx - 1)
                logits = session.decode({0: given[start:end].tolist()}, Outputs.ALL)[0]
                surprise = surprises(logits, wanted[start + 1 : end + 1])
                if not np.isfinite(surprise).all():
                    raise ModelError(f"logits of chunk {chunk} behind its token {start} are not finite", got=chunk)
                total += float(surprise.sum())
                squares += float((surprise**2).sum())
                counted += end - start
            mean = total / counted
            variance = max(squares / counted - mean * mean, 0.0)
            value = math.exp(mean) if mean < LARGEST else math.inf
            error = value * math.sqrt(variance / max(counted - 1, 1)) if mean < LARGEST else math.inf
            yield Perplexity(value, error, chunk + 1, counted)


def surprises(logits: npt.NDArray[np.float32], tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """-log p of each token, by the logits before it, [n, n_vocab]."""
    found = np.empty(len(tokens))
    for start in range(0, len(tokens), ROWS):
        rows = logits[start : start + ROWS]
        largest = rows.max(axis=1, keepdims=True)
        sums = np.exp(rows - largest).sum(axis=1, dtype=np.float64)
        chosen = np.take_along_axis(rows, tokens[start : start + ROWS, np.newaxis], axis=1)
        found[start : start + ROWS] = np.log(sums) - (chosen - largest)[:, 0]
    return found
