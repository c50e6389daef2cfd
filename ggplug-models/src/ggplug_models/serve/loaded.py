"""What a server holds in memory while its model is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from ggplug.errors import ParameterError
from ggplug_models.generation.drafts import MOST, Drafts
from ggplug_models.guessing.kinds import drafts_for
from ggplug_models.layers.patches import Patching
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.encoder import Encoder
from ggplug_models.networks.encoder_decoder import EncoderDecoder
from ggplug_models.serve.batcher import Counts
from ggplug_models.serve.vectors import Embedder
from ggplug_models.serve.writer import Writer


@dataclass(frozen=True)
class Loaded:
    """A model, and what computes with it.  ``writer``: generates texts; None for an encoder.

    ``adapters``: the model's LoRA adapters.
    """

    model: Decoder | Encoder
    embedder: Embedder
    writer: Writer | None = None
    adapters: Sequence[Patching] = ()


@contextmanager
def loaded(
    model: Decoder | Encoder,
    name: str,
    counts: Counts,
    *,
    slots: int = 4,
    context: int | None = None,
    draft: str | os.PathLike[str] | None = None,
    draft_tokens: int = MOST,
    adapters: Sequence[Patching] = (),
    **writing: Any,
) -> Iterator[Loaded]:
    """A ``with`` block with what computes with a model, which the caller frees.

    ``counts``: where work is counted.  ``slots``, ``context``, ``writing``: of a language model, see :class:`.Writer`.
    ``adapters``: of the model.  ``draft``, ``draft_tokens``: what guesses tokens, and how many in a step; see
    :func:`.drafts_for`.
    """
    if not isinstance(model, (Decoder, Encoder)):
        raise model.cannot(name, "cannot be served: only language models and encoders can")
    if isinstance(model, EncoderDecoder):
        raise ParameterError(
            f"{name} reads a source text before it writes, which the server does not compute",
            got=model,
            remedy="use ggplug run, or generate(text) in Python",
        )
    with ExitStack() as stack:
        writer = None
        if isinstance(model, Decoder):
            drafts: list[Drafts] = []
            if draft is not None:
                drafts = stack.enter_context(drafts_for(model, draft, slots, n_ctx=context, most=draft_tokens))
            writer = Writer(
                model, slots=slots, context=context, drafts=drafts, adapters=adapters, counts=counts, **writing
            )
            stack.callback(writer.close)
        elif draft is not None:
            raise ParameterError(f"{name} generates no text, so it can have no drafts", got=draft)
        yield Loaded(model, Embedder(model, counts), writer, adapters)
