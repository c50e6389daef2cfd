"""A model in a process on another machine, which answers the requests that a server received."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

from starlette.types import Message, Scope

from ggplug_models.serve.app import of_a_model
from ggplug_models.serve.http.routes import Rules, routes_of_a_model
from ggplug_models.serve.opening import Offer


class Answering:
    """A copy of a model; see :class:`.Replicas`.

    ``folder``: that of relative paths, if it is here.  ``offer``: the model, with a path on this machine.
    """

    MESSAGES = ("load", "ask", "leave")
    """The methods that the server may call."""

    def __init__(self, folder: str, offer: Offer, rules: Rules) -> None:
        with contextlib.suppress(OSError):
            os.chdir(folder)
        self._service = offer.service()
        self._app = of_a_model(self._service, rules, list(routes_of_a_model(rules)))
        self._left: dict[int, asyncio.Event] = {}

    async def load(self) -> None:
        """Loads the model.  Raises what loading raises."""
        await asyncio.to_thread(self._service.open)
        self._service.rest()

    async def ask(self, number: int, scope: Scope, raw: bytes) -> AsyncIterator[list[Message]]:
        """The messages of the response to a request, in lists as they come; the first list is empty.

        From then on the request is known to :meth:`leave`.
        """
        left = self._left[number] = asyncio.Event()
        sent: asyncio.Queue[Message | None] = asyncio.Queue()
        parts: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]

        async def receive() -> Message:
            if parts:
                return parts.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        answering = asyncio.ensure_future(self._app(scope, receive, sent.put))
        answering.add_done_callback(lambda _: sent.put_nowait(None))
        try:
            yield []
            more = True
            while more:
                messages = [await sent.get()]
                while not sent.empty():
                    messages.append(sent.get_nowait())
                more = None not in messages
                yield [message for message in messages if message is not None]
            await answering
        finally:
            left.set()
            del self._left[number]

    async def leave(self, number: int) -> None:
        """The client of a request has left."""
        if number in self._left:
            self._left[number].set()
