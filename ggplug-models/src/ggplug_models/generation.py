"""The generation loop: a token after the other, each chosen from the logits after those before it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ggplug_models.session import Session

Floats = npt.NDArray[np.float32]
Choose = Callable[[Floats], int]
"""Chooses a token by the logits, float32 [n_vocab]."""


def greedy(logits: Floats) -> int:
    """The token with the largest logit."""
    return int(logits.argmax())


def generate(
    session: Session, prompt: Sequence[int], max_tokens: int | None = None, *, choose: Choose = greedy,
    end: Collection[int] = (), seq: int = 0,
) -> Iterator[int]:  # fmt: skip
    """The tokens that follow ``prompt``, each as soon as it is chosen.

    What a sequence of the session has in common with the prompt is not computed again; the rest of it is forgotten.
    Ends behind a token of ``end``, which is yielded too, after ``max_tokens``, and where the context is full.  A token
    that was yielded last is not yet part of the session.  Raises ParameterError, ContextFullError for a prompt that is
    too long.
    """
    kept = session.keep_prefix(prompt, seq)
    logits = session.decode({seq: prompt[kept:]})[seq]
    most = session.n_ctx - len(prompt) + 1
    for remaining in range(most if max_tokens is None else min(most, max_tokens), 0, -1):
        token = choose(logits)
        yield token
        if token in end or remaining == 1:
            return
        logits = session.decode({seq: [token]})[seq]
