"""The generation loop: a token after the other, each chosen from the logits after those before it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import TypedDict

from ggplug.errors import BusyError, FreedError, ParameterError
from ggplug_models.checks.arguments import check_callable, whole
from ggplug_models.checks.ids import token_ids
from ggplug_models.generation.drafts import Drafts
from ggplug_models.metadata.values import shown
from ggplug_models.sampling.sampler import Chooses, Logits, Sampler, check_largest
from ggplug_models.state.session import LanguageModel, Session
from ggplug_models.state.steps import Asked


def greedy(logits: Logits, history: Sequence[int]) -> int:
    """The token with the largest logit.  Raises LogitsError for logits that tell none."""
    token = int(logits.argmax())  # of a NaN, where there is one
    check_largest(logits[token])
    return token


class Options(TypedDict, total=False):
    """How the tokens of a text are found, for all that generates.

    ``choose``: chooses each of them, such as a :class:`~ggplug_models.sampling.Sampler`; by default :func:`greedy`.
    ``draft``: guesses tokens, so that several are computed in one step (:mod:`.drafts`); the text is the same.
    """

    choose: Chooses
    draft: Drafts | None


class TextOptions(Options, total=False):
    """The same, and where a text ends, and is remembered.

    ``stop``: strings that end it; they are not part of it.  ``session``: of the model; by default one that is made for
    this text.
    """

    stop: Sequence[str]
    session: Session | None


def generate(
    session: Session | LanguageModel,
    prompt: Sequence[int],
    max_tokens: int | None = None,
    *,
    end: Collection[int] = (),
    seq: int = 0,
    choose: Chooses = greedy,
    draft: Drafts | None = None,
) -> Iterator[int]:
    """The tokens that follow ``prompt``, each as soon as it is chosen.

    ``session``: or a model, which makes one for this when the first token is asked for.  ``choose``, ``draft``: see
    :class:`Options`.

    What a sequence of the session has in common with the prompt is not computed again; the rest of it is forgotten.
    Ends behind a token of ``end``, which is yielded too, after ``max_tokens``, and where the context is full.  A token
    that was yielded last is not yet part of the session.  If the caller uses the sequence for another text in
    between, this one is read again from where they differ.

    Raises ParameterError, ContextFullError for a prompt that is too long, ModelError for a draft that the model has no
    use for, and what ``choose`` does, such as LogitsError for logits that are NaN.

    Arguments are looked at in the call; the prompt is computed when the first token is asked for.
    """
    model = session.model if isinstance(session, Session) else session
    check_callable("choose", choose, "what is called with logits and the tokens before, such as a Sampler")
    if draft is not None:
        if not isinstance(draft, Drafts):
            wanted = "a draft, such as PromptLookup()"
            raise ParameterError(f"draft must be {wanted}, got {shown(draft)}", got=draft, wanted=wanted)
        draft.check(model)
    if max_tokens is not None:
        whole("max_tokens", max_tokens)
    token_ids(prompt, model.n_vocab, "prompt")
    return _generated(session, prompt, max_tokens, end, seq, choose, draft)


def _generated(
    given: Session | LanguageModel,
    prompt: Sequence[int],
    max_tokens: int | None,
    end: Collection[int],
    seq: int,
    choose: Chooses,
    draft: Drafts | None,
) -> Iterator[int]:
    with contextlib.nullcontext(given) if isinstance(given, Session) else given.session() as session:
        if isinstance(choose, Sampler):
            choose.begin(lambda: session.model.tokenizer)
        n_vocab = session.model.n_vocab
        kept = session.keep_prefix(prompt, seq)
        logits = [session.decode({seq: prompt[kept:]})[seq]]
        history = list(prompt)
        changes = session.changes(seq)
        room = session.n_ctx - len(prompt) + 1
        remaining = room if max_tokens is None else min(room, int(max_tokens))
        guessed: list[int] = []
        read = history
        try:
            while remaining > 0:
                for each, guess in zip(logits, [*guessed, None], strict=True):
                    token = whole("the token that was chosen", choose(each, history), 0, n_vocab - 1)
                    history.append(token)
                    remaining -= 1
                    right = token == guess
                    if draft is not None and right:
                        draft.accepted += 1
                    if guessed and (not right or remaining == 0) and session.changes(seq) == changes:
                        session.rewind(len(history) - 1, seq)
                        changes = session.changes(seq)
                    yield token
                    if token in end or remaining == 0:
                        return
                    if not right:
                        break
                # A ring has room for one step behind its window: so much can be taken back.
                most = min(remaining, session.micro_batch) - 1
                guessed = [] if draft is None else draft.next(history, most, n_vocab)
                read = [*history, *guessed] if guessed else history
                if session.changes(seq) != changes:  # somebody else went on with the sequence meanwhile
                    kept, guessed, read = session.keep_prefix(history, seq), [], history
                    logits = [session.decode({seq: history[kept:]})[seq]]
                elif draft is None or not guessed:
                    logits = [session.decode({seq: [token]})[seq]]
                else:
                    draft.drafted += len(guessed)
                    logits = list(session.decode({seq: [token, *guessed]}, Asked.ALL)[seq])
                changes = session.changes(seq)
        finally:
            if guessed and session.tokens(seq) == tuple(read):  # the caller left between drafted tokens
                with contextlib.suppress(BusyError, FreedError):  # or ends this while something else is computed
                    session.rewind(len(history) - 1, seq)
