"""The service of one model: when it is loaded, its capacity, its worker threads, and its shutdown."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from ggplug.errors import in_one_line
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.denoiser import Denoiser
from ggplug_models.networks.encoder import Encoder
from ggplug_models.serve.batcher import Counts, Status
from ggplug_models.serve.loaded import Loaded, loaded
from ggplug_models.serve.metrics import Metrics
from ggplug_models.serve.problems import Problem, shutting_down, too_many
from ggplug_models.serve.reply import Served
from ggplug_models.serve.vectors import Embedder
from ggplug_models.serve.writer import Writer, check_adapter

LOG = logging.getLogger("ggplug.serve")

Result = TypeVar("Result")

TICK = 0.02
"""Seconds between two checks whether the last answer has ended."""


FINGERPRINT = f"b-ggplug-{version('ggplug-models')}"
"""The programs that compute answers; with the same seed, model and fingerprint an answer is the same."""


@dataclass(frozen=True)
class About:
    """What a server tells about its model.

    ``file``: its file.  ``aliases``: further names.  ``tags``: words for clients that choose among models.  ``pooled``:
    whether embeddings are one vector for each text.  ``adapters``: its LoRA adapters, with their scales.
    """

    file: Path = Path()
    aliases: Sequence[str] = ()
    tags: Sequence[str] = ()
    pooled: bool = True
    adapters: Sequence[tuple[Path, float]] = ()


class State(StrEnum):
    """Whether a model is in memory; SLEEPING: its memory was released after some time without requests."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    SLEEPING = "sleeping"


Opens = Callable[[Counts], AbstractContextManager[Loaded]]
"""Loads a model, and releases its memory at the end of the block."""


