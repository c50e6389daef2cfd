"""The generation loop: decodes tokens, chooses the next from the logits, and repeats."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TypedDict

from ggplug.errors import BusyError, FreedError, ParameterError
from ggplug.hookspecs import HOOKS
from ggplug_models.checks.arguments import check_callable, whole
from ggplug_models.checks.ids import token_ids
from ggplug_models.generation.drafts import Drafts
from ggplug_models.metadata.values import short_repr
from ggplug_models.sampling.sampler import Chooses, Logits, Sampler, check_largest
from ggplug_models.state.adapting import Lora, checked_scales
from ggplug_models.state.batching import FEW
from ggplug_models.state.session import LanguageModel, Session
from ggplug_models.state.steps import Outputs


def greedy(logits: Logits, history: Sequence[int]) -> int:
    """The token with the largest logit.  Raises LogitsError if that is not finite."""
    token = int(logits.argmax())  # the position of a NaN, if there is one
    check_largest(logits[token])
    return token


class Options(TypedDict, total=False):
    """Options of all methods that generate.

    ``choose``: chooses each token, such as a :class:`~ggplug_models.sampling.Sampler`; by default :func:`greedy`.
    ``draft``: guesses tokens for speculative decoding (:mod:`.drafts`); it does not change the text.  ``lora``: scales
    of adapters for this text, as for :meth:`.Session.adapt`; None: those that the session has for the sequence.
    """

    choose: Chooses
    draft: Drafts | None
    lora: Lora | None


class TextOptions(Options, total=False):
    """Options of all methods that generate text, in addition to :class:`Options`.

    ``stop``: stop strings, which end the text and are not part of it.  ``session``: a session of the model; by default
    one is made for this text.
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
    source: Sequence[int] | None = None,
    lora: Lora | None = None,
) -> Iterator[int]:
    """Yields the tokens that follow ``prompt``, each as soon as it is chosen.

    ``session``: a session, or a model, which then makes a session for this generation.  ``seq``: the sequence of the
    session to use.  ``end``: end tokens.  ``choose``, ``draft``, ``lora``: see :class:`Options`.  ``source``: what an
    encoder-decoder reads first; by default the source text of the sequence.

    The tokens that the sequence has in common with the start of the prompt are not computed again; its other tokens
    are forgotten.  The generation ends after an end token, which is yielded as well, after ``max_tokens`` tokens, or
    when the context is full.  The token that was yielded last is not yet in the session.  If the caller changes the
    sequence between two tokens, it gets the adapters and the source text of this generation again, is rewound to where
    it differs from this text, and the rest is decoded again.

    The arguments are checked by the call; the prompt is decoded when the caller takes the first token.

    Raises ParameterError, ContextFullError for a prompt longer than the context, ModelError for a draft that the model
    cannot use, and what ``choose`` raises, such as LogitsError for logits that are NaN.
    """
    model = session.model if isinstance(session, Session) else session
    check_callable("choose", choose, "a function of the logits and the tokens before, such as a Sampler")
    if draft is not None:
        if not isinstance(draft, Drafts):
            wanted = "a Drafts object, such as PromptLookup()"
            raise ParameterError(f"draft must be {wanted}, got {short_repr(draft)}", got=draft, wanted=wanted)
        draft.check(model)
    if max_tokens is not None:
        whole("max_tokens", max_tokens)
    token_ids(prompt, model.n_vocab, "prompt")
    if source is not None:
        token_ids(source, model.n_vocab, "source")
    checked_scales(lora, model.patches)
    return _generated(session, prompt, max_tokens, end, seq, choose, draft, source, lora)


def _generated(
    source: Session | LanguageModel,
    prompt: Sequence[int],
    max_tokens: int | None,
    end: Collection[int],
    seq: int,
    choose: Chooses,
    draft: Drafts | None,
    source_text: Sequence[int] | None,
    lora: Lora | None,
) -> Iterator[int]:
    with contextlib.nullcontext(source) if isinstance(source, Session) else source.session() as session:
        if isinstance(choose, Sampler):
            choose.begin(lambda: session.model.tokenizer)
        choose = HOOKS.timed("sampling", choose)
        n_vocab = session.model.n_vocab
        given = session.source(seq) if source_text is None else tuple(source_text)
        if lora is not None:
            session.adapt(lora, seq)
        basis = session.basis(seq)._replace(source=given)
        session.set_basis(basis, seq)
        decode = session.decode if draft is None or not draft.names else partial(session.decode, reader=draft)
        kept = session.keep_prefix(prompt, seq)
        logits = [decode({seq: prompt[kept:]})[seq]]
        history = list(prompt)
        changes = session.changes(seq)
        free = session.n_ctx - len(prompt) + 1
        remaining = free if max_tokens is None else min(free, int(max_tokens))
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
                # More than FEW tokens may be computed by other kernels, with other last bits.
                # A ring holds one micro-batch more than its window, so at most that many tokens can be rewound.
                most = min(remaining, session.micro_batch, FEW) - 1
                guessed = [] if draft is None else draft.next(history, most, n_vocab)
                read = [*history, *guessed] if guessed else history
                if session.changes(seq) != changes:  # the caller changed the sequence between two tokens
                    session.set_basis(basis, seq)
                    kept, guessed, read = session.keep_prefix(history, seq), [], history
                    logits = [decode({seq: history[kept:]})[seq]]
                elif draft is None or not guessed:
                    logits = [decode({seq: [token]})[seq]]
                else:
                    draft.drafted += len(guessed)
                    logits = list(decode({seq: [token, *guessed]}, Outputs.ALL)[seq])
                changes = session.changes(seq)
        finally:
            if guessed and session.tokens(seq) == tuple(read):  # the caller stopped before the last draft token
                with contextlib.suppress(BusyError, FreedError):  # the session may be in use, or freed
                    session.rewind(len(history) - 1, seq)
