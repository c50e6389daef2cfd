"""The kinds of drafts, by the names that commands and programs use: the only place that declares them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ggplug.errors import ModelError, ParameterError
from ggplug_models.architectures.eagle3 import Eagle3
from ggplug_models.by_name.lookup import is_name
from ggplug_models.checks.arguments import whole
from ggplug_models.generation.drafts import MOST, DraftModel, Drafts, PromptLookup
from ggplug_models.guessing.head_drafts import HeadDrafts
from ggplug_models.guessing.ngram_drafts import NgramCounts, NgramDrafts
from ggplug_models.loading import load
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.heads import Head, NextBlock


class Settings(NamedTuple):
    """What drafts are made with; see :func:`drafts_for`."""

    n_ctx: int | None = None
    cache_type: str = "f16"
    most: int = MOST
    pack: bool = True


Makes = Callable[[Decoder, int, Settings, contextlib.ExitStack], list[Drafts]]
"""Makes drafts for a number of sequences of a model; the stack releases what they use."""


class Kind(NamedTuple):
    """A kind of drafts.  ``also``: llama.cpp's names of it."""

    what: str
    make: Makes
    also: tuple[str, ...] = ()


def _next_block(model: Decoder, count: int, how: Settings, stack: contextlib.ExitStack) -> list[Drafts]:
    return _of_head(NextBlock(model), count, how, stack)


def _lookup(model: Decoder, count: int, how: Settings, stack: contextlib.ExitStack) -> list[Drafts]:
    return [PromptLookup(how.most) for _ in range(count)]


def _ngrams(model: Decoder, count: int, how: Settings, stack: contextlib.ExitStack) -> list[Drafts]:
    counts = NgramCounts()
    return [NgramDrafts(how.most, counts=counts) for _ in range(count)]


def _of_head(head: Head, count: int, how: Settings, stack: contextlib.ExitStack) -> list[Drafts]:
    session = stack.enter_context(head.session(how.n_ctx, count, how.cache_type))
    return [HeadDrafts(session, seq, most=how.most) for seq in range(count)]


KINDS: dict[str, Kind] = {
    "mtp": Kind("the blocks that the model's file has for it", _next_block, ("draft-mtp",)),
    "lookup": Kind(
        "what followed the same tokens before, in the same text",
        _lookup,
        ("ngram-simple", "ngram-map-k"),
    ),
    "ngrams": Kind(
        "what mostly followed the same tokens, in all texts so far",
        _ngrams,
        ("ngram-map-k4v", "ngram-mod", "ngram-cache"),
    ),
}

NAMES = {name: kind for kind, each in KINDS.items() for name in (kind, *each.also)}
"""The kind for each name, which may be one of llama.cpp's."""


@contextlib.contextmanager
def drafts_for(
    model: Decoder,
    what: str | os.PathLike[str],
    count: int = 1,
    *,
    n_ctx: int | None = None,
    cache_type: str = "f16",
    most: int = MOST,
    pack: bool = True,
) -> Iterator[list[Drafts]]:
    """A ``with`` block with drafts for ``count`` sequences of a model.

    ``what``: one of :data:`NAMES`; or a file, as for :func:`.load`: of a smaller model with the same vocabulary, or of
    an EAGLE 3 head that was made for this model.  ``n_ctx``, ``cache_type``: of their sessions.  ``most``: number of
    draft tokens of a step.  ``pack``: as for :func:`.load`.  Raises ModelError for drafts that the model cannot use,
    and as :func:`.load`.
    """
    how = Settings(n_ctx, cache_type, whole("most", most, 1), pack)
    if not isinstance(model, Decoder):
        raise ModelError(f"{model!r:.100} generates no text, so it can have no drafts", got=model)
    if not isinstance(what, str | os.PathLike) or not (what in NAMES or is_name(str(what)) or os.path.exists(what)):
        known = ", ".join(KINDS)
        raise ParameterError(f"what is {what!r:.100}; it is one of {known}, or a file", got=what, wanted=known)
    with contextlib.ExitStack() as stack:
        if isinstance(what, str) and what in NAMES:
            found = KINDS[NAMES[what]].make(model, whole("count", count, 1), how, stack)
        else:
            found = _of_file(model, what, whole("count", count, 1), how, stack)
        for each in found:
            each.check(model)
        yield found


def _of_file(
    model: Decoder, path: str | os.PathLike[str], count: int, how: Settings, stack: contextlib.ExitStack
) -> list[Drafts]:
    loaded = stack.enter_context(load(path, model.devices, pack=how.pack))
    if isinstance(loaded, Eagle3):
        return _of_head(loaded.head(model), count, how, stack)
    if isinstance(loaded, Decoder):
        return [
            stack.enter_context(DraftModel(loaded, how.n_ctx, most=how.most, cache_type=how.cache_type))
            for _ in range(count)
        ]
    raise loaded.cannot(os.fspath(path), "cannot guess tokens")