class Service:
    """A model that answers requests of many clients, with threads for what takes long.

    The model is loaded by :meth:`open`, or by the first block of :meth:`used`, and may be released between two such
    blocks.  What is known about it stays known.

    ``name``: the name of the model in the API.  ``opens``: loads it.  ``slots``: number of texts generated at the same
    time.  ``waiting``: maximum number of requests that wait, of texts and of embeddings each.  ``about``: what else is
    told about the model.  ``idle``: seconds without requests after which its memory is released; None: never.
    """

    def __init__(
        self,
        name: str,
        opens: Opens,
        *,
        slots: int = 4,
        waiting: int = 64,
        about: About | None = None,
        idle: float | None = None,
    ) -> None:
        self.name = name
        self.about = about or About()
        self.names = frozenset([name, *self.about.aliases])
        self.scales = [scale for _, scale in self.about.adapters]
        """Those of its LoRA adapters, for requests that choose none."""
        self.created = int(time.time())
        self.counts = Counts()
        self.metrics = Metrics(lambda: self.status, lambda: 0 if self._last is None or self.writer is None else slots)
        self.draining = False
        self.state = State.UNLOADED
        self.failed = False
        """Whether the last attempt to load the model failed."""
        self.users = self.waiting = 0
        """Number of blocks of :meth:`used`, and of those of them that wait until the model may be loaded."""
        self.rested = time.monotonic()
        """When the last of them ended."""
        self._opens = opens
        self._idle = self._kept = idle
        self._next = State.SLEEPING
        self._last: Loaded | None = None
        self._open: ExitStack | None = None
        self._opening = threading.Lock()
        self._changing = asyncio.Lock()
        self._loading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._resting: asyncio.Task[None] | None = None
        self._most = {"texts": waiting + slots, "vectors": waiting + 1}
        self._inside = dict.fromkeys(self._most, 0)
        self._prompts = ThreadPoolExecutor(2, "ggplug prompts")
        self._vectors = ThreadPoolExecutor(1, "ggplug vectors")
        """Computes vectors, and loads and releases the model, when there are none to compute."""
        self._computing: set[threading.Event] = set()
        """What cancels the vectors that are computed, or wait for that."""

    # -- loading, and releasing memory --------------------------------------------------------------

    @property
    def is_loaded(self) -> bool:
        """Whether the model is loaded, or about to be."""
        loading = self._loading is not None and not self._loading.done()
        return loading or self.state in (State.LOADED, State.LOADING)

    @property
    def takes_memory(self) -> bool:
        """Whether the model is loaded, or is being loaded or released."""
        return self.is_loaded or self._changing.locked()

    def open(self) -> None:
        """Loads the model, if it is not loaded; any thread may call this.  Raises what loading it raises."""
        with self._opening:
            if self._open is None:
                with ExitStack() as stack:
                    self._last = stack.enter_context(self._opens(self.counts))
                    self._open = stack.pop_all()
                self._scale()
            self.state = State.LOADED

    def adapt(self, scales: Mapping[int, float]) -> None:
        """Sets the scales of LoRA adapters, by number, for requests that choose none; others do not act.

        Raises ParameterError for an adapter that is not there.
        """
        for number in scales:
            check_adapter(number, len(self.scales))
        self.scales = [scales.get(number, 0.0) for number in range(len(self.scales))]
        self._scale()

    def _scale(self) -> None:
        if self._last is not None:
            scales = dict(zip(self._last.adapters, self.scales, strict=True))
            for adapter, scale in scales.items():
                adapter.scale = scale
            if self._last.writer is not None:
                self._last.writer.scales = scales

    def _shut(self) -> None:
        with self._opening:
            if self._open is not None:
                self._open.close()
                self._open = None

    async def wake(self) -> None:
        """Loads the model, if it is not loaded, also if the caller is cancelled meanwhile.  Raises Problem."""
        if self.state is not State.LOADED:
            if self._loading is None or self._loading.done():
                self._loading = asyncio.create_task(self._load())
            await asyncio.shield(self._loading)

    async def _load(self) -> None:
        async with self._changing:
            if self.draining:
                raise shutting_down()
            before, self.state = self.state, State.LOADING
            try:
                await asyncio.get_running_loop().run_in_executor(self._vectors, self.open)
            except Exception as error:
                self.state, self.failed = before, True
                LOG.error("%s: cannot be loaded: %s", self.name, in_one_line(error), exc_info=error)
                raise Problem(
                    500, f"the model {self.name!r} cannot be loaded; see the server's log", code="model_not_loaded"
                ) from error
            self.failed = False
            self.rest()  # all who wanted it may have left

    async def sleep(self, state: State) -> None:
        """Releases the model's memory, unless a request uses it.  ``state``: SLEEPING or UNLOADED."""
        async with self._changing:
            if self.state is State.SLEEPING:
                self.state = state
            elif self.state is State.LOADED and not self.is_used:
                self.state = state
                await asyncio.get_running_loop().run_in_executor(self._vectors, self._shut)

    @asynccontextmanager
    async def used(self, wake: Callable[[], Awaitable[None]] | None = None) -> AsyncIterator[None]:
        """A block in which the model is loaded.  ``wake``: called instead of :meth:`wake`.  Raises Problem."""
        self.users += 1
        if self.users == 1 or self._next is State.SLEEPING:  # an unload waits for the others
            self.want()
        self._stop_timer()
        try:
            await (wake or self.wake)()
            yield
        finally:
            self.users -= 1
            self.rested = time.monotonic()
            self.rest()

    @property
    def is_used(self) -> bool:
        """Whether a request computes, or is about to, and does not wait for another model's release."""
        return self.users > self.waiting

    def want(self) -> None:
        """Ends the effect of :meth:`keep` and :meth:`unload`."""
        self._kept, self._next = self._idle, State.SLEEPING

    def keep(self, seconds: float | None) -> None:
        """Sets how long the model stays loaded after the requests that use it now; None: until the end.

        After :meth:`unload` that is no time at all.
        """
        if self._next is not State.UNLOADED:
            self._kept = seconds

    def rest(self) -> None:
        """Releases the memory after the time without requests, if there is none; in the event loop."""
        self._stop_timer()
        if not self.users and self._kept is not None and self.state is State.LOADED:
            self._timer = asyncio.get_running_loop().call_later(self._kept, self._rest)

    def unload(self) -> None:
        """Releases the memory when the requests that use it have ended; in the event loop."""
        self._kept, self._next = 0, State.UNLOADED
        if self.state is State.SLEEPING:
            self.state = State.UNLOADED
        self.rest()

    @property
    def expires(self) -> float | None:
        """In how many seconds the memory is released; None: never."""
        return self._kept if self._timer is None else max(self._timer.when() - asyncio.get_running_loop().time(), 0)

    def _rest(self) -> None:
        self._resting = asyncio.get_running_loop().create_task(self.sleep(self._next))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- what is known about the model --------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        """Whether the model was ever loaded."""
        return self._last is not None

    @property
    def _known(self) -> Loaded:
        if self._last is None:
            raise Problem(400, f"the model {self.name!r} is not loaded", param="model", code="model_not_loaded")
        return self._last

    @property
    def model(self) -> Decoder | Encoder:
        """The model; its memory may be released.  Raises Problem if it was never loaded."""
        return self._known.model

    @property
    def embedder(self) -> Embedder:
        """What computes vectors.  Raises Problem if the model was never loaded."""
        return self._known.embedder

    @property
    def writer(self) -> Writer | None:
        """What generates texts; None for an encoder.  Raises Problem if the model was never loaded."""
        return self._known.writer

    @property
    def status(self) -> Status:
        """What was computed since the server started."""
        if self._last is None or self._last.writer is None:
            return Status(**vars(self.counts))
        return self._last.writer.batcher.status

    @property
    def texts(self) -> Writer:
        """The writer.  Raises Problem for an encoder."""
        if self.writer is None:
            masked = isinstance(self.model, Denoiser)
            what = "generate text token by token; use ggplug run" if masked else "generate text; use /v1/embeddings"
            raise Problem(
                400,
                f"{self.name} is a {self.model.architecture} model, which cannot {what}",
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
        failed = self.state is State.LOADED and self.writer is not None and self.writer.batcher.closed
        return not self.draining and not failed

    def check_name(self, name: str | None, *, strict: bool = True) -> None:
        """Raises Problem if ``name`` is not a name of this model; None, and any if not ``strict``, is allowed."""
        if strict and name is not None and self.names.isdisjoint((name, name.removesuffix(":latest"))):
            raise Problem(
                404,
                f"unknown model {name!r:.200}; the model of this server is {self.name!r}",
                param="model",
                code="model_not_found",
            )

    def accept(self, body: Any, *, strict: bool) -> None:
        """Checks the name of the model in a body, and sets how long it stays loaded.  Raises Problem."""
        self.check_name(getattr(body, "model", None), strict=strict)
        if (seconds := getattr(body, "keep_alive", None)) is not None:
            self.keep(None if seconds < 0 else seconds)

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
            raise too_many(f"{self._inside[kind]} are computed or wait")

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
        return await self._in(self._prompts, prepare)

    async def embedded(self, compute: Callable[[threading.Event], Result], cancelled: threading.Event) -> Result:
        """Runs a function in the one thread that computes vectors; :meth:`close` sets ``cancelled``."""
        self._computing.add(cancelled)
        try:
            return await self._in(self._vectors, compute, cancelled)
        finally:
            self._computing.discard(cancelled)

    async def _in(self, threads: ThreadPoolExecutor, function: Callable[..., Result], *given: Any) -> Result:
        try:
            found = asyncio.get_running_loop().run_in_executor(threads, function, *given)
        except RuntimeError as error:  # the service was closed
            raise shutting_down() from error
        return await result_of(found)

    # -- shutdown -----------------------------------------------------------------------------------

    async def drain(self, patience: float, forced: Callable[[], bool]) -> None:
        """Refuses new requests, waits until accepted ones are answered, and closes the service.

        It waits for ``patience`` seconds at most, and until ``forced()`` is true.
        """
        self.draining = True
        self._stop_timer()
        end = time.monotonic() + patience
        while self.inside and time.monotonic() < end and not forced():
            await asyncio.sleep(TICK)
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def close(self) -> None:
        """Cancels all texts and vectors, and releases the memory."""
        self.draining = True
        for cancelled in [*self._computing]:
            cancelled.set()
        self._vectors.shutdown()
        self._shut()
        self._prompts.shutdown(cancel_futures=True)


async def result_of(future: Awaitable[Result]) -> Result:
    """What a future gives that others may cancel when the server shuts down.  Raises Problem then."""
    try:
        return await future
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # the caller is cancelled
            raise
        raise shutting_down() from None


@contextmanager
def serving(
    model: Decoder | Encoder,
    name: str,
    *,
    slots: int = 4,
    waiting: int = 64,
    about: About | None = None,
    idle: float | None = None,
    **settings: Any,
) -> Iterator[Service]:
    """A ``with`` block with the service of a model, which the caller frees.  ``settings``: see :func:`.loaded`."""

    def opens(counts: Counts) -> AbstractContextManager[Loaded]:
        return loaded(lambda: nullcontext(model), name, counts, slots=slots, waiting=waiting, **settings)

    service = Service(name, opens, slots=slots, waiting=waiting, about=about, idle=idle)
    with opened(service):
        yield service


@contextmanager
def opened(service: Service) -> Iterator[Service]:
    """A ``with`` block with a service whose model is loaded; at its end the service is closed."""
    try:
        service.open()
        yield service
    finally:
        service.close()
