"""The service of one model: its capacity, its worker threads, and its shutdown."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from ggplug.errors import ParameterError
from ggplug_models.generation.drafts import MOST, Drafts
from ggplug_models.guessing.kinds import drafts_for
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.encoder import Encoder
from ggplug_models.serve.metrics import Metrics
from ggplug_models.serve.problems import Problem, shutting_down
from ggplug_models.serve.reply import Served
from ggplug_models.serve.vectors import Embedder
from ggplug_models.serve.writer import Defaults, Writer

Result = TypeVar("Result")

TICK = 0.02
"""Seconds between two checks whether the last answer has ended."""


FINGERPRINT = f"b-ggplug-{version('ggplug-models')}"
"""The programs that compute answers; with the same seed, model and fingerprint an answer is the same."""


@dataclass(frozen=True)
class About:
    """What a server tells about its model.

    ``file``: its file.  ``aliases``: further names.  ``tags``: words for clients that choose among models.  ``pooled``:
    whether embeddings are one vector for each text.
    """

    file: Path = Path()
    aliases: Sequence[str] = ()
    tags: Sequence[str] = ()
    pooled: bool = True


class Service:
    """A model that answers requests of many clients, with threads for what takes long.

    ``name``: the name of the model in the API.  ``writer``: generates texts; None for an encoder.  ``waiting``: maximum
    number of requests that wait, of texts and of embeddings each.  ``about``: what else is told about the model.
    """

    def __init__(
        self,
        model: Decoder | Encoder,
        name: str,
        writer: Writer | None = None,
        *,
        waiting: int = 64,
        about: About | None = None,
    ) -> None:
        self.model = model
        self.name = name
        self.about = about or About()
        self.names = frozenset([name, *self.about.aliases])
        self.writer = writer
        self.created = int(time.time())
        self.embedder = Embedder(model)
        embedder = self.embedder
        self.metrics = Metrics(
            None if writer is None else lambda: writer.batcher.status,
            writer.slots if writer else 0,
            lambda: (embedder.read, embedder.steps),
        )
        self.draining = False
        self._most = {"texts": waiting + (writer.slots if writer else 0), "vectors": waiting + 1}
        self._inside = dict.fromkeys(self._most, 0)
        self._prompts = ThreadPoolExecutor(2, "ggplug prompts")
        self._vectors = ThreadPoolExecutor(1, "ggplug vectors")

    @property
    def texts(self) -> Writer:
        """The writer.  Raises Problem for an encoder."""
        if self.writer is None:
            raise Problem(
                400,
                f"{self.name} is a {self.model.architecture} model, which cannot generate text; use /v1/embeddings",
                param="model",
                code="model_not_supported",
            )
        return self.writer

    @property
    def served(self) -> Served:
        """The model as replies name it.  Raises Problem for an encoder."""
        writer = self.texts
        return Served(self.name, FINGERPRINT, writer.tokenizer, writer.session.n_ctx, writer.slots)

    @property
    def healthy(self) -> bool:
        """Whether requests are accepted."""
        return not self.draining and (self.writer is None or not self.writer.batcher.closed)

    def check_name(self, name: str | None, *, strict: bool = True) -> None:
        """Raises Problem if ``name`` is not a name of this model; None, and any if not ``strict``, is allowed."""
        if strict and name is not None and name not in self.names:
            raise Problem(
                404,
                f"unknown model {name!r:.200}; the model of this server is {self.name!r}",
                param="model",
                code="model_not_found",
            )

    # -- accepted requests --------------------------------------------------------------------------

    @property
    def most_inside(self) -> int:
        """Maximum number of requests that are computed or wait."""
        return sum(self._most.values())

    @property
    def inside(self) -> int:
        """Number of requests that are computed or wait."""
        return sum(self._inside.values())

    def check_capacity(self, kind: str) -> None:
        """Raises Problem if there are too many requests of this kind, or the service shuts down."""
        if self.draining:
            raise shutting_down()
        if self._inside[kind] >= self._most[kind]:
            raise Problem(
                429,
                f"too many requests: {self._inside[kind]} are computed or wait; try again later",
                code="rate_limit_exceeded",
            )

    def enter(self, kind: str) -> None:
        """Counts a request as accepted; :meth:`leave` must follow.  Raises as :meth:`check_capacity` does."""
        self.check_capacity(kind)
        self._inside[kind] += 1

    def leave(self, kind: str) -> None:
        """Counts a request as finished: it was answered, or its client disconnected."""
        self._inside[kind] -= 1

    # -- worker threads -----------------------------------------------------------------------------

    async def prepared(self, prepare: Callable[[], Result]) -> Result:
        """Runs a function that checks a body and tokenizes its texts, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._prompts, prepare)

    async def embedded(self, compute: Callable[[threading.Event], Result], cancelled: threading.Event) -> Result:
        """Runs a function that computes vectors, in the one thread for that."""
        return await asyncio.get_running_loop().run_in_executor(self._vectors, compute, cancelled)

    # -- shutdown -----------------------------------------------------------------------------------

    async def drain(self, patience: float, forced: Callable[[], bool]) -> None:
        """Refuses new requests, waits until accepted ones are answered, and closes the service.

        It waits for ``patience`` seconds at most, and until ``forced()`` is true.
        """
        self.draining = True
        end = time.monotonic() + patience
        while self.inside and time.monotonic() < end and not forced():
            await asyncio.sleep(TICK)
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def close(self) -> None:
        """Cancels all texts and frees the sessions; the caller frees the model."""
        self.draining = True
        if self.writer is not None:
            self.writer.close()
        self._prompts.shutdown(cancel_futures=True)
        self._vectors.shutdown(cancel_futures=True)


@contextmanager
def serving(
    model: Decoder | Encoder,
    name: str,
    *,
    slots: int = 4,
    context: int | None = None,
    cache_type: str = "f16",
    waiting: int = 64,
    template: str | None = None,
    defaults: Defaults | None = None,
    piece: int = 128,
    about: About | None = None,
    draft: str | os.PathLike[str] | None = None,
    draft_tokens: int = MOST,
) -> Iterator[Service]:
    """A ``with`` block with the service of a model; see :class:`.Writer` for the parameters.

    ``draft``, ``draft_tokens``: what guesses tokens, and how many in a step; see :func:`.drafts_for`.
    """
    if not isinstance(model, (Decoder, Encoder)):
        raise ParameterError(
            f"{name} is a {type(model).__name__}; only language models and encoders can be served", got=model
        )
    with ExitStack() as stack:
        writer = None
        if isinstance(model, Decoder):
            drafts: list[Drafts] = []
            if draft is not None:
                drafts = stack.enter_context(drafts_for(model, draft, slots, n_ctx=context, most=draft_tokens))
            writer = Writer(
                model,
                slots=slots,
                context=context,
                cache_type=cache_type,
                waiting=waiting,
                template=template,
                defaults=defaults,
                piece=piece,
                drafts=drafts,
            )
        elif draft is not None:
            raise ParameterError(f"{name} generates no text, so it can have no drafts", got=draft)
        service = Service(model, name, writer, waiting=waiting, about=about)
        stack.callback(service.close)
        yield service
