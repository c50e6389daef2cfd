"""What a server holds in memory while its model is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ggplug.errors import DeviceLostError, FreedError, ParameterError
from ggplug_models.commands.options import adapted
from ggplug_models.generation.drafts import MOST, Drafts
from ggplug_models.guessing.kinds import drafts_for
from ggplug_models.layers.patches import Patching
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.encoder import Encoder
from ggplug_models.networks.encoder_decoder import EncoderDecoder
from ggplug_models.networks.network import Network
from ggplug_models.serve.batcher import Counts
from ggplug_models.serve.vectors import Embedder
from ggplug_models.serve.writer import Writer

Model = Decoder | Encoder

Opens = Callable[[], AbstractContextManager[Network]]
"""Loads a model, and frees it at the end of the block."""


@dataclass(frozen=True)
class Loaded:
    """What computes with a model.  ``writer``: generates texts; None for an encoder.

    ``adapters``: the model's LoRA adapters; those of the model that is loaded after a device was lost, too.
    """

    embedder: Embedder
    writer: Writer | None = None
    adapters: Sequence[Patching] = ()

    @property
    def model(self) -> Model:
        """The model; another object after a device was lost."""
        return self.embedder.model


@contextmanager
def loaded(
    opens: Opens,
    name: str,
    counts: Counts,
    *,
    slots: int = 4,
    context: int | None = None,
    draft: str | os.PathLike[str] | None = None,
    draft_tokens: int = MOST,
    adapters: Sequence[tuple[Path, float]] = (),
    replays: bool = False,
    **writing: Any,
) -> Iterator[Loaded]:
    """A ``with`` block with what computes with a model, which is loaded again when a device was lost.

    ``opens``: loads it.  ``counts``: where work is counted.  ``slots``, ``context``, ``writing``: of a language model,
    see :class:`.Writer`.  ``draft``, ``draft_tokens``: what guesses tokens, and how many in a step; see
    :func:`.drafts_for`.  ``adapters``: the files of LoRA adapters, with their scales.  ``replays``: whether what is
    computed when a device is lost is computed again.
    """
    with ExitStack() as stack:
        held = stack.enter_context(ExitStack())

        def load() -> tuple[Any, list[Patching], list[Drafts]]:
            """Loads the model and its adapters and makes its drafts, instead of those before."""
            held.close()
            model = held.enter_context(opens())
            if not isinstance(model, (Decoder, Encoder)):
                raise model.cannot(name, "cannot be served: only language models and encoders can")
            if isinstance(model, EncoderDecoder):
                raise ParameterError(
                    f"{name} reads a source text before it writes, which the server does not compute",
                    got=model,
                    remedy="use ggplug run, or generate(text) in Python",
                )
            made = adapted(held, model, adapters)
            if draft is None:
                return model, made, []
            if not isinstance(model, Decoder):
                raise ParameterError(f"{name} generates no text, so it can have no drafts", got=draft)
            return model, made, held.enter_context(drafts_for(model, draft, slots, n_ctx=context, most=draft_tokens))

        def again() -> tuple[Any, list[Drafts]]:
            found.embedder.model, others, drafts = load()
            for adapter, other in zip(made, others, strict=True):  # requests that wait know the adapters of before
                adapter.move(other)
            return found.embedder.model, drafts

        def restore(lost: Model, error: DeviceLostError | FreedError) -> None:
            if found.writer is not None:
                found.writer.restore(error, lost)
            elif isinstance(error, DeviceLostError):
                again()
            else:
                raise error

        model, made, drafts = load()
        embedder, writer = Embedder(model, counts, restore, replays=replays), None
        if isinstance(model, Decoder):
            writer = Writer(
                model,
                slots=slots,
                context=context,
                drafts=drafts,
                adapters=made,
                counts=counts,
                again=again,
                replays=replays,
                **writing,
            )
            stack.callback(writer.close)
        found = Loaded(embedder, writer, made)
        yield found
