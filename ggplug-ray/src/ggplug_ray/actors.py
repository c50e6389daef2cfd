"""Objects in processes on nodes, whose coroutines are called from here: the extra ``"machines"`` of the backend."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from ggplug.errors import DeviceLostError, PluginError
from ggplug_ray.faults import decode, encode
from ggplug_ray.host import FAILED, OK, versions
from ggplug_ray.link import Link


class ActorHost:
    """The process: an object that a function of an installed distribution makes of plain data.

    ``factory``: ``module:name``; the object's ``MESSAGES`` are the names of the methods that may be called.
    """

    def __init__(self, factory: str, given: Sequence[Any]) -> None:
        self._factory, self._given = factory, given
        self._object: Any = None

    async def beat(self, dropped: Sequence[Any]) -> None:
        """Shows that the process runs."""

    async def do(self, what: str, *given: Any, stores: None = None) -> tuple[str, Any]:
        """The result of a coroutine; ``open`` makes the object: the versions, and the number of the process."""
        try:
            if what != "open":
                return OK, await self._method(what)(*given)
            module, _, name = self._factory.partition(":")
            self._object = getattr(importlib.import_module(module), name)(*self._given)
            return OK, (versions(), os.getpid())
        except Exception as error:
            return FAILED, encode(error, None)

    async def stream(self, what: str, *given: Any) -> AsyncIterator[tuple[str, Any]]:
        """What an asynchronous generator yields."""
        try:
            async for each in self._method(what)(*given):
                yield OK, each
        except Exception as error:
            yield FAILED, encode(error, None)

    def _method(self, what: str) -> Callable[..., Any]:
        if what not in self._object.MESSAGES:
            raise PluginError(f"a {type(self._object).__name__} has no message {what!r:.100}", got=what)
        found: Callable[..., Any] = getattr(self._object, what)
        return found


class Actor:
    """The client's end of such a process."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def call(self, what: str, *given: Any) -> Any:
        """Calls a coroutine, and waits for the result.  Raises its error; DeviceLostError."""
        return self._link.call(what, *given)

    def post(self, what: str, *given: Any) -> None:
        """Calls a coroutine, and does not wait."""
        with contextlib.suppress(DeviceLostError):
            self._link.send(what, *given)

    async def stream(self, what: str, *given: Any) -> AsyncIterator[Any]:
        """Calls an asynchronous generator, and yields what that yields.  Raises as :meth:`call` does."""
        link = self._link
        with link.guarded():
            answers = link.actor.stream.options(num_returns="streaming").remote(what, *given)
            async for reference in answers:
                state, value = await reference
                if state == FAILED:
                    raise decode(value, link.device, link.there)
                yield value

    def end(self) -> None:
        """Ends the process."""
        self._link.lose("it was ended")
