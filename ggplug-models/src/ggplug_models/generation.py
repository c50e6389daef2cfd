"""The generation loop: a token after the other, each chosen from the logits after those before it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ggplug_models.sampling.sampler import Chooses, Logits
from ggplug_models.session import Session


def greedy(logits: Logits, history: Sequence[int]) -> int:
    """The token with the largest logit."""
    return int(logits.argmax())


def generate(
    session: Session, prompt: Sequence[int], max_tokens: int | None = None, *, choose: Chooses = greedy,
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
    history = list(prompt)
    most = session.n_ctx - len(prompt) + 1
    for remaining in range(most if max_tokens is None else min(most, max_tokens), 0, -1):
        token = choose(logits, history)
        history.append(token)
        yield token
        if token in end or remaining == 1:
            return
        logits = session.decode({seq: [token]})[seq]
