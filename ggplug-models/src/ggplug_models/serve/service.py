"""One model for many clients: what it offers, how many it takes, and how it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from ggplug.errors import ParameterError
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.encoder import Encoder
from ggplug_models.serve.metrics import Metrics
from ggplug_models.serve.problems import Problem, shutting_down
from ggplug_models.serve.vectors import Embedder
from ggplug_models.serve.writer import Writer

Result = TypeVar("Result")

TICK = 0.02
"""Seconds between two looks at whether the last answer has ended."""


class Service:
    """``name``: what clients call the model.  ``writer``: None for an encoder, which writes no texts.

    ``waiting``: requests that may wait, of texts and of vectors each.  What takes time runs in its threads.
    """

    def __init__(self, model: Decoder | Encoder, name: str, writer: Writer | None = None, *, waiting: int = 64) -> None:
        self.model = model
        self.name = name
        self.writer = writer
        self.created = int(time.time())
        self.embedder = Embedder(model)
        self.metrics = Metrics(None if writer is None else lambda: writer.batcher.status, writer.slots if writer else 0)
        self.draining = False
        self._most = {"texts": waiting + (writer.slots if writer else 0), "vectors": waiting + 1}
        self._inside = dict.fromkeys(self._most, 0)
        self._prompts = ThreadPoolExecutor(2, "ggplug prompts")
        self._vectors = ThreadPoolExecutor(1, "ggplug vectors")

    @property
    def texts(self) -> Writer:
        """What writes texts.  Raises Problem where nothing does."""
        if self.writer is None:
            raise Problem(
                400,
                f"{self.name} is a {self.model.architecture} model, which writes no texts; "
                "it embeds them: /v1/embeddings",
                param="model",
                code="model_not_supported",
            )
        return self.writer

    @property
    def healthy(self) -> bool:
        """Whether requests are taken."""
        return not self.draining and (self.writer is None or not self.writer.batcher.closed)

    def check_name(self, name: str | None) -> None:
        """Raises Problem for another model than the one that there is; clients need not name it."""
        if name is not None and name != self.name:
            raise Problem(
                404,
                f"there is no model {name!r:.200}; this server has {self.name!r}",
                param="model",
                code="model_not_found",
            )

    # -- who is inside -----------------------------------------------------------------------------

    @property
    def most_inside(self) -> int:
        """How many requests may be computed or wait."""
        return sum(self._most.values())

    @property
    def inside(self) -> int:
        """Requests that are computed or wait."""
        return sum(self._inside.values())

    def check_capacity(self, kind: str) -> None:
        """Raises Problem where there are too many requests, or at the end."""
        if self.draining:
            raise shutting_down()
        if self._inside[kind] >= self._most[kind]:
            raise Problem(
                429,
                f"too many requests: {self._inside[kind]} are computed or wait; try again later",
                code="rate_limit_exceeded",
            )

    def enter(self, kind: str) -> None:
        """Lets a request in; :meth:`leave` has to follow.  Raises what :meth:`check_capacity` does."""
        self.check_capacity(kind)
        self._inside[kind] += 1

    def leave(self, kind: str) -> None:
        """A request has been answered, or its client has left."""
        self._inside[kind] -= 1

    # -- what takes time ---------------------------------------------------------------------------

    async def prepared(self, prepare: Callable[[], Result]) -> Result:
        """What a function returns that checks a body and makes token ids of it, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._prompts, prepare)

    async def embedded(self, compute: Callable[[threading.Event], Result], cancelled: threading.Event) -> Result:
        """What a function returns that computes vectors, one request after the other."""
        return await asyncio.get_running_loop().run_in_executor(self._vectors, compute, cancelled)

    # -- the end -----------------------------------------------------------------------------------

    async def drain(self, patience: float, forced: Callable[[], bool]) -> None:
        """Takes no more requests, and waits until those inside have been answered.

        What takes more than ``patience`` seconds, or lasts until it is ``forced``, is ended.
        """
        self.draining = True
        end = time.monotonic() + patience
        while self.inside and time.monotonic() < end and not forced():
            await asyncio.sleep(TICK)
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def close(self) -> None:
        """Ends all texts and frees the sessions; the model is the caller's."""
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
) -> Iterator[Service]:
    """The service of a model, for as long as the block lasts; see :class:`.Writer` for the settings of texts."""
    if not isinstance(model, (Decoder, Encoder)):
        raise ParameterError(f"{name} is a model of the kind {type(model).__name__}, which cannot be served", got=model)
    writer = None
    if isinstance(model, Decoder):
        writer = Writer(model, slots=slots, context=context, cache_type=cache_type, waiting=waiting, template=template)
    service = Service(model, name, writer, waiting=waiting)
    try:
        yield service
    finally:
        service.close()
